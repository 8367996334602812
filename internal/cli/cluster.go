package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/cpumodel"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

func (a *app) clusterCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "Create, show, change and delete clusters, and reach their members", Args: cobra.ArbitraryArgs, RunE: needCommand}
	cmd.Long = cmd.Short + ". A cluster is named NAME, one of another project than the token's PROJECT.NAME."
	cmd.AddCommand(
		a.clusterCreate(), a.clusterApply(), a.clusterList(), a.clusterShow(), a.clusterTop(), a.clusterExplain(), a.clusterEvents(),
		a.clusterScale(), a.clusterPause(), a.clusterResume(), a.clusterSave(), a.clusterRestore(), a.clusterMigrate(), a.clusterReboot(), a.clusterResize(), a.clusterSnapshot(), a.clusterLayer(), a.clusterCondition(),
		a.clusterExtend(), a.clusterLabel(), a.clusterTrace(), a.clusterDelete(),
		a.clusterSSH(), a.clusterConsole(), a.clusterForward(), a.clusterConnect(),
	)
	return a.connects(cmd)
}

// waitTimeout is how long commands wait by default for members to come up.
const waitTimeout = 10 * time.Minute

// createFlags are the flags of `cluster create`.
type createFlags struct {
	file     string
	trace    bool
	size     int
	cores    int
	shape    string
	memory   string
	stack    string
	env      string
	egress   bool
	labels   map[string]string
	selector map[string]string
	limit    api.Duration
	queue    bool
	priority int
	project  string
	spares   int
	// shareMemory is sent only when it was given.
	shareMemory bool
	display     bool
	cpuModel    string
	// interconnect, minRate and rdma say what the nodes' fabric must be.
	interconnect string
	minRate      string
	rdma         bool
	networks     []string
	guards       []string
	rates        []string
	marks        []string
	interfaces   []string
	limited      []string
	// technology and cell say what carries the cluster's own network.
	technology string
	cell       string
	disk       string
	userData   string
	hugePages  string
	gpu        string
	localDisks []string
	storage    storageFlags
	noWait     bool
	timeout    time.Duration
}

func (a *app) clusterCreate() *cobra.Command {
	var f createFlags
	cmd := &cobra.Command{
		Use:   "create NAME | -f FILE",
		Short: "Create a cluster and wait until it is ready",
		Long: `Create a cluster and wait until it is ready: SSH, names and hostfile on every member. A name and flags describe a cluster of
one group; a file (YAML or JSON, "-" for standard input) describes any. A cluster that can't be placed is refused with the
reason and exit code 5. With --queue, a cluster that could be placed later waits for its turn. Without it, so does one that only needs
whole machines that are being cleaned, inspected or switched off. The command then shows its position in the queue, the reason and,
when it is known, the latest start. Ctrl-C ends only the wait.`,
		Example: `  nearmetal cluster create c1 --size 2 --cores 1 --memory 512MiB --stack container --env local
  nearmetal cluster create c2 --size 16 --time-limit 4h --queue
  nearmetal cluster create -f c1.yaml --no-wait -o json`,
		Args: func(cmd *cobra.Command, args []string) error { return createArgs(cmd, args, f.file) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "file", "f", "", `file that describes the cluster, "-" for standard input`)
	flags.IntVar(&f.size, "size", manifest.DefaultSize, "number of members")
	flags.StringVar(&f.shape, "shape", "", "named shape of the site that gives cores and memory, where they are not given")
	flags.IntVar(&f.cores, "cores", manifest.DefaultCores, "exclusive cores per member")
	flags.StringVar(&f.memory, "memory", manifest.DefaultMemory.String(), "memory per member, like 512MiB or 2GiB")
	flags.StringVar(&f.stack, "stack", string(manifest.DefaultStack), "stack that runs the members: container, vm or metal")
	flags.StringVar(&f.env, "env", manifest.DefaultEnvironment, "environment the members run")
	flags.BoolVar(&f.egress, "egress", false, "allow members to open connections to the outside")
	flags.StringToStringVar(&f.labels, "label", nil, "label KEY=VALUE, may be repeated")
	flags.StringToStringVar(&f.selector, "node-selector", nil, "only nodes with this label KEY=VALUE, may be repeated")
	flags.Var(span{&f.limit}, "time-limit", "lifetime from its placement, like 4h or 2d; its end deletes the cluster and its shared home (default: no limit)")
	flags.BoolVar(&f.queue, "queue", false, "wait in the queue when there is no room now")
	flags.IntVar(&f.priority, "priority", 0, "requests of higher priority leave the queue first; above 0 for administrators only")
	flags.StringVar(&f.project, "project", "", "project that owns it (default: the token's)")
	flags.IntVar(&f.spares, "spares", 0, "places to hold for members that die")
	flags.StringArrayVar(&f.networks, "network", nil, "further network of its members: NAME for a private one of the cluster, project/NAME for one of the project, project/NAME=ADDRESS for a fixed address of a single member; may be repeated")
	flags.StringArrayVar(&f.guards, "security-group", nil, "security group of its members' ports on a further network, NETWORK=GROUP like project/lab=web; may be repeated")
	flags.StringArrayVar(&f.rates, "rate", nil, "rates of its members' ports on a further network, NETWORK=MIN-MAX, NETWORK=MAX or NETWORK=MIN- in bits per second like project/lab=200Mbit-1Gbit; may be repeated")
	flags.StringArrayVar(&f.marks, "dscp", nil, "DSCP of packets from its members' ports on a further network, NETWORK=DSCP like project/lab=10 or project/lab=AF11; may be repeated")
	flags.StringArrayVar(&f.interfaces, "interface", nil, "what its members' ports on the cluster's own network are, KIND, or on a further one, NETWORK:KIND like project/ib:vf: veth, virtio, vf or pf (a virtual function or a whole port of an adapter) or macvtap; behind vf, pf and macvtap, the adapter by its PCI address or GUID, its NUMA node or its rail like vf,numa=0 or vf,pf=0000:3b:00.0 or project/ib:vf,rail=1; vf,standby keeps machines connected while they are saved or moved; may be repeated")
	flags.StringVar(&f.technology, "technology", "", "what carries the cluster's own network: vxlan, vlan, or infiniband, which is a partition beside tunnels (default: vxlan; with --interface vf, pf or macvtap vlan, or infiniband with --interconnect infiniband)")
	flags.StringVar(&f.cell, "cell", "", "cell of the fabric that carries the cluster's partition (default: the site's only one)")
	flags.StringArrayVar(&f.limited, "limited", nil, "network on InfiniBand like project/storage, of whose partition its members are limited members: they reach full members only; may be repeated")
	flags.BoolVar(&f.shareMemory, "share-memory", true, "let members on one node exchange messages through memory and see each other's processes")
	flags.BoolVar(&f.display, "display", false, "give virtual machines a screen, for 'nearmetal cluster console --vnc'")
	f.interconnectFlags(cmd)
	flags.StringVar(&f.cpuModel, "cpu-model", cpumodel.Host, `CPU model of virtual machines, like Haswell or EPYC; "host" is the node's own processor`)
	flags.StringVar(&f.disk, "disk", "", "size of the private disk of virtual machines of an imported environment, like 20GiB (default: that of the environment)")
	flags.StringVar(&f.userData, "user-data", "", `file with user data for cloud-init in virtual machines of an imported environment, "-" for standard input`)
	flags.StringVar(&f.hugePages, "huge-pages", "", "size of the node's pages that hold the memory of virtual machines: 2MiB or 1GiB (default: ordinary memory)")
	flags.StringVar(&f.gpu, "gpu", "", "GPUs that each member gets: N or N:KIND whole ones of its node, with words of the model's name or the least memory of each, like 1, 2:H200 or 1:80GB, or N:mig, N:mig:PROFILE or N:mig:SIZE for slices of GPUs in MIG mode, like 1:mig:1g.10gb, or N:remote:SIZE for so much memory of GPUs of any node, like 1:remote:8GiB, or N:any:SIZE for whole ones with that much memory where they are free and else such a part, like 1:any:8GiB")
	flags.StringArrayVar(&f.localDisks, "local-disk", nil, "disks that the whole machine of each member has, COUNT:SIZE or COUNT:SIZE:KIND with the kind nvme, ssd or hdd like 2:500GB:nvme; may be repeated")
	f.storage.add(cmd)
	flags.BoolVar(&f.noWait, "no-wait", false, "do not wait until it is ready")
	flags.BoolVar(&f.trace, "trace", false, "show on standard error where the time went, once it is ready")
	flags.Var(timeoutFlag(&f.timeout, waitTimeout), "timeout", "how long to wait (0: no limit, the default with --queue)")
	out := outputFlag(cmd)
	// Only fail for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("env", a.completeEnvironments)
	_ = cmd.RegisterFlagCompletionFunc("cpu-model", cobra.FixedCompletions(slices.Concat([]string{cpumodel.Host}, cpumodel.Names()), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("project", a.completeProjects)
	_ = cmd.RegisterFlagCompletionFunc("shape", a.completeShapes)
	_ = cmd.RegisterFlagCompletionFunc("technology", cobra.FixedCompletions([]string{"vxlan", "vlan", "infiniband"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("stack", cobra.FixedCompletions([]string{"container", "vm", "metal"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.trace && f.noWait {
			return usage("--trace shows what was waited for; it can't be given together with --no-wait")
		}
		req, err := a.clusterRequest(cmd, args, f)
		if err != nil {
			return err
		}
		if req.Queue && !cmd.Flags().Changed("timeout") {
			f.timeout = 0
		}
		return a.create(cmd.Context(), req, f, out)
	}
	return cmd
}

// fileOnly are the flags that a file replaces.
var fileOnly = []string{"size", "shape", "cores", "memory", "stack", "env", "egress", "label", "node-selector", "time-limit", "queue", "priority", "project", "spares", "network", "security-group", "rate", "dscp", "interface", "technology", "cell", "limited", "share-memory", "display", "cpu-model", "disk", "user-data", "huge-pages", "interconnect", "min-rate", "rdma", "gpu", "local-disk", "home", "volume", "dataset"}

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
		Environment: f.env, NodeSelector: f.selector, TimeLimit: f.limit, Queue: f.queue, Priority: f.priority, Project: f.project,
		Spares: f.spares, ShapeName: f.shape, Display: f.display,
	}
	if req.Networks, err = flaggedNetworks(f); err != nil {
		return api.ClusterRequest{}, err
	}
	own, err := f.ownNetworkFields(cmd, &req)
	if err != nil {
		return req, err
	}
	given := []string{"name", "size", "cores", "memory", "stack", "environment"}
	if cmd.Flags().Changed("shape") {
		given = []string{"name", "size", "shape", "stack", "environment"}
		if cmd.Flags().Changed("cores") {
			given = append(given, "cores")
		} else {
			req.Cores = 0
		}
		if cmd.Flags().Changed("memory") {
			given = append(given, "memory")
		} else {
			req.Memory = 0
		}
	}
	if err := f.interconnectField(cmd, &req); err != nil {
		return req, err
	}
	if req.Interconnect != (api.Interconnect{}) {
		given = append(given, "interconnect")
	}
	if cmd.Flags().Changed("gpu") {
		req.GPU, given = api.GPURequest(f.gpu), append(given, "gpu")
	}
	for _, disks := range f.localDisks {
		req.LocalDisks = append(req.LocalDisks, api.DiskRequest(disks))
	}
	if len(f.localDisks) > 0 {
		given = append(given, "local_disks")
	}
	if cmd.Flags().Changed("cpu-model") {
		req.CPUModel, given = f.cpuModel, append(given, "cpu_model")
	}
	given = append(given, own...)
	more, err := f.machineFields(cmd, a.Streams.In, &req)
	if err != nil {
		return req, err
	}
	given = append(given, more...)
	stored, err := f.storage.fields(cmd, &req)
	if err != nil {
		return req, err
	}
	given = append(given, stored...)
	if cmd.Flags().Changed("share-memory") {
		req.ShareMemory = &f.shareMemory
	}
	_, err = manifest.Normalize(req, manifest.Flags(given...))
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
		case "adapter":
			p.Location = "--interface"
		case "environment":
			p.Location = "--env"
		case "env":
			p.Location = strings.TrimSuffix("--env "+rest, " ")
		case "command", "command[0]":
			p.Location = "COMMAND"
		case "directory":
			p.Location = "--dir"
		case "node_selector":
			p.Location = strings.TrimSuffix("--node-selector "+rest, " ")
		case "labels":
			p.Location = strings.TrimSuffix("--label "+rest, " ")
		default:
			p.Location = "--" + strings.ReplaceAll(p.Location, "_", "-")
			switch {
			case field == "home":
				p.Location = "--home"
			case strings.HasPrefix(field, "datasets"):
				p.Location = "--dataset"
			case strings.HasPrefix(field, "volumes"):
				p.Location = "--volume"
			}
			if strings.HasPrefix(field, "networks") || strings.HasPrefix(field, "addresses") {
				p.Location = "--network"
				if strings.HasPrefix(rest, "adapter") {
					p.Location = "--interface"
				}
				for _, flag := range []string{"interface", "limited"} {
					if strings.HasSuffix(rest, flag) {
						p.Location = "--" + flag
					}
				}
			}
		}
		renamed.Problems = append(renamed.Problems, p)
	}
	return renamed
}

// inFlags names the flags where a server names the fields and lines of a request that was made from flags.
func inFlags(err error) error {
	var refused *client.Error
	if !errors.As(err, &refused) || len(refused.Errors) == 0 {
		return err
	}
	renamed := &manifest.Invalid{}
	for _, p := range refused.Errors {
		field, _, _ := strings.Cut(strings.TrimPrefix(p.Location, "quota."), "[")
		if counter, ok := strings.CutPrefix(field, "devices."); ok {
			field = "device " + counter
		}
		p.Location, p.Line = "--"+field, 0
		renamed.Problems = append(renamed.Problems, p)
	}
	told := *refused
	told.Detail = renamed.Error()
	return &told
}

// readDescription reads a file that describes an object, and guesses its format. name is that of the file for errors.
func (a *app) readDescription(path string) (data []byte, form manifest.Format, name string, err error) {
	var in io.Reader = a.Streams.In
	name = "standard input"
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, "", path, usage("%s", fileProblem(path, err))
		}
		defer f.Close()
		in, name = f, path
	}
	data, err = io.ReadAll(io.LimitReader(in, manifest.MaxBytes+1))
	if err != nil {
		return nil, "", name, usage("%s", fileProblem(name, err))
	}
	form = manifest.Detect(data)
	switch strings.ToLower(filepath.Ext(path)) {
	case ".json":
		form = manifest.JSON
	case ".yaml", ".yml":
		form = manifest.YAML
	}
	return data, form, name, nil
}

// readManifest reads and checks a file that describes a cluster.
func (a *app) readManifest(path string) (api.ClusterRequest, error) {
	data, form, name, err := a.readDescription(path)
	if err != nil {
		return api.ClusterRequest{}, err
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
	if client.HasCode(err, "unknown_shape") && f.file == "" {
		err = inFlags(err)
	}
	if err != nil {
		return err
	}
	if !f.noWait {
		if cl, err = a.await(ctx, c, cl, untilReady(f.timeout, true)); err != nil {
			return err
		}
	}
	if f.trace {
		if err := a.showTrace(ctx, c, ref(cl), "create"); err != nil {
			return err
		}
	}
	return out.print(a.Streams.Out, cl, func(w io.Writer) { a.printCluster(w, cl) })
}

// needCommand is what a noun does without a verb.
func needCommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return unknownCommand(cmd, args[0])
	}
	var names []string
	for _, sub := range cmd.Commands() {
		if !sub.Hidden {
			names = append(names, sub.Name())
		}
	}
	return usage("'%s' needs one of: %s; see '%s --help'", cmd.CommandPath(), strings.Join(names, ", "), cmd.CommandPath())
}
