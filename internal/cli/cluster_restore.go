package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// restoreFlags say what a cluster is restored from.
type restoreFlags struct {
	files  string
	noHome bool
}

func (a *app) clusterRestore() *cobra.Command {
	var f restoreFlags
	cmd := a.turns(turn{
		verb: "restore", short: "Let saved clusters go on, or make a cluster of saved files",
		long: `Restore saved clusters and wait until all members are ready; programs continue where they were saved. Members resume together, on the nodes where they were saved or on others;
until those have room, the restore waits, and 'cluster save' cancels it. A restore that fails for one member saves all others again.

With --files, create a cluster like the one whose files became that environment ('cluster save NAME --files ENVIRONMENT'), on any machines that suit it, and wait until it is ready.
It has the same groups, and all members of whole machines have the files of the saved one. If the home was saved, too, a volume NAME-home is made of its snapshot, on the same node, and is the new
cluster's home; it is kept when the cluster is deleted. Nothing is recalled of time limits, labels, networks and other volumes.`,
		goal: api.ClusterReady, ask: (*client.Client).RestoreCluster, is: func(st api.ClusterStatus) bool { return !st.Saved },
	})
	cmd.Example = "  nearmetal cluster restore v1                    # virtual machines, where they were saved\n  nearmetal cluster restore m2 --files my-solver  # whole machines: another cluster"
	cmd.Flags().StringVar(&f.files, "files", "", "create a cluster from this environment, which was made of a cluster's files")
	cmd.Flags().BoolVar(&f.noHome, "no-home", false, "with --files: make no volume of the snapshot of the home")
	_ = cmd.RegisterFlagCompletionFunc("files", a.completeEnvironments)
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case cmd.Flags().Changed("files"):
			return a.restoreFiles(cmd, args, f)
		case f.noHome:
			return usage("--no-home needs --files; nothing was changed")
		}
		return run(cmd, args)
	}
	return cmd
}

// restoreFiles creates a cluster like the one that files were saved of.
func (a *app) restoreFiles(cmd *cobra.Command, args []string, f restoreFlags) error {
	switch {
	case len(args) != 1:
		return usage("--files creates one cluster, and %d are named; nothing was changed", len(args))
	case f.files == "":
		return usage("--files: the name of the environment is empty; nothing was changed")
	}
	ctx := cmd.Context()
	c, err := a.client(0)
	if err != nil {
		return err
	}
	e, err := c.Environment(ctx, f.files)
	if err != nil {
		return err
	}
	if e.Saved == nil {
		return &exitError{ExitConflict, fmt.Errorf("environment %q was not made of a cluster's files; boot it with: nearmetal cluster create %s --env %s", f.files, args[0], f.files)}
	}
	req := api.ClusterRequest{Name: args[0], Project: e.Project, Groups: renamed(e.Saved, args[0])}
	if e.Saved.Home != "" && !f.noHome {
		if req.Volumes, err = a.homeOf(ctx, c, e, args[0]); err != nil {
			return err
		}
	}
	wait := createFlags{timeout: waitTimeout}
	wait.noWait, _ = cmd.Flags().GetBool("no-wait")
	if given, ok := cmd.Flags().Lookup("timeout").Value.(timeout); ok {
		wait.timeout = *given.value
	}
	out := formatTable
	err = a.create(ctx, req, wait, &out)
	if err != nil && len(req.Volumes) > 0 {
		err = errors.Join(err, fmt.Errorf("volume %q, made of the snapshot of the home, is there; delete it before you try again: nearmetal volume delete %s", req.Volumes[0].Name, req.Volumes[0].Name))
	}
	return err
}

// renamed are the groups of a saved cluster for one with another name: a group that was called like its cluster is called like the new one.
func renamed(saved *api.SavedCluster, name string) []api.Group {
	groups := make([]api.Group, len(saved.Groups))
	for i, g := range saved.Groups {
		if g.Name == saved.Cluster {
			g.Name = name
		}
		groups[i] = g
	}
	return groups
}

// homeOf makes the home of a new cluster of the snapshot of a saved one's.
func (a *app) homeOf(ctx context.Context, c *client.Client, e api.Environment, name string) ([]api.VolumeAttachment, error) {
	volume := name + "-home"
	v, err := c.CreateVolume(ctx, api.VolumeRequest{Name: volume, Project: e.Project, From: e.Saved.Home})
	if err != nil {
		return nil, fmt.Errorf("the home can't be made of snapshot %s: %w; leave it out with --no-home", e.Saved.Home, err)
	}
	fmt.Fprintf(a.Streams.Err, "volume %s is made of snapshot %s\n", v.Name, e.Saved.Home)
	return []api.VolumeAttachment{{Name: volume, Path: "/home"}}, nil
}

// printSaved says what a save made beside the environment.
func printSaved(w io.Writer, b api.Build) {
	if b.Saved != nil && b.Saved.Home != "" {
		fmt.Fprintf(w, "snapshot of the home: %s\n", b.Saved.Home)
	}
}
