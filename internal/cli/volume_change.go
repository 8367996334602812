package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// volumeWait are the flags of commands that wait for a volume.
type volumeWait struct {
	noWait  bool
	timeout time.Duration
}

func (f *volumeWait) add(flags *pflag.FlagSet, what string) {
	flags.BoolVar(&f.noWait, "no-wait", false, "do not wait until it is "+what)
	flags.DurationVar(&f.timeout, "timeout", 0, "longest wait, for room on a node too (default: no limit, but no wait for room)")
}

func (a *app) volumeCreate() *cobra.Command {
	var req api.VolumeRequest
	var size, retention, access, limit, backup, kind string
	var wait volumeWait
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a volume of a project, and wait until it is ready", Args: oneArg("volume"),
		Long: `Create a volume of a project, and wait until it is ready. It lies on the node with most room, unless --node names another. --from makes it a
clone of a snapshot, or of what another volume holds now; a clone lies on the node of its origin.

--kind block creates a disk for one virtual machine at a time. The machine formats an empty disk with ext4 and mounts it at the volume's path. Nodes never
read the content.

--from-backup sends the file that 'nearmetal volume backup' wrote, of this site or of another; - is standard input, which needs --size. The volume is
there when its node has read the backup whole. A backup that is cut, damaged, or does not fit is refused, and nothing is left. If the connection breaks
off, the volume waits, and the same command sends the backup again.

If no node has room, the command ends with exit code 5 and the reason. The volume stays, and gets its place as soon as a node has room.`,
		Example: `  nearmetal volume create data --size 10GiB
  nearmetal volume create shared --size 100GiB --access shared --node n1
  nearmetal volume create results --size 100GiB --io-limit 200MiB
  nearmetal volume create experiment --from data@monday
  nearmetal volume create scratch --size 50GiB --kind block
  nearmetal volume create data2 --from-backup data.tar.zst`,
	}
	flags := cmd.Flags()
	flags.StringVar(&size, "size", "", "bound of what it holds, like 10GiB (default of a clone: that of its origin; of a backup: that of the volume that was backed up)")
	flags.Int64Var(&req.Files, "files", 0, "bound of its files and directories (default: one for each 16KiB of its size)")
	flags.StringVar(&kind, "kind", "", "files, a file system, or block, a disk of a virtual machine (default: files; of a clone: that of its origin)")
	flags.StringVar(&access, "access", "", "one-writer, many-readers or shared (default: one-writer)")
	flags.StringVar(&limit, "io-limit", "", "how much each member may read in a second, and how much each may write, like 200MiB, or none (default: none)")
	flags.StringVar(&req.Node, "node", "", "node that it is to lie on (default: the one with most room)")
	flags.StringVar(&retention, "retention", "", "how long it is kept after its deletion, like 24h or 7d; 0 for not at all (default: 1d)")
	flags.StringVar(&req.From, "from", "", "what it begins as, VOLUME@SNAPSHOT or VOLUME (default: it begins empty)")
	flags.StringVar(&backup, "from-backup", "", "file of a backup that it begins as, or - for standard input")
	flags.StringVar(&req.Project, "project", "", "project that owns it (default: the token's)")
	wait.add(flags, "ready")
	_ = cmd.RegisterFlagCompletionFunc("project", a.completeProjects)
	_ = cmd.RegisterFlagCompletionFunc("node", a.completeNodes(1))
	_ = cmd.RegisterFlagCompletionFunc("access", cobra.FixedCompletions(manifest.VolumeAccesses(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(manifest.VolumeKinds(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("from", func(cmd *cobra.Command, _ []string, text string) ([]string, cobra.ShellCompDirective) {
		return a.completeVolumeSnapshots(cmd, nil, text)
	})
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req.Name, req.Access, req.Kind = args[0], api.VolumeAccess(access), api.VolumeKind(kind)
		change, err := volumeFlags(flags, size, access, limit, retention)
		if err != nil {
			return err
		}
		begin(&req, change)
		var from *backupFile
		if flags.Changed("from-backup") {
			if from, err = a.openBackup(backup, &wait, &req); err != nil {
				return err
			}
			defer from.close()
		}
		if err := manifest.CheckVolume(req, manifest.Flags("name")); err != nil {
			return usage("%v", err)
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		var v api.VolumeStatus
		if from != nil {
			v, err = a.createFromBackup(cmd.Context(), c, req, from, wait.timeout)
		} else if v, err = c.CreateVolume(cmd.Context(), req); err == nil && !wait.noWait {
			v, err = a.awaitReady(cmd.Context(), c, v, wait.timeout)
		}
		if err != nil {
			return inFlags(err)
		}
		return out.print(a.Streams.Out, v, func(w io.Writer) { a.printVolume(w, &v) })
	}
	return cmd
}

// begin gives a new volume what flags say about it.
func begin(req *api.VolumeRequest, flags api.VolumeChange) {
	if flags.Size != nil {
		req.Size = *flags.Size
	}
	if flags.IOLimit != nil {
		req.IOLimit = *flags.IOLimit
	}
	req.Retention = flags.Retention
}

// awaitReady waits until a new volume is ready.
func (a *app) awaitReady(ctx context.Context, c *client.Client, v api.VolumeStatus, timeout time.Duration) (api.VolumeStatus, error) {
	return a.awaitVolume(ctx, c, v, timeout, func(v *api.VolumeStatus) (bool, error) {
		if v.DeletedAt != nil {
			return false, deletedMeanwhile(v)
		}
		return v.Phase == api.VolumeReady, noRoomYet(v, timeout)
	})
}

func deletedMeanwhile(v *api.VolumeStatus) error {
	return &exitError{ExitConflict, fmt.Errorf("volume %q was deleted before it was ready", v.Name)}
}

// noRoomYet returns why a volume has no place, unless the user waits for one.
func noRoomYet(v *api.VolumeStatus, timeout time.Duration) error {
	if v.Phase != api.VolumePending || v.Message == "" || v.Undecided || timeout > 0 {
		return nil
	}
	return &exitError{ExitRefused, fmt.Errorf("volume %q has no place yet: %s; it gets one as soon as there is room ('nearmetal volume show %s'), "+
		"or delete it: nearmetal volume delete %s --now", v.Name, v.Message, v.Name, v.Name)}
}

// volumeFlags reads what flags say about a volume.
func volumeFlags(flags *pflag.FlagSet, size, access, limit, retention string) (api.VolumeChange, error) {
	var change api.VolumeChange
	if flags.Changed("size") {
		bytes, err := api.ParseBytes(size)
		if err != nil {
			return change, usage("--size: %v", err)
		}
		change.Size = &bytes
	}
	if flags.Changed("access") {
		kind := api.VolumeAccess(access)
		change.Access = &kind
	}
	if flags.Changed("io-limit") {
		rate, err := parseIOLimit(limit)
		if err != nil {
			return change, usage("--io-limit: %v", err)
		}
		change.IOLimit = &rate
	}
	if flags.Changed("retention") {
		span, err := api.ParseDuration(retention)
		if err != nil {
			return change, usage("--retention: %v", err)
		}
		change.Retention = &span
	}
	return change, nil
}

// parseIOLimit reads a number of bytes per second, or none.
func parseIOLimit(text string) (api.Bytes, error) {
	if text == "none" {
		return 0, nil
	}
	rate, err := api.ParseBytes(text)
	if err == nil && rate == 0 {
		return 0, errors.New("0 would let nobody read or write; write none for no limit")
	}
	return rate, err
}

func (a *app) volumeResize() *cobra.Command {
	var size, retention, access, limit string
	var files int64
	var wait volumeWait
	cmd := &cobra.Command{
		Use: "resize NAME", Aliases: []string{"set"}, Short: "Change the size, the files, the access, the limit of I/O or the retention of a volume", Args: oneArg("volume"),
		Long: `Change the size, the number of files, the access, the limit of I/O or the retention of a volume, and wait until its node has its size. Clusters that
have it attached see the new size at once, and their members are held to a new limit. A volume does not shrink below what it holds.

If its node has no room for it to grow, the command ends with exit code 5 and the reason, and the volume grows as soon as there is room.`,
		Example: `  nearmetal volume resize data --size 20GiB
  nearmetal volume resize data --access many-readers --retention 7d
  nearmetal volume resize data --io-limit 100MiB`,
		ValidArgsFunction: a.completeVolumes(1),
	}
	flags := cmd.Flags()
	flags.StringVar(&size, "size", "", "bound of what it holds, like 20GiB")
	flags.Int64Var(&files, "files", 0, "bound of its files and directories")
	flags.StringVar(&access, "access", "", "one-writer, many-readers or shared")
	flags.StringVar(&limit, "io-limit", "", "how much each member may read in a second, and how much each may write, like 200MiB, or none")
	flags.StringVar(&retention, "retention", "", "how long it is kept after its deletion, like 24h or 7d")
	wait.add(flags, "resized")
	_ = cmd.RegisterFlagCompletionFunc("access", cobra.FixedCompletions(manifest.VolumeAccesses(), cobra.ShellCompDirectiveNoFileComp))
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		change, err := volumeFlags(flags, size, access, limit, retention)
		if err != nil {
			return err
		}
		if flags.Changed("files") {
			change.Files = &files
		}
		if change == (api.VolumeChange{}) {
			return usage("give what to change: --size, --files, --access, --io-limit or --retention; nothing was changed")
		}
		if err := manifest.CheckVolumeChange(change, nil); err != nil {
			return usage("%v", err)
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		v, err := c.ChangeVolume(cmd.Context(), args[0], change)
		if err == nil && !wait.noWait && change.Size != nil {
			v, err = a.awaitVolume(cmd.Context(), c, v, wait.timeout, func(v *api.VolumeStatus) (bool, error) {
				switch {
				case v.Phase == api.VolumePending || !v.Resizing:
					return true, nil
				case v.Message != "" && wait.timeout == 0:
					return false, &exitError{ExitRefused, fmt.Errorf("volume %q does not have its size of %s yet: %s", v.Name, volumeBytes(v.Size), v.Message)}
				}
				return false, nil
			})
		}
		if err != nil {
			return inFlags(err)
		}
		return out.print(a.Streams.Out, v, func(w io.Writer) { a.printVolume(w, &v) })
	}
	return cmd
}

// awaitVolume waits until a volume is as wanted, and shows meanwhile what it waits for. A volume that is gone is an error of the API.
func (a *app) awaitVolume(ctx context.Context, c *client.Client, v api.VolumeStatus, timeout time.Duration, done func(*api.VolumeStatus) (bool, error)) (api.VolumeStatus, error) {
	bounded, cancel := context.WithCancel(ctx)
	if timeout > 0 {
		bounded, cancel = context.WithTimeout(ctx, timeout)
	}
	defer cancel()
	p := a.progress()
	defer p.stop()
	news := watchNews(bounded, c, client.Selection{Kind: api.KindVolume, Name: v.UID})
	for {
		p.say(volumeLine(&v))
		if ok, err := done(&v); ok || err != nil {
			return v, err
		}
		if err := news.wait(bounded, nil); err != nil {
			if bounded.Err() != nil && ctx.Err() == nil {
				return v, &exitError{ExitConflict, fmt.Errorf("volume %q is still %s after %s; see 'nearmetal volume show %s'", v.Name, volumeLine(&v), timeout, v.Name)}
			}
			return v, unlessInterrupted(err, "volume %q is stored, see 'nearmetal volume show %s'", v.Name, v.Name)
		}
		now, err := c.Volume(bounded, v.UID)
		if err != nil {
			return v, err
		}
		v = now
	}
}

// volumeLine is what a volume is doing, in a line.
func volumeLine(v *api.VolumeStatus) string {
	return strings.TrimSuffix(string(v.Phase)+": "+v.Message, ": ")
}
