package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/resource"
)

func (a *app) datasetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "dataset", Aliases: []string{"data"}, Short: "Add, show, replicate, evict, check and delete datasets", Args: cobra.ArbitraryArgs, RunE: needCommand,
	}
	cmd.Long = cmd.Short + `. A dataset is a list of files at places far away, with their checksums. It belongs to a project.

Members of a cluster have the datasets that it asks for ('nearmetal cluster create --dataset NAME') as directories that they can read:
/datasets/NAME. Their nodes fetch the files before the members start, each verified by its checksum. One node fetches a dataset from
its sources, and others take it from there. A replica stays on its node until room is needed, the longest unused going first; one that
'replicate' asked for stays until 'evict', and none goes while members have it.

Members can also read a dataset by URL: from its sources ('--dataset NAME:stream'), or through a cache on their node that keeps what was
read ('--dataset NAME:cached', or NAME:preloaded to have all of it there before the member starts). /etc/nearmetal/datasets/NAME.urls in each member lists the URLs, one in each line.`
	cmd.AddCommand(a.datasetAdd(), a.datasetList(), a.datasetShow(), a.datasetReplicate(), a.datasetEvict(), a.datasetCheck(), a.datasetDelete())
	return a.connects(cmd)
}

func (a *app) datasetList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List datasets", Args: noArgs,
		Long: "List datasets. REPLICAS is how many nodes have all files, of how many that should.",
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		all, err := c.Datasets(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, all, func(w io.Writer) {
			projects := severalProjects(all, func(d api.DatasetStatus) string { return d.Project })
			t := newTable(w, projects.row("NAME", "PROJECT", "FILES", "SIZE", "REPLICAS", "CLUSTERS")...)
			for i := range all {
				d := &all[i]
				whole := 0
				for _, r := range d.Replicas {
					if r.Phase == api.ReplicaWhole {
						whole++
					}
				}
				t.row(projects.row(d.Name, d.Project, fmt.Sprint(len(d.Files)), datasetBytes(d.SizeBytes), fmt.Sprintf("%d/%d", whole, len(d.Replicas)),
					strings.Join(d.Clusters, ","))...)
			}
			t.flush()
		})
	}
	return cmd
}

func datasetBytes(n int64) string {
	if n == 0 {
		return "-"
	}
	return resource.Storage.Number(n)
}

func (a *app) datasetShow() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show the files of a dataset, its replicas and its caches", Args: oneArg("dataset"), ValidArgsFunction: a.completeDatasets,
		Long: `Show the files of a dataset, its replicas and its caches. Of a cache, HITS are bytes that readers found there, MISSES bytes that were fetched
for them, AHEAD bytes that were fetched before anybody asked, and AGAIN bytes that were fetched once more after they had to make room.
They are counted as readers close files, since the node's agent started.`,
		Example: "  nearmetal dataset show events",
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		d, err := c.Dataset(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, d, func(w io.Writer) { a.printDataset(w, &d) })
	}
	return cmd
}

// shownFiles is how many files are listed one by one.
const shownFiles = 20

func (a *app) printDataset(w io.Writer, d *api.DatasetStatus) {
	credential := ""
	if d.Private {
		credential = "sealed"
	}
	fields(w, "Name", d.Name, "UID", d.UID, "Project", otherProject(d.Project), "Size", datasetBytes(d.SizeBytes), "Credential", credential,
		"Clusters", strings.Join(d.Clusters, ", "), "Created", a.age(d.CreatedAt)+" ago", "Files", fmt.Sprint(len(d.Files)))
	t := newTable(w, "PATH", "SIZE", "CHECKSUM", "SOURCE")
	for _, f := range d.Files[:min(len(d.Files), shownFiles)] {
		sum := "adler32 " + f.Adler32
		if f.SHA256 != "" {
			sum = "sha256 " + f.SHA256[:12] + "..."
		}
		source := f.URLs[0]
		if more := len(f.URLs) - 1; more > 0 {
			source += fmt.Sprintf(" and %d more", more)
		}
		t.row(f.Path, datasetBytes(f.SizeBytes), sum, source)
	}
	t.flush()
	if more := len(d.Files) - shownFiles; more > 0 {
		fmt.Fprintf(w, "and %d more (-o json shows all)\n", more)
	}
	if len(d.Replicas) > 0 {
		_, _ = io.WriteString(w, "\n")
		printReplicas(w, d)
	}
	if len(d.Caches) > 0 {
		_, _ = io.WriteString(w, "\n")
		printCaches(w, d.Caches)
	}
	if d.Reads != nil {
		printDataReads(w, map[string]api.DataReads{d.Name: *d.Reads}, a.age)
	}
	printDataErrors(w, d.Errors)
}

// printCaches prints what the caches of nodes did for readers of datasets.
func printCaches(w io.Writer, caches []api.DatasetCache) {
	named := len(caches) > 0 && caches[0].Dataset != ""
	columns := []string{"NODE", "CACHE", "HELD", "OF", "HITS", "MISSES", "AHEAD", "AGAIN", "MESSAGE"}
	if named {
		columns = append([]string{"DATASET"}, columns...)
	}
	t := newTable(w, columns...)
	for _, c := range caches {
		running := "idle"
		switch {
		case c.TooSmall:
			running = "too small"
		case c.Running:
			running = "running"
		}
		row := []string{
			c.Node, running, datasetBytes(c.HeldBytes), datasetBytes(c.SizeBytes), datasetBytes(c.HitBytes), datasetBytes(c.MissBytes), datasetBytes(c.AheadBytes),
			datasetBytes(c.AgainBytes), c.Message,
		}
		if named {
			row = append([]string{c.Dataset}, row...)
		}
		t.row(row...)
	}
	t.flush()
}

func printReplicas(w io.Writer, d *api.DatasetStatus) {
	t := newTable(w, "NODE", "PHASE", "HELD", "KEPT", "IN USE", "FROM SOURCES", "FROM NODES", "MESSAGE")
	for _, r := range d.Replicas {
		held := datasetBytes(r.HeldBytes)
		if r.Phase != api.ReplicaWhole && r.OfBytes > 0 {
			held += " of " + datasetBytes(r.OfBytes)
		}
		t.row(r.Node, string(r.Phase), held, yesNo(r.Kept), yesNo(r.InUse), datasetBytes(r.FromSourceBytes), datasetBytes(r.FromPeersBytes), r.Message)
	}
	t.flush()
}

func (a *app) datasetReplicate() *cobra.Command {
	var nodes []string
	var noWait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "replicate NAME --node NODE...", Short: "Have nodes keep a replica of a dataset", Args: oneArg("dataset"), ValidArgsFunction: a.completeDatasets,
		Long: `Have nodes keep a replica of a dataset, whether or not members there have it, until 'nearmetal dataset evict'. The command waits until
the files are there.`,
		Example: "  nearmetal dataset replicate events --node n1,n2",
	}
	cmd.Flags().StringSliceVar(&nodes, "node", nil, "node that should keep a replica; may be repeated")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until the files are there")
	cmd.Flags().Var(timeoutFlag(&timeout, time.Hour), "timeout", "how long to wait (0: no limit)")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(nodes) == 0 {
			return usage("name the nodes that should keep a replica: --node NODE ('nearmetal node list' lists the nodes)")
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		d, err := c.ReplicateDataset(cmd.Context(), args[0], nodes)
		if err != nil {
			return err
		}
		if !noWait {
			whole := func(r *api.DatasetReplica) bool { return r.Phase == api.ReplicaWhole }
			if d, err = a.awaitReplicas(cmd.Context(), c, d, nodes, timeout, "whole", whole); err != nil {
				return err
			}
		}
		return out.print(a.Streams.Out, d, func(w io.Writer) { printReplicas(w, &d) })
	}
	return cmd
}

// replicaPace is how often a dataset is asked for while a command waits for its replicas.
const replicaPace = 250 * time.Millisecond

// awaitReplicas waits until the replicas of some nodes are as they should be.
func (a *app) awaitReplicas(ctx context.Context, c *client.Client, d api.DatasetStatus, nodes []string, timeout time.Duration, what string,
	done func(*api.DatasetReplica) bool,
) (api.DatasetStatus, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	ticks := time.NewTicker(replicaPace)
	defer ticks.Stop()
	for {
		var waits []string
		for i := range d.Replicas {
			if r := &d.Replicas[i]; slices.Contains(nodes, r.Node) && !done(r) {
				waits = append(waits, strings.TrimSuffix(fmt.Sprintf("%s: %s: %s", r.Node, r.Phase, r.Message), ": "))
			}
		}
		if len(waits) == 0 {
			return d, nil
		}
		select {
		case <-ctx.Done():
			return d, fmt.Errorf("dataset %q is not %s everywhere (%s): %w; the nodes go on: nearmetal dataset show %s", d.Name, what, strings.Join(waits, "; "),
				context.Cause(ctx), d.Name)
		case <-ticks.C:
		}
		next, err := c.Dataset(ctx, d.UID)
		if err != nil && ctx.Err() == nil {
			return d, err
		}
		if err == nil {
			d = next
		}
	}
}

func (a *app) datasetEvict() *cobra.Command {
	var nodes []string
	cmd := &cobra.Command{
		Use: "evict NAME [--node NODE...]", Short: "Remove replicas of a dataset", Args: oneArg("dataset"), ValidArgsFunction: a.completeDatasets,
		Long: `Remove replicas of a dataset from the named nodes, or from all. Nothing is removed while members on one of these nodes have the dataset.
The files at their sources stay.`,
		Example: "  nearmetal dataset evict events --node n2",
	}
	cmd.Flags().StringSliceVar(&nodes, "node", nil, "node that should remove its replica; may be repeated (default: all that have one)")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		d, err := c.EvictDataset(cmd.Context(), args[0], nodes)
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, d, func(w io.Writer) {
			fmt.Fprintf(w, "replicas of dataset %s on %s are removed\n", d.Name, replicaNodes(nodes))
		})
	}
	return cmd
}

// replicaNodes names nodes, or says that all are meant.
func replicaNodes(nodes []string) string {
	if len(nodes) == 0 {
		return "all nodes"
	}
	return strings.Join(nodes, ", ")
}

func (a *app) datasetCheck() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "check NAME", Short: "Verify all replicas of a dataset again", Args: oneArg("dataset"), ValidArgsFunction: a.completeDatasets,
		Long: `Verify all replicas of a dataset that are kept or in use: their nodes read every file and compare its checksum. A file that has changed on
the disk is removed at once, and fetched again. The command waits until all replicas have passed.`,
		Example: "  nearmetal dataset check events",
	}
	cmd.Flags().Var(timeoutFlag(&timeout, time.Hour), "timeout", "how long to wait (0: no limit)")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		d, err := c.CheckDataset(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		var nodes []string
		for _, r := range d.Replicas {
			if r.Kept || r.InUse {
				nodes = append(nodes, r.Node)
			}
		}
		number := d.Checks
		passed := func(r *api.DatasetReplica) bool { return r.Phase == api.ReplicaWhole && r.Checked >= number }
		if d, err = a.awaitReplicas(cmd.Context(), c, d, nodes, timeout, "verified", passed); err != nil {
			return err
		}
		return out.print(a.Streams.Out, d, func(w io.Writer) { printReplicas(w, &d) })
	}
	return cmd
}

func (a *app) datasetDelete() *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete NAME...", Aliases: []string{"rm"}, Short: "Delete datasets and their replicas",
		Long:    `Delete datasets and their replicas. The files at their sources stay. A dataset that a cluster asks for is not deleted.`,
		Example: "  nearmetal dataset delete events", ValidArgsFunction: a.completeDatasets,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || slices.Contains(args, "") {
				return usage("name the datasets to delete; nothing was deleted ('nearmetal dataset list' lists the datasets)")
			}
			return nil
		},
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		var failed []error
		for _, name := range unique(args) {
			err := c.DeleteDataset(cmd.Context(), name)
			if err == nil {
				fmt.Fprintf(a.Streams.Out, "dataset %s deleted\n", name)
			}
			failed = append(failed, err)
		}
		return errors.Join(failed...)
	}
	return cmd
}

// completeDatasets completes names of datasets, short ones where they are of the user's own project.
func (a *app) completeDatasets(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		all, err := c.Datasets(ctx)
		if err != nil {
			return nil, err
		}
		own := ""
		if who, err := c.Whoami(ctx); err == nil {
			own = who.Project
		}
		var names []string
		for i := range all {
			name := all[i].Name
			if all[i].Project != own {
				name = fullName(all[i].Project, name)
			}
			names = append(names, name)
		}
		return names, nil
	})
}
