package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func (a *app) clusterSnapshot() *cobra.Command {
	cmd := &cobra.Command{
		Use: "snapshot", Short: "Make, list, restore and delete snapshots of a cluster", Args: cobra.ArbitraryArgs, RunE: needCommand,
	}
	cmd.Long = cmd.Short + `. A snapshot is the memory of all members at one moment, on the disks of their nodes. The shared home is
not part of it. Only virtual machines of this site's environments, without devices, have snapshots. A cluster may have ` + strconv.Itoa(api.MaxSnapshots) + `;
they count as disk in the project's quota, and are deleted with the cluster.`
	cmd.AddCommand(a.snapshotCreate(), a.snapshotList(), a.snapshotRestore(), a.snapshotDelete())
	return cmd
}

// snapshotFlags are the flags of the commands that wait.
type snapshotFlags struct {
	noWait  bool
	timeout time.Duration
}

// snapshotCommand completes a command about one snapshot of a cluster, which asks for something and waits until done says so.
func (a *app) snapshotCommand(cmd *cobra.Command, what string, ask func(*client.Client, context.Context, string, string) (api.Cluster, error),
	done func(name string, asked api.Cluster) func(api.Cluster) (bool, error),
) *cobra.Command {
	var f snapshotFlags
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) != 2 || slices.Contains(args, "") {
			return usage("name the cluster and the snapshot: '%s NAME SNAPSHOT'", cmd.CommandPath())
		}
		return nil
	}
	cmd.ValidArgsFunction = a.completeClusters(1)
	cmd.Flags().BoolVar(&f.noWait, "no-wait", false, "do not wait until it is done")
	cmd.Flags().Var(timeoutFlag(&f.timeout, waitTimeout), "timeout", "how long to wait (0: no limit)")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		cl, err := ask(c, cmd.Context(), args[0], args[1])
		if err != nil {
			return unknownOutcome(err, args[0])
		}
		if !f.noWait {
			if cl, err = a.await(cmd.Context(), c, cl, await{what: what, timeout: f.timeout, done: done(args[1], cl)}); err != nil {
				return err
			}
		}
		return out.print(a.Streams.Out, cl, func(w io.Writer) { a.printSnapshots(w, cl.Status.Snapshots) })
	}
	return cmd
}

// snapshotNamed returns the snapshot of a cluster with this name; nil when there is none.
func snapshotNamed(cl api.Cluster, name string) *api.Snapshot {
	i := slices.IndexFunc(cl.Status.Snapshots, func(s api.Snapshot) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &cl.Status.Snapshots[i]
}

func (a *app) snapshotCreate() *cobra.Command {
	return a.snapshotCommand(&cobra.Command{
		Use: "create NAME SNAPSHOT", Short: "Make a snapshot of a cluster",
		Long: `Freeze all members of a cluster, write their memory to the disks of their nodes, and let them continue; wait until the cluster is ready
again. A paused cluster stays paused. If the memory of one member can't be written, there is no snapshot, and the cluster continues.
The shared home is not part of a snapshot.`,
		Example: "  nearmetal cluster snapshot create v1 before-upgrade",
	}, "ready with its snapshot", (*client.Client).CreateSnapshot, func(name string, asked api.Cluster) func(api.Cluster) (bool, error) {
		var wanted time.Time
		if s := snapshotNamed(asked, name); s != nil {
			wanted = s.RequestedAt
		}
		return func(cl api.Cluster) (bool, error) {
			s := snapshotNamed(cl, name)
			switch {
			case s == nil || s.RequestedAt.Before(wanted):
				return false, nil
			case s.RequestedAt.After(wanted):
				return false, &exitError{ExitConflict, fmt.Errorf("another snapshot %q of cluster %q was requested meanwhile", name, ref(cl))}
			case s.Phase == api.SnapshotFailed:
				return false, fmt.Errorf("cluster %q has no snapshot %q: %s", ref(cl), name, s.Message)
			case s.Phase == api.SnapshotDeleting:
				return false, &exitError{ExitConflict, fmt.Errorf("snapshot %q of cluster %q was deleted before it was complete", name, ref(cl))}
			default:
				return s.Phase == api.SnapshotReady && atRest(cl), nil
			}
		}
	})
}

// atRest reports whether a cluster is ready, or frozen as its user wants.
func atRest(cl api.Cluster) bool {
	if cl.Status.Paused {
		return cl.Status.Phase == api.ClusterPaused
	}
	return cl.Status.Phase == api.ClusterReady
}

func (a *app) snapshotRestore() *cobra.Command {
	return a.snapshotCommand(&cobra.Command{
		Use: "restore NAME SNAPSHOT", Short: "Restore a cluster to a snapshot",
		Long: `Verify a snapshot, end the present members of the cluster, and let their programs continue where they were in the snapshot; wait until the
cluster is ready. The snapshot stays and can be restored again. If one state is damaged, does not fit or is on a node that is down, nothing
changes. The shared home stays as it is. Jobs that started after the snapshot are lost, or run again if they may be requeued.`,
		Example: "  nearmetal cluster snapshot restore v1 before-upgrade",
	}, "ready again", (*client.Client).RestoreSnapshot, func(name string, asked api.Cluster) func(api.Cluster) (bool, error) {
		var wanted time.Time
		if asked.Status.SnapshotRestore != nil {
			wanted = asked.Status.SnapshotRestore.RequestedAt
		}
		return func(cl api.Cluster) (bool, error) {
			now := cl.Status.SnapshotRestore
			if now == nil {
				return false, nil
			}
			if current, err := answersRequest(cl, "restore", now.RequestedAt, wanted); err != nil || !current {
				return false, err
			}
			switch {
			case now.Phase == api.SnapshotRefused:
				return false, fmt.Errorf("cluster %q was not restored to snapshot %q, and is as before: %s", ref(cl), name, now.Message)
			case cl.Status.Phase == api.ClusterSaved:
				return false, fmt.Errorf("cluster %q could not resume from snapshot %q, and is saved in that state: %s", ref(cl), name, cl.Status.Message)
			default:
				return now.Phase == api.SnapshotRestored && atRest(cl), nil
			}
		}
	})
}

func (a *app) snapshotDelete() *cobra.Command {
	return a.snapshotCommand(&cobra.Command{
		Use: "delete NAME SNAPSHOT", Aliases: []string{"rm"}, Short: "Delete a snapshot of a cluster",
		Long:    "Delete a snapshot of a cluster, and wait until its nodes have confirmed that nothing of it is left. The cluster itself is not touched.",
		Example: "  nearmetal cluster snapshot delete v1 before-upgrade",
	}, "without its snapshot", (*client.Client).DeleteSnapshot, func(name string, _ api.Cluster) func(api.Cluster) (bool, error) {
		return func(cl api.Cluster) (bool, error) { return snapshotNamed(cl, name) == nil, nil }
	})
}

func (a *app) snapshotList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list NAME", Aliases: []string{"ls"}, Short: "List the snapshots of a cluster", Args: oneArg("cluster"), ValidArgsFunction: a.completeClusters(1),
		Long: "List the snapshots of a cluster, the oldest first, also those that failed or are being deleted.",
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		all, err := c.Snapshots(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, all, func(w io.Writer) { a.printSnapshots(w, all) })
	}
	return cmd
}

func (a *app) printSnapshots(w io.Writer, all []api.Snapshot) {
	t := newTable(w, "SNAPSHOT", "PHASE", "CREATED", "DISK", "MEMBERS", "MESSAGE")
	for _, s := range all {
		created := "-"
		if s.CreatedAt != nil {
			created = s.CreatedAt.UTC().Format(time.RFC3339)
		}
		t.row(s.Name, string(s.Phase), created, sizeText(int64(s.Bytes)), strconv.Itoa(len(s.Members)), s.Message)
	}
	t.flush()
}
