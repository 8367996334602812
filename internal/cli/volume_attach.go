package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func (a *app) volumeAttach() *cobra.Command {
	var noWait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "attach NAME[:PATH][:ro] CLUSTER", Short: "Attach a volume to a running cluster",
		Long: `Attach a volume to all members of a cluster while they run, at /volumes/NAME or at PATH, and read-only with ro, as --volume of 'nearmetal cluster
create' does. The command waits until all members have the volume. Members that come later get it when they start. A cluster that waits for room
gets it with its place.

Members must run on the stack "container" or "vm", on nodes that reach the volume. A paused virtual machine gets it when its cluster is resumed. A home can't be attached to a cluster that exists.`,
		Example: `  nearmetal volume attach data c1
  nearmetal volume attach reference:/ref:ro c1`,
		Args: volumeAndCluster, ValidArgsFunction: a.completeVolumeAndCluster(false),
	}
	attachFlags(cmd, &noWait, &timeout, "have the volume")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		v, err := parseVolume(args[0])
		if err != nil {
			return err
		}
		v.Name = inProjectOf(v.Name, args[1])
		c, err := a.client(0)
		if err != nil {
			return err
		}
		cl, err := c.AttachVolume(cmd.Context(), args[1], v)
		if err != nil {
			return unknownOutcome(err, args[1])
		}
		if !noWait {
			if cl, err = a.await(cmd.Context(), c, cl, untilAttached(v.Name, timeout)); err != nil {
				return err
			}
		}
		return out.print(a.Streams.Out, cl, func(w io.Writer) { fmt.Fprintln(w, attachedText(cl, v, noWait)) })
	}
	return cmd
}

func (a *app) volumeDetach() *cobra.Command {
	var noWait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "detach NAME CLUSTER", Short: "Detach a volume from a running cluster",
		Long: `Detach a volume from all members of a cluster while they run, and wait until no member has it any more. A member that has files of the volume open
keeps it, and the command says which processes these are; it goes on once they have ended or closed the files. With --timeout the command ends before
that; the volume is detached nevertheless as soon as it can be. Until then it is in use: it can't be deleted, and nobody else becomes its writer.

A home can't be detached from a running cluster.`,
		Example: `  nearmetal volume detach data c1
  nearmetal volume detach data c1 --timeout 1m`,
		Args: volumeAndCluster, ValidArgsFunction: a.completeVolumeAndCluster(true),
	}
	attachFlags(cmd, &noWait, &timeout, "have let go of the volume")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := inProjectOf(args[0], args[1])
		c, err := a.client(0)
		if err != nil {
			return err
		}
		cl, err := c.DetachVolume(cmd.Context(), args[1], name)
		if err != nil {
			return unknownOutcome(err, args[1])
		}
		if !noWait {
			if cl, err = a.await(cmd.Context(), c, cl, untilDetached(name, timeout)); err != nil {
				return err
			}
		}
		return out.print(a.Streams.Out, cl, func(w io.Writer) {
			if noWait && slices.Contains(cl.Status.DetachingVolumes, name) {
				fmt.Fprintf(w, "Volume %q is being detached from cluster %q; see 'nearmetal cluster show %s'.\n", name, ref(cl), ref(cl))
				return
			}
			fmt.Fprintf(w, "Volume %q is detached from cluster %q.\n", name, ref(cl))
		})
	}
	return cmd
}

func attachFlags(cmd *cobra.Command, noWait *bool, timeout *time.Duration, what string) {
	cmd.Flags().BoolVar(noWait, "no-wait", false, "do not wait until all members "+what)
	cmd.Flags().Var(timeoutFlag(timeout, 0), "timeout", "how long to wait (0: no limit)")
}

// volumeAndCluster checks that a command has the names of a volume and of a cluster.
func volumeAndCluster(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) < 2 || args[0] == "" || args[1] == "":
		return usage("name the volume and the cluster: '%s'", cmd.UseLine())
	case len(args) > 2:
		return usage("'%s' takes one volume and one cluster, %q is one too many", cmd.CommandPath(), args[2])
	default:
		return nil
	}
}

// inProjectOf returns the name of a volume within the project of a cluster, where both are named with it.
func inProjectOf(volume, cluster string) string {
	if project, name, ok := strings.Cut(volume, "."); ok && strings.HasPrefix(cluster, project+".") {
		return name
	}
	return volume
}

// completeVolumeAndCluster completes a volume and then a cluster: for detach one that has the volume.
func (a *app) completeVolumeAndCluster(detach bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(args) == 0:
			return a.completeVolumes(1)(cmd, args, typed)
		case len(args) > 1:
			return nil, cobra.ShellCompDirectiveNoFileComp
		case !detach:
			return a.completeClusters(0)(cmd, nil, typed)
		}
		return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
			v, err := c.Volume(ctx, args[0])
			var names []string
			for _, cl := range v.Clusters {
				names = append(names, cl.Cluster)
			}
			return names, err
		})
	}
}

// untilAttached waits until every member has a volume.
func untilAttached(name string, timeout time.Duration) await {
	seen := false
	return await{what: "having volume " + name, timeout: timeout, line: volumeChangesLine, done: func(cl api.Cluster) (bool, error) {
		asked := slices.ContainsFunc(cl.Spec.Volumes, func(v api.VolumeAttachment) bool { return v.Name == name })
		if seen && !asked {
			return true, &exitError{ExitConflict, fmt.Errorf("volume %q was detached from cluster %q meanwhile", name, ref(cl))}
		}
		seen = seen || asked
		return seen && len(changing(cl, name)) == 0, nil
	}}
}

// untilDetached waits until no member has a volume.
func untilDetached(name string, timeout time.Duration) await {
	seen := false
	return await{what: "without volume " + name, timeout: timeout, line: volumeChangesLine, done: func(cl api.Cluster) (bool, error) {
		asked := slices.ContainsFunc(cl.Spec.Volumes, func(v api.VolumeAttachment) bool { return v.Name == name })
		if seen && asked {
			return true, &exitError{ExitConflict, fmt.Errorf("volume %q was attached to cluster %q again meanwhile", name, ref(cl))}
		}
		seen = seen || !asked
		return seen && !slices.Contains(cl.Status.DetachingVolumes, name), nil
	}}
}

// volumesToo makes a wait go on until members have the volumes that their cluster asks for, and no others.
func (w *await) volumesToo() {
	done := w.done
	w.line = volumeChangesLine
	w.done = func(cl api.Cluster) (bool, error) {
		over, err := done(cl)
		return over && volumeChangesLine(cl) == "" && len(cl.Status.DetachingVolumes) == 0, err
	}
}

// changing returns the members that are about to have a volume, or to let go of it.
func changing(cl api.Cluster, name string) []string {
	var members []string
	for _, m := range cl.Status.Members {
		if slices.ContainsFunc(m.VolumeChanges, func(c api.MemberVolumeChange) bool { return c.Name == name }) {
			members = append(members, m.Name)
		}
	}
	return members
}

// volumeChangesLine says what the volumes of a cluster's members wait for: the first reason, and of how many members.
func volumeChangesLine(cl api.Cluster) string {
	count, why := 0, ""
	for _, m := range cl.Status.Members {
		if len(m.VolumeChanges) > 0 {
			count++
			if text := volumeChangesText(m.VolumeChanges); why == "" {
				why = m.Name + ": " + text
			}
		}
	}
	switch count {
	case 0:
		return ""
	case 1:
		return why
	default:
		return fmt.Sprintf("%s, and %d more", why, count-1)
	}
}

// volumeChangesText describes what changes of a member's volumes.
func volumeChangesText(changes []api.MemberVolumeChange) string {
	var parts []string
	message := ""
	for _, c := range changes {
		parts = append(parts, c.Change+" volume "+c.Name)
		if c.Message != "" {
			message = ": " + c.Message
		}
	}
	return strings.Join(parts, ", ") + message
}

// attachedText says what became of an attachment.
func attachedText(cl api.Cluster, v api.VolumeAttachment, noWait bool) string {
	at := v.MountPath()
	if v.ReadOnly {
		at += ", read-only"
	}
	switch {
	case !slices.ContainsFunc(cl.Status.Members, func(m api.MemberStatus) bool { return m.Node != "" }):
		return fmt.Sprintf("Cluster %q is %s; its members get volume %q with their places, at %s.", ref(cl), cl.Status.Phase, v.Name, at)
	case noWait && len(changing(cl, v.Name)) > 0:
		return fmt.Sprintf("Volume %q is being attached to cluster %q at %s; see 'nearmetal cluster show %s'.", v.Name, ref(cl), at, ref(cl))
	default:
		return fmt.Sprintf("Volume %q is attached to cluster %q at %s.", v.Name, ref(cl), at)
	}
}
