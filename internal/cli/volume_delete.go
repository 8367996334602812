package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// volumeDeletion are the flags of a deletion.
type volumeDeletion struct {
	now, yes, noWait bool
}

func (a *app) volumeDelete() *cobra.Command {
	var f volumeDeletion
	cmd := &cobra.Command{
		Use: "delete NAME...", Aliases: []string{"rm"}, Short: "Delete volumes",
		Long: `Delete volumes. A deleted volume is kept for its retention, and 'nearmetal volume undelete' brings it back until then. With --now it is wiped at
once, and the command waits until its node has confirmed that nothing is left. A volume that holds files is wiped at once only if you agree to
lose them, or with --yes. A volume that a cluster has attached is not deleted.`,
		Example: `  nearmetal volume delete data
  nearmetal volume delete data --now`,
		ValidArgsFunction: a.completeVolumes(0),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || slices.Contains(args, "") {
				return usage("name the volumes to delete; nothing was deleted ('nearmetal volume list' lists the volumes)")
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.now, "now", false, "wipe the volume now instead of keeping it for its retention")
	flags.BoolVarP(&f.yes, "yes", "y", false, "do not ask before files are lost, with --now")
	flags.BoolVar(&f.noWait, "no-wait", false, "do not wait until it is wiped, with --now")
	return a.onEach(cmd, func(ctx context.Context, c *client.Client, name string) (string, error) {
		return a.deleteVolume(ctx, c, name, &f)
	})
}

func (a *app) deleteVolume(ctx context.Context, c *client.Client, name string, f *volumeDeletion) (string, error) {
	if f.now && !f.yes {
		if err := a.confirmVolume(ctx, c, name); err != nil {
			return "", err
		}
	}
	v, err := c.DeleteVolume(ctx, name, f.now)
	switch {
	case err != nil:
		return "", err
	case f.now && f.noWait:
		return fmt.Sprintf("volume %s is being wiped", name), nil
	case !f.now:
		return fmt.Sprintf("volume %s deleted; it is kept until %s ('nearmetal volume undelete %s' brings it back)", name, v.PurgeAt.UTC().Format(time.RFC3339), name), nil
	}
	_, err = a.awaitVolume(ctx, c, v, 0, func(v *api.VolumeStatus) (bool, error) {
		if v.DeletedAt == nil {
			return false, &exitError{ExitConflict, fmt.Errorf("volume %q was undeleted before it was wiped", v.Name)}
		}
		return false, nil
	})
	if client.HasCode(err, "volume_not_found") {
		return fmt.Sprintf("volume %s deleted and wiped", name), nil
	}
	return "", err
}

// confirmVolume returns nil when a volume is known to be empty, or the user agrees to lose what it holds.
func (a *app) confirmVolume(ctx context.Context, c *client.Client, name string) error {
	v, err := c.Volume(ctx, name)
	if err != nil {
		return err
	}
	holds := ""
	switch {
	case v.Node == "" || v.Phase == api.VolumeImporting: // it was never made
		return nil
	case v.UsedFiles == nil:
		holds = "can't be inspected (" + volumeLine(&v) + ")"
	case *v.UsedFiles == 0 && len(v.Snapshots) == 0:
		return nil
	default:
		holds = fmt.Sprintf("holds %s (%s)", plural(int(*v.UsedFiles), "file"), volumeBytes(*v.Used))
		if n := len(v.Snapshots); n > 0 {
			holds += " and " + plural(n, "snapshot")
		}
	}
	in, ok := a.Streams.In.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return &exitError{ExitUsage, fmt.Errorf("volume %q was not deleted: it %s, which would be lost; repeat the command with --yes, or without --now", name, holds)}
	}
	fmt.Fprintf(a.Streams.Err, "Volume %q %s, which will be lost.\nWipe it? [y/N] ", name, holds)
	agreed, err := answeredYes(ctx, in)
	if err != nil {
		fmt.Fprintln(a.Streams.Err)
		return fmt.Errorf("volume %q was not deleted: %w", name, err)
	}
	if !agreed {
		return &exitError{ExitFailed, fmt.Errorf("volume %q was not deleted", name)}
	}
	return nil
}

func (a *app) volumeUndelete() *cobra.Command {
	cmd := &cobra.Command{
		Use: "undelete NAME...", Short: "Bring back deleted volumes whose retention is not over",
		Example: "  nearmetal volume undelete data", ValidArgsFunction: a.completeVolumes(0),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || slices.Contains(args, "") {
				return usage("name the volumes to bring back ('nearmetal volume list' lists the volumes)")
			}
			return nil
		},
	}
	return a.onEach(cmd, func(ctx context.Context, c *client.Client, name string) (string, error) {
		v, err := c.UndeleteVolume(ctx, name)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("volume %s is back (%s)", name, volumeLine(&v)), nil
	})
}
