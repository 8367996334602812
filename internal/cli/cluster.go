package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

func (a *app) clusterCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "Create, show and delete clusters", Args: cobra.ArbitraryArgs, RunE: needCommand}
	cmd.AddCommand(a.clusterCreate(), a.clusterList(), a.clusterShow(), a.clusterDelete(), a.clusterEvents())
	return a.connects(cmd)
}

// createFlags are the flags of `cluster create`.
type createFlags struct {
	file     string
	size     int
	cores    int
	memory   string
	stack    string
	env      string
	egress   bool
	labels   map[string]string
	selector map[string]string
	noWait   bool
	timeout  time.Duration
}

func (a *app) clusterCreate() *cobra.Command {
	var f createFlags
	cmd := &cobra.Command{
		Use:   "create NAME | -f FILE",
		Short: "Create a cluster and wait until it is ready",
		Long: `Create a cluster and wait until it is ready: SSH, names and hostfile on every member. A name and flags describe a cluster of
one group; a file (YAML or JSON, "-" for standard input) describes any. A cluster that can't be placed is refused with the
reason and exit code 5; it keeps its name until it is deleted.`,
		Example: `  nearmetal cluster create c1 --size 2 --cores 1 --memory 512MiB --stack container --env local
  nearmetal cluster create -f c1.yaml --no-wait -o json`,
		Args: func(cmd *cobra.Command, args []string) error { return createArgs(cmd, args, f.file) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "file", "f", "", `file that describes the cluster, "-" for standard input`)
	flags.IntVar(&f.size, "size", manifest.DefaultSize, "number of members")
	flags.IntVar(&f.cores, "cores", manifest.DefaultCores, "exclusive cores per member")
	flags.StringVar(&f.memory, "memory", manifest.DefaultMemory.String(), "memory per member, like 512MiB or 2GiB")
	flags.StringVar(&f.stack, "stack", string(manifest.DefaultStack), "how members are carried: container, vm or metal")
	flags.StringVar(&f.env, "env", manifest.DefaultEnvironment, "environment the members run")
	flags.BoolVar(&f.egress, "egress", false, "let members open connections to the outside")
	flags.StringToStringVar(&f.labels, "label", nil, "label KEY=VALUE, may be repeated")
	flags.StringToStringVar(&f.selector, "node-selector", nil, "only nodes with this label KEY=VALUE, may be repeated")
	flags.BoolVar(&f.noWait, "no-wait", false, "do not wait until it is ready")
	flags.DurationVar(&f.timeout, "timeout", 10*time.Minute, "how long to wait (0: for ever)")
	out := outputFlag(cmd)
	// Only fail for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("env", a.completeEnvironments)
	_ = cmd.RegisterFlagCompletionFunc("stack", cobra.FixedCompletions([]string{"container", "vm", "metal"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req, err := a.clusterRequest(cmd, args, f)
		if err != nil {
			return err
		}
		return a.create(cmd.Context(), req, f, out)
	}
	return cmd
}

// fileOnly are the flags that a file replaces.
var fileOnly = []string{"size", "cores", "memory", "stack", "env", "egress", "label", "node-selector"}

func createArgs(cmd *cobra.Command, args []string, file string) error {
	switch {
	case file != "" && len(args) > 0:
		return usage("both a name (%q) and a file are given; the file holds the name", args[0])
	case file == "" && len(args) == 0:
		return usage("name the cluster ('%s NAME'), or give a file that describes it (-f FILE)", cmd.CommandPath())
	case len(args) > 1:
		return usage("%q is one name too many; '%s' creates one cluster", args[1], cmd.CommandPath())
	}
	if file != "" {
		for _, name := range fileOnly {
			if cmd.Flags().Changed(name) {
				return usage("--%s can't be given together with a file; write it into the file", name)
			}
		}
	}
	return nil
}

// clusterRequest is what flags or file ask for, checked: so that a mistake is told with its flag, or file and line, before
// anything is sent.
func (a *app) clusterRequest(cmd *cobra.Command, args []string, f createFlags) (api.ClusterRequest, error) {
	if f.file != "" {
		return a.readManifest(f.file)
	}
	memory, err := api.ParseBytes(f.memory)
	if err != nil {
		return api.ClusterRequest{}, usage("--memory: %v", err)
	}
	req := api.ClusterRequest{
		Name: args[0], Labels: f.labels, Egress: f.egress, Size: f.size, Cores: f.cores, Memory: memory, Stack: api.Stack(f.stack),
		Environment: f.env, NodeSelector: f.selector,
	}
	_, err = manifest.Normalize(req, manifest.Flags("name", "size", "cores", "memory", "stack", "environment"))
	var invalid *manifest.Invalid
	if errors.As(err, &invalid) {
		return req, &exitError{ExitUsage, errors.New(asFlags(invalid).Error())}
	}
	return req, err
}

// asFlags names the flags in place of the fields.
func asFlags(invalid *manifest.Invalid) *manifest.Invalid {
	renamed := &manifest.Invalid{}
	for _, p := range invalid.Problems {
		switch field, rest, _ := strings.Cut(p.Location, "."); field {
		case "name":
			p.Location = "NAME"
		case "environment":
			p.Location = "--env"
		case "node_selector":
			p.Location = strings.TrimSuffix("--node-selector "+rest, " ")
		case "labels":
			p.Location = strings.TrimSuffix("--label "+rest, " ")
		default:
			p.Location = "--" + p.Location
		}
		renamed.Problems = append(renamed.Problems, p)
	}
	return renamed
}

// readManifest reads and checks a file that describes a cluster.
func (a *app) readManifest(path string) (api.ClusterRequest, error) {
	var in io.Reader = a.Streams.In
	name := "standard input"
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return api.ClusterRequest{}, usage("can't read the file: %v", err)
		}
		defer f.Close()
		in, name = f, path
	}
	data, err := io.ReadAll(io.LimitReader(in, manifest.MaxBytes+1))
	if err != nil {
		return api.ClusterRequest{}, usage("can't read %s: %v", name, err)
	}
	form := manifest.Detect(data)
	switch strings.ToLower(filepath.Ext(path)) {
	case ".json":
		form = manifest.JSON
	case ".yaml", ".yml":
		form = manifest.YAML
	}
	req, src, err := manifest.DecodeCluster(data, form)
	if err == nil {
		_, err = manifest.Normalize(req, src)
	}
	if err != nil {
		return req, &exitError{ExitUsage, fmt.Errorf("%s: %w", name, err)}
	}
	return req, nil
}

// create creates the cluster, waits unless told not to, and prints it.
func (a *app) create(ctx context.Context, req api.ClusterRequest, f createFlags, out *format) error {
	c, err := a.client(0)
	if err != nil {
		return err
	}
	cl, err := c.CreateCluster(ctx, req)
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("interrupted; whether cluster %q was created is not known, see 'nearmetal cluster show %s'", req.Name, req.Name)
	}
	if err != nil {
		return err
	}
	if !f.noWait {
		if cl, err = a.awaitReady(ctx, c, cl, f.timeout); err != nil {
			return err
		}
	}
	return out.print(a.Streams.Out, cl, func(w io.Writer) { a.printCluster(w, cl) })
}

// awaitReady waits until the cluster is ready, or it is certain that it won't be.
func (a *app) awaitReady(ctx context.Context, c *client.Client, cl api.Cluster, timeout time.Duration) (api.Cluster, error) {
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if timeout > 0 {
		bounded, cancel = context.WithTimeout(ctx, timeout)
	}
	defer cancel()
	p := a.progress()
	defer p.stop()
	p.say(stateLine(cl))
	for change, err := range c.WatchCluster(bounded, cl.Name) {
		switch {
		case err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			return cl, fmt.Errorf("cluster %q is not ready after %s: %s; it goes on, see 'nearmetal cluster show %s'", cl.Name, timeout,
				strings.TrimPrefix(stateLine(cl), "cluster "+cl.Name+": "), cl.Name)
		case errors.Is(err, context.Canceled):
			return cl, fmt.Errorf("interrupted; cluster %q goes on without you, see 'nearmetal cluster show %s'", cl.Name, cl.Name)
		case err != nil:
			return cl, err
		case change.Synced:
			continue
		case change.Deleted || change.Cluster.UID != cl.UID || change.Cluster.Status.Phase == api.ClusterDeleting:
			return cl, &exitError{ExitConflict, fmt.Errorf("cluster %q was deleted before it was ready", cl.Name)}
		}
		cl = change.Cluster
		p.say(stateLine(cl))
		switch cl.Status.Phase {
		case api.ClusterReady:
			return cl, nil
		case api.ClusterRefused:
			message := cl.Status.Message
			if !strings.HasPrefix(message, "cluster ") {
				message = fmt.Sprintf("cluster %q can't be placed: %s", cl.Name, message)
			}
			// It holds nothing but its name, which who asked for it wants back to ask again.
			_, err := c.DeleteCluster(bounded, cl.Name)
			if err == nil {
				err = a.awaitGone(bounded, c, cl)
			}
			if err != nil {
				message += fmt.Sprintf("\nBefore you create it anew: nearmetal cluster delete %s (%v)", cl.Name, err)
			}
			return cl, &exitError{ExitRefused, errors.New(message)}
		case api.ClusterFailed:
			return cl, fmt.Errorf("cluster %q failed: %s; see 'nearmetal cluster events %s', and remove it with "+
				"'nearmetal cluster delete %s'", cl.Name, cl.Status.Message, cl.Name, cl.Name)
		}
	}
	return cl, ctx.Err()
}

// needCommand is what a noun does without a verb.
func needCommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return unknownCommand(cmd, args[0])
	}
	var names []string
	for _, sub := range cmd.Commands() {
		names = append(names, sub.Name())
	}
	return usage("'%s' needs one of: %s; see '%s --help'", cmd.CommandPath(), strings.Join(names, ", "), cmd.CommandPath())
}
