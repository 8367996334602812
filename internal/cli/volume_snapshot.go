package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

func (a *app) volumeSnapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "snapshot", Short: "Create, list, restore and delete snapshots of volumes", Args: cobra.ArbitraryArgs, RunE: needCommand,
	}
	cmd.Long = cmd.Short + `. A snapshot is what a volume held at one moment. It lies beside the volume on the same node, and takes as much room
as the volume may still change of what both share. It is no backup: it is lost with its node's disk.`
	cmd.AddCommand(a.volumeSnapshotCreate(), a.volumeSnapshotList(), a.volumeRestore("restore NAME@SNAPSHOT"), a.volumeSnapshotDelete())
	return cmd
}

// oneSnapshot takes NAME@SNAPSHOT as the only argument.
func oneSnapshot(_ *cobra.Command, args []string) error {
	if len(args) == 1 {
		if name, snapshot := manifest.CutVolumeSnapshot(args[0]); name != "" && snapshot != "" && strings.Count(args[0], "@") == 1 {
			return nil
		}
	}
	return usage("name a volume and its snapshot, as NAME@SNAPSHOT; nothing was changed")
}

func (a *app) volumeSnapshotCreate() *cobra.Command {
	var wait volumeWait
	cmd := &cobra.Command{
		Use: "create NAME@SNAPSHOT", Short: "Make a snapshot of a volume, and wait until it is there", Args: oneSnapshot,
		Long: `Make a snapshot of a volume, and wait until it is there. Clusters that have the volume attached go on. What they have not yet written to
their files is not in the snapshot.`,
		Example: "  nearmetal volume snapshot create data@monday", ValidArgsFunction: a.completeVolumes(1),
	}
	wait.add(cmd.Flags(), "there")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name, snapshot := manifest.CutVolumeSnapshot(args[0])
		if err := manifest.CheckVolumeSnapshot(api.VolumeSnapshotRequest{Name: snapshot}, manifest.Flags("name")); err != nil {
			return usage("%v", err)
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		v, err := c.CreateVolumeSnapshot(cmd.Context(), name, snapshot)
		if err == nil && !wait.noWait {
			v, err = a.awaitVolume(cmd.Context(), c, v, wait.timeout, func(v *api.VolumeStatus) (bool, error) {
				for _, s := range v.Snapshots {
					if s.Name == snapshot {
						return s.Ready, nil
					}
				}
				return false, &exitError{ExitConflict, fmt.Errorf("snapshot %q of volume %q was deleted before it was there", snapshot, v.Name)}
			})
		}
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, v, func(w io.Writer) { a.printVolumeSnapshots(w, v.Snapshots) })
	}
	return cmd
}

func (a *app) volumeSnapshotList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list NAME", Aliases: []string{"ls"}, Short: "List the snapshots of a volume, the oldest first", Args: oneArg("volume"),
		ValidArgsFunction: a.completeVolumes(1), Example: "  nearmetal volume snapshot list data",
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		all, err := c.VolumeSnapshots(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, all, func(w io.Writer) { a.printVolumeSnapshots(w, all) })
	}
	return cmd
}

func (a *app) volumeRestore(use string) *cobra.Command {
	var wait volumeWait
	cmd := &cobra.Command{
		Use: use, Short: "Restore a volume from a snapshot, and wait until that is done", Args: oneSnapshot,
		Long: `Make a volume hold again what it held in a snapshot, and wait until that is done. What was written since is lost, unless another snapshot has it.
The snapshot stays. A volume that a cluster has attached is not restored: delete the cluster first.`,
		Example: "  nearmetal volume restore data@monday", ValidArgsFunction: a.completeVolumeSnapshots,
	}
	wait.add(cmd.Flags(), "restored")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name, snapshot := manifest.CutVolumeSnapshot(args[0])
		c, err := a.client(0)
		if err != nil {
			return err
		}
		v, err := c.RestoreVolume(cmd.Context(), name, snapshot)
		if err == nil && !wait.noWait {
			v, err = a.awaitVolume(cmd.Context(), c, v, wait.timeout, func(v *api.VolumeStatus) (bool, error) { return v.Restore != nil && v.Restore.Done, nil })
		}
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, v, func(w io.Writer) { a.printVolume(w, &v) })
	}
	return cmd
}

func (a *app) volumeSnapshotDelete() *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete NAME@SNAPSHOT", Aliases: []string{"rm"}, Short: "Delete a snapshot of a volume", Args: oneSnapshot,
		Long:    "Delete a snapshot of a volume. The volume itself, and clones that began as the snapshot, stay as they are.",
		Example: "  nearmetal volume snapshot delete data@monday", ValidArgsFunction: a.completeVolumeSnapshots,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name, snapshot := manifest.CutVolumeSnapshot(args[0])
		c, err := a.client(0)
		if err != nil {
			return err
		}
		if _, err := c.DeleteVolumeSnapshot(cmd.Context(), name, snapshot); err != nil {
			return err
		}
		fmt.Fprintf(a.Streams.Out, "snapshot %s deleted\n", args[0])
		return nil
	}
	return cmd
}
