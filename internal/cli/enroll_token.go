package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func (a *app) enrollTokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "enroll-token", Short: "Create, list and delete enrollment tokens", Args: cobra.ArbitraryArgs, RunE: needCommand,
	}
	cmd.AddCommand(a.enrollTokenCreate(), a.enrollTokenList(), a.enrollTokenDelete())
	return cmd
}

func (a *app) enrollTokenCreate() *cobra.Command {
	var req api.EnrollTokenRequest
	var f bmcFlags
	var file string
	cmd := &cobra.Command{
		Use: "create --prefix PREFIX", Short: "Create an enrollment token and print its secret, once", Args: noArgs,
		Long: `Create an enrollment token, for nodes that run an agent or for machines that boot from this site.

The agent of a node whose name begins with PREFIX enrolls the node with it ('nearmetal agent --enroll-token-file FILE'). An
administrator then approves the node ('nearmetal node approve NAME'), unless the token does (--approve).

A machine that carries the secret enrolls itself when it boots on the provisioning network, under the name PREFIX1, PREFIX2 and so on.
The secret is an SMBIOS OEM string or asset tag that reads "nearmetal-enroll:SECRET"; what follows the last dot may be omitted
there. The power flags apply to all of these machines. Inspection finds the addresses of their BMCs.`,
		Example: "  nearmetal node enroll-token create --prefix n --uses 16 --approve --out enroll.token\n" +
			"  nearmetal node enroll-token create --prefix rack1- --uses 40 --power ipmi --bmc-user admin --bmc-password-file bmc.pw",
	}
	flags := cmd.Flags()
	flags.StringVar(&req.Prefix, "prefix", "", "first part of the names")
	flags.IntVar(&req.Uses, "uses", 1, "how many machines or nodes it can enroll")
	flags.BoolVar(&req.Approve, "approve", false, "approve the nodes that it enrolls")
	flags.StringVar(&file, "out", "", "new file to write the secret to")
	flags.Var(span{&req.ValidFor}, "valid-for", "how long it is valid, like 7d (default: 1d)")
	f.add(cmd)
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if req.Prefix == "" {
			return usage("give the first part of the machines' names: --prefix PREFIX")
		}
		req.Power = f.control()
		var err error
		if req.Password, err = a.password(&f); err != nil {
			return err
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		if file == "" {
			t, err := c.CreateEnrollToken(cmd.Context(), req)
			if err != nil {
				return err
			}
			return out.print(a.Streams.Out, t, func(w io.Writer) { fmt.Fprintln(w, printable(t.Secret)) })
		}
		var t api.EnrollmentToken
		err = secretInto(file, func() (made madeSecret, err error) {
			t, err = c.CreateEnrollToken(cmd.Context(), req)
			return madeSecret{t.ID, t.Secret, func() error { return c.DeleteEnrollToken(cmd.Context(), t.ID) }, "nearmetal node enroll-token delete"}, err
		})
		if err != nil {
			return err
		}
		t.Secret = ""
		return out.print(a.Streams.Out, t, func(w io.Writer) { fmt.Fprintf(w, "enrollment token %s is in %s\n", t.ID, file) })
	}
	return cmd
}

func (a *app) enrollTokenList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List enrollment tokens, without their secrets", Args: noArgs}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		all, err := c.EnrollTokens(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, all, func(w io.Writer) {
			t := newTable(w, "ID", "PREFIX", "USES LEFT", "APPROVES", "POWER", "AGE", "EXPIRES", "BY")
			for i := range all {
				k := &all[i]
				expires := a.until(&k.ExpiresAt)
				if expires == "now" {
					expires = "expired"
				}
				t.row(k.ID, k.Prefix, fmt.Sprint(k.Uses), yesNo(k.Approve), string(k.Power.Kind), a.age(k.CreatedAt), expires, k.By)
			}
			t.flush()
		})
	}
	return cmd
}

func (a *app) enrollTokenDelete() *cobra.Command {
	cmd := &cobra.Command{Use: "delete ID...", Short: "Revoke enrollment tokens immediately", Args: someArgs("enrollment tokens to delete"), ValidArgsFunction: a.completeEnrollTokens}
	return a.onEach(cmd, func(ctx context.Context, c *client.Client, id string) (string, error) {
		return "enrollment token " + id + " deleted", c.DeleteEnrollToken(ctx, id)
	})
}
