package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/resource"
)

func (a *app) volumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "volume", Aliases: []string{"vol"}, Short: "Create, show, attach, resize, snapshot, back up and delete volumes", Args: cobra.ArbitraryArgs, RunE: needCommand,
	}
	cmd.Long = cmd.Short + `. A volume is a file system of a bounded size on the disk of one node, or a block device, which is the
disk of one virtual machine. It belongs to a project and outlives clusters. It can be resized, has snapshots, and can begin as a snapshot of another volume or as a backup.

  one-writer     one cluster writes, others may read at the same time
  many-readers   all clusters read, and none writes
  shared         all clusters write

A deleted volume is kept for its retention, and 'nearmetal volume undelete' brings it back until then. It counts against the project's quota and
keeps its name until it is purged.`
	cmd.AddCommand(a.volumeCreate(), a.volumeList(), a.volumeShow(), a.volumeResize(), a.volumeSnapshotCommand(), a.volumeRestore("restore NAME@SNAPSHOT"),
		a.volumeAttach(), a.volumeDetach(), a.volumeBackup(), a.volumeDelete(), a.volumeUndelete())
	return a.connects(cmd)
}

func (a *app) volumeList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List volumes", Args: noArgs,
		Long: "List volumes, also those that are deleted and not yet purged. ATTACHED names the clusters that ask for them. A volume clusterhome-UID is the home of its cluster, and is deleted with it.",
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		all, err := c.Volumes(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, all, func(w io.Writer) {
			projects := severalProjects(all, func(v api.VolumeStatus) string { return v.Project })
			t := newTable(w, projects.row("NAME", "PROJECT", "KIND", "SIZE", "USED", "FILES", "ACCESS", "PHASE", "NODE", "ATTACHED")...)
			for i := range all {
				v := &all[i]
				t.row(projects.row(v.Name, v.Project, string(v.Kind), volumeBytes(v.Size), usedText(v), filesText(v), string(v.Access), string(v.Phase), v.Node,
					strings.Join(attachedTo(v), ","))...)
			}
			t.flush()
		})
	}
	return cmd
}

func volumeBytes(b api.Bytes) string { return resource.Storage.Number(int64(b)) }

// usedText is what a volume holds, "-" where that is not known.
func usedText(v *api.VolumeStatus) string {
	if v.Used == nil {
		return "-"
	}
	return volumeBytes(*v.Used)
}

// filesText is how many files a volume holds.
func filesText(v *api.VolumeStatus) string {
	if v.UsedFiles == nil || v.Kind == api.VolumeBlock {
		return "-"
	}
	return strconv.FormatInt(*v.UsedFiles, 10)
}

// attachedTo names the clusters that ask for a volume.
func attachedTo(v *api.VolumeStatus) []string {
	var names []string
	for _, c := range v.Clusters {
		name := c.Cluster
		switch {
		case c.Detaching:
			name += " (detaching)"
		case c.ReadOnly:
			name += " (read-only)"
		}
		names = append(names, name)
	}
	if v.Cluster != "" && len(names) == 0 { // its home stays until it is purged
		names = append(names, v.Cluster+" (deleted)")
	}
	return names
}

func (a *app) volumeShow() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show a volume and its snapshots", Args: oneArg("volume"), ValidArgsFunction: a.completeVolumes(1),
		Example: "  nearmetal volume show data",
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		v, err := c.Volume(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, v, func(w io.Writer) { a.printVolume(w, &v) })
	}
	return cmd
}

func (a *app) printVolume(w io.Writer, v *api.VolumeStatus) {
	files := ""
	if v.Kind != api.VolumeBlock {
		files = strconv.FormatInt(v.Files, 10)
	}
	if files != "" && v.UsedFiles != nil {
		files = strconv.FormatInt(*v.UsedFiles, 10) + " of " + files
	}
	size := volumeBytes(v.Size)
	if v.Resizing {
		size += " (has " + volumeBytes(v.Held) + ")"
	}
	owner := ""
	switch {
	case v.Cluster != "":
		owner = "of cluster " + v.Cluster + ", deleted with it"
	case v.Home:
		owner = "of " + v.User
	}
	purge := ""
	if v.PurgeAt != nil {
		purge = v.PurgeAt.UTC().Format(time.RFC3339)
	}
	fields(w, "Name", v.Name, "UID", v.UID, "Project", otherProject(v.Project), "Home", owner, "Phase", string(v.Phase), "Message", v.Message, "Kind", string(v.Kind),
		"Size", size, "Used", usedText(v), "Files", files, "Access", string(v.Access), "I/O limit", ioLimitText(v), "Node", v.Node, "Wanted node", v.WantedNode, "From", fromText(v), "Import", importText(v.Import),
		"Attached to", strings.Join(attachedTo(v), ", "), "Restore", restoreText(v.Restore), "Retention", v.Retention.String(), "Purged at", purge,
		"Created", a.age(v.CreatedAt)+" ago")
	if len(v.Snapshots) > 0 {
		_, _ = io.WriteString(w, "\n")
		a.printVolumeSnapshots(w, v.Snapshots)
	}
}

// ioLimitText is what each member of a volume may read and write, and what of that is not bounded.
func ioLimitText(v *api.VolumeStatus) string {
	if v.IOLimit == 0 {
		return ""
	}
	text := fmt.Sprintf("%s/s read and %[1]s/s written by each member", v.IOLimit)
	if v.IOUnlimited != "" {
		text += fmt.Sprintf("; node %s does not limit %s", v.Node, v.IOUnlimited)
	}
	return text
}

// fromText is what a volume began as.
func fromText(v *api.VolumeStatus) string {
	if v.FromBackup {
		return "a backup"
	}
	return v.From
}

// importText is how far the backup is that a volume is made of.
func importText(i *api.VolumeImport) string {
	switch {
	case i == nil:
		return ""
	case i.Receiving:
		return volumeBytes(i.Received) + " received"
	default:
		return "waits for the backup"
	}
}

func restoreText(r *api.VolumeRestore) string {
	switch {
	case r == nil:
		return ""
	case r.Done:
		return "from " + r.Snapshot + ", done"
	default:
		return "from " + r.Snapshot + ", not done yet"
	}
}

func (a *app) printVolumeSnapshots(w io.Writer, snapshots []api.VolumeSnapshot) {
	t := newTable(w, "SNAPSHOT", "READY", "HOLDS", "AGE")
	for _, s := range snapshots {
		holds := "-"
		if s.Ready {
			holds = volumeBytes(s.Bytes)
		}
		t.row(s.Name, yesNo(s.Ready), holds, a.age(s.CreatedAt))
	}
	t.flush()
}

// completeVolumes completes names of volumes, short ones where they are of the user's own project; at most so many, 0: any number.
func (a *app) completeVolumes(most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
			all, own, err := volumesAndOwn(ctx, c)
			var names []string
			for i := range all {
				names = append(names, shortVolume(&all[i], own))
			}
			return names, err
		})
	}
}

// completeVolumeSnapshots completes NAME@SNAPSHOT.
func (a *app) completeVolumeSnapshots(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		all, own, err := volumesAndOwn(ctx, c)
		var names []string
		for i := range all {
			for _, s := range all[i].Snapshots {
				names = append(names, shortVolume(&all[i], own)+"@"+s.Name)
			}
		}
		return names, err
	})
}

func volumesAndOwn(ctx context.Context, c *client.Client) (all []api.VolumeStatus, own string, err error) {
	if all, err = c.Volumes(ctx); err != nil {
		return nil, "", err
	}
	if who, err := c.Whoami(ctx); err == nil {
		own = who.Project
	}
	return all, own, nil
}

func shortVolume(v *api.VolumeStatus, own string) string {
	if v.Project == own {
		return v.Name
	}
	return fullName(v.Project, v.Name)
}
