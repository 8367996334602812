package cli

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
)

// nodeBMCPassword shows the login at a BMC.
func (a *app) nodeBMCPassword() *cobra.Command {
	cmd := &cobra.Command{
		Use: "bmc-password NAME", Short: "Print user and password of a machine's BMC", Args: oneArg("node"), ValidArgsFunction: a.completeMachines(1),
		Long: `Print user and password of a machine's BMC, as they are now. The password changes after each member of a cluster that had the machine whole
(server --rotate-bmc-passwords). While it is being changed, either of the two that are printed may be right.

Only administrators may see it, and each time is in the audit log.`,
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		login, err := c.BMCLogin(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, login, func(w io.Writer) {
			fields(w, "User", login.User, "Password", login.Password, "Or password", login.Next)
		})
	}
	return cmd
}

// printBMC writes what is known of a machine's BMC apart from power.
func (a *app) printBMC(w io.Writer, b *api.MachineBMC) {
	if b == nil {
		return
	}
	host := map[api.HostInterface]string{
		api.HostClosed: "closed to the machine", api.HostOpen: "open to the machine", api.HostFixed: "open to the machine, and can't be closed",
	}[b.Host]
	if host != "" && !b.HostAt.IsZero() {
		host += ", " + a.age(b.HostAt) + " ago"
	}
	watched := "" // of interest where the interface is not closed
	switch {
	case b.Host != api.HostFixed:
	case b.Baseline != nil:
		watched = "its users are watched while members have the machine"
	default:
		watched = "its users can't be watched: " + b.Unwatched
	}
	rotated := ""
	if b.RotatedAt != nil {
		rotated = "changed " + a.age(*b.RotatedAt) + " ago"
	}
	if b.Unrotated != "" {
		rotated = "can't be changed: " + b.Unrotated
	}
	fields(w, "BMC interface", host, "Why open", b.HostMessage, "BMC users", watched, "Changed there", b.Drift, "BMC password", rotated)
}
