package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/internal/config"
)

// SiteKeys shows and replaces the keys of a site in its state directory.
type SiteKeys interface {
	Show(dir string) (config.SiteKeys, error)
	Rotate(dir string, ca, secret bool) error
	// Retire returns how many CAs it dropped.
	Retire(dir string) (int, error)
}

func (a *app) siteCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "site", Short: "Show and replace the keys of a site, on the server's machine", Args: cobra.ArbitraryArgs, RunE: needCommand,
		Long: `Show and replace the keys of a site: the CA, which certificates of the server and the nodes are issued by and tokens carry the pin of,
and the secret, from which SSH keys of clusters and all other keys are derived. These commands work on the server's state
directory and need its owner's rights.`,
	}
	cmd.AddCommand(a.siteShow(), a.siteRotate(), a.siteRetire())
	return cmd
}

func (a *app) siteShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show", Short: "List the CAs and secrets of a site", Args: noArgs}
	var dir string
	a.stateFlag(cmd, &dir, "state directory of the server")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		keys, err := a.Commands.Keys.Show(a.stateDir(cmd, dir))
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, keys, func(w io.Writer) {
			t := newTable(w, "KIND", "IN USE", "SINCE", "EXPIRES", "PIN")
			for i, ca := range keys.CAs {
				t.row("ca", yesNo(i == 0), ca.MadeAt.Local().Format(timeFormat), a.until(&ca.ExpiresAt), ca.Pin)
			}
			for i, since := range keys.SecretsSince {
				text := "the first start"
				if !since.IsZero() {
					text = since.Local().Format(timeFormat)
				}
				t.row("secret", yesNo(i == len(keys.SecretsSince)-1), text, "", "")
			}
			t.flush()
		})
	}
	return cmd
}

func (a *app) siteRotate() *cobra.Command {
	var dir string
	var ca, secret bool
	cmd := &cobra.Command{
		Use: "rotate", Short: "Replace the keys of a site, without stopping clusters", Args: noArgs,
		Long: `Replace the CA and the secret of a site. Stop the server first and start it again afterwards; clusters, their jobs and logins go on.

The new CA issues all certificates from then on. Nodes get one within 8 hours. Users' token files work on with the pin of the former CA, and
nodes with certificates of it, until 'nearmetal site retire'. Replace token files before: make new tokens, or change the pin in
the old ones, which is what follows the last dot.

The new secret is for all that is made from then on. Clusters that exist keep the SSH keys derived from the former one until they are deleted.
Passwords of BMCs are sealed with the new secret when they are entered again.`,
		Example: "  systemctl stop nearmetal-server && nearmetal site rotate && systemctl start nearmetal-server",
	}
	a.stateFlag(cmd, &dir, "state directory of the server")
	cmd.Flags().BoolVar(&ca, "ca", false, "replace the CA only")
	cmd.Flags().BoolVar(&secret, "secret", false, "replace the secret only")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !ca && !secret {
			ca, secret = true, true
		}
		if err := a.Commands.Keys.Rotate(a.stateDir(cmd, dir), ca, secret); err != nil {
			return err
		}
		what := "CA and a new secret"
		switch {
		case !secret:
			what = "CA"
		case !ca:
			what = "secret"
		}
		fmt.Fprintf(a.Streams.Out, "the site has a new %s; start the server\n", what)
		return nil
	}
	return cmd
}

func (a *app) siteRetire() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "retire", Short: "Retire former CAs of a site", Args: noArgs,
		Long: `Retire all CAs of a site but the newest. Stop the server first and start it again afterwards. Token files with the pin of a former CA and
certificates that it has issued are of no use from then on: wait until the nodes have renewed theirs ('nearmetal node show'), 8 hours after
the rotation, and users have new tokens. After a theft of the CA's key, retire it at once and enroll the nodes again.`,
	}
	a.stateFlag(cmd, &dir, "state directory of the server")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dropped, err := a.Commands.Keys.Retire(a.stateDir(cmd, dir))
		if err != nil {
			return err
		}
		fmt.Fprintf(a.Streams.Out, "%s retired; start the server\n", count(dropped, "former CA"))
		return nil
	}
	return cmd
}

// count is a number of things in words.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what + " is"
	}
	return fmt.Sprintf("%d %ss are", n, what)
}
