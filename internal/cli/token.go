package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func (a *app) tokenCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Make, list and revoke tokens", Args: cobra.ArbitraryArgs, RunE: needCommand}
	cmd.AddCommand(a.tokenCreate(), a.tokenList(), a.tokenRevoke())
	return a.connects(cmd)
}

// roles are those a token can have.
var roles = []string{string(api.RoleAdmin), string(api.RoleMember), string(api.RoleViewer), string(api.RoleAgent)}

func (a *app) tokenCreate() *cobra.Command {
	var req api.TokenRequest
	var role, file string
	cmd := &cobra.Command{
		Use: "create --user USER --role ROLE", Short: "Make a token and print its secret, once", Args: noArgs,
		Long: `Make a token. The secret is printed only once, to standard output or to a new file that only its owner can read (--out). Its user saves it
as the file that NEARMETAL_TOKEN_FILE names.

Roles: admin may do everything in every project; member everything in one project but change its quota; viewer only reads one
project; agent opens the agents' stream and nothing else.`,
		Example: "  nearmetal token create --user ada --project fluids --role member --valid-for 90d --out ada.token",
	}
	flags := cmd.Flags()
	flags.StringVar(&req.User, "user", "", "user it is for")
	flags.StringVar(&req.Project, "project", "", "project it is for (for members and viewers)")
	flags.StringVar(&role, "role", "", "admin, member, viewer or agent")
	flags.Var(span{&req.ValidFor}, "valid-for", "how long it is valid, like 90d (default: until it is revoked)")
	flags.StringVar(&file, "out", "", "new file to write the secret to")
	out := outputFlag(cmd)
	// Only fail for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(roles, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("project", a.completeProjects)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		req.Role = api.Role(role)
		switch {
		case req.User == "":
			return usage("name the user it is for: --user NAME")
		case role == "":
			return usage("say what its bearer may do: --role admin, member, viewer or agent")
		case !slices.Contains(roles, role):
			return usage("--role: %q is no role; use admin, member, viewer or agent", role)
		case req.Project == "" && (req.Role == api.RoleMember || req.Role == api.RoleViewer):
			return usage("a %s's token is for one project; name it: --project NAME", role)
		case cmd.Flags().Changed("valid-for") && req.ValidFor == 0:
			return usage("--valid-for: 0 makes a token of no use; omit the flag for a token that is valid until it is revoked")
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		return a.createToken(cmd.Context(), c, req, file, out)
	}
	return cmd
}

// createToken makes the place for the secret first: a token whose secret nobody has must not stay behind.
func (a *app) createToken(ctx context.Context, c *client.Client, req api.TokenRequest, path string, out *format) error {
	if path == "" {
		t, err := c.CreateToken(ctx, req)
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, t, func(w io.Writer) { fmt.Fprintln(w, printable(t.Token)) })
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return usage("--out: %s exists already; no token was made", path)
	}
	if err != nil {
		return usage("--out: %v; no token was made", err)
	}
	t, err := c.CreateToken(ctx, req)
	if err != nil {
		_ = f.Close()
		_ = os.Remove(path)
		return err
	}
	_, err = fmt.Fprintln(f, t.Token)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = os.Remove(path)
		if undo := c.RevokeToken(ctx, t.ID); undo != nil {
			return fmt.Errorf("the secret of token %s could not be kept: %w; revoke it: nearmetal token revoke %s (%w)", t.ID, err, t.ID, undo)
		}
		return fmt.Errorf("the secret could not be kept: %w; the token was revoked", err)
	}
	return out.print(a.Streams.Out, t.TokenInfo, func(w io.Writer) {
		fmt.Fprintf(w, "token %s for %s is in %s\n", t.ID, printable(t.User), path)
	})
}

func (a *app) tokenList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List tokens, without their secrets", Args: noArgs}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		all, err := c.Tokens(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, all, func(w io.Writer) {
			t := newTable(w, "ID", "USER", "PROJECT", "ROLE", "AGE", "EXPIRES")
			for _, k := range all {
				expires := a.until(k.ExpiresAt)
				if expires == "now" {
					expires = "expired"
				}
				t.row(k.ID, k.User, k.Project, string(k.Role), a.age(k.CreatedAt), expires)
			}
			t.flush()
		})
	}
	return cmd
}

func (a *app) tokenRevoke() *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke ID...", Short: "Make tokens void at once", Args: someArgs("tokens to revoke"), ValidArgsFunction: a.completeTokens,
		Long: "Make tokens void at once, also for what was begun with them and still runs.",
	}
	return a.onEach(cmd, func(ctx context.Context, c *client.Client, id string) (string, error) {
		return "token " + id + " revoked", c.RevokeToken(ctx, id)
	})
}

func (a *app) whoamiCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "whoami", Short: "Show what the server takes you for", Args: noArgs}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		who, err := c.Whoami(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, who, func(w io.Writer) {
			fields(w, "User", who.User, "Project", who.Project, "Role", string(who.Role))
		})
	}
	return a.connects(cmd)
}
