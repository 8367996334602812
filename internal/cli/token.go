package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func (a *app) tokenCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Create, list and revoke tokens", Args: cobra.ArbitraryArgs, RunE: needCommand}
	cmd.AddCommand(a.tokenCreate(), a.tokenList(), a.tokenRevoke())
	return a.connects(cmd)
}

// roles are those a token can have.
var roles = []string{string(api.RoleAdmin), string(api.RoleMember), string(api.RoleViewer)}

func (a *app) tokenCreate() *cobra.Command {
	var req api.TokenRequest
	var role, file string
	var verbs []string
	cmd := &cobra.Command{
		Use: "create --user USER --role ROLE", Short: "Create a token and print its secret, once", Args: noArgs,
		Long: `Create a token. The secret is printed only once, to standard output or to a new file that only its owner can read (--out). Its user saves it
as the file that NEARMETAL_TOKEN_FILE names.

Roles: admin may do everything in every project; member everything in one project but change its quota; viewer only reads one
project.

A token ends after 90 days, or after --valid-for; there is none without an end. It can be limited to less than its role allows:

  --verb     read: see things. run: submit and cancel jobs, reach members (ssh, cp). change: create, change and delete clusters.
             administer: what is the site's. Every token has read.
  --cluster  names of clusters, with * for any characters. For the token, clusters with other names do not exist.`,
		Example: `  nearmetal token create --user ada --project fluids --role member --out ada.token
  nearmetal token create --user ci --project fluids --role member --verb run --cluster 'ci-*' --valid-for 30d --out ci.token
  nearmetal token create --user dashboard --role admin --verb read --out dashboard.token`,
	}
	flags := cmd.Flags()
	flags.StringVar(&req.User, "user", "", "user it is for")
	flags.StringVar(&req.Project, "project", "", "project it is for (for members and viewers)")
	flags.StringVar(&role, "role", "", "admin, member or viewer")
	flags.Var(span{&req.ValidFor}, "valid-for", "how long it is valid, like 30d, at most 3650d (default: 90d)")
	flags.StringSliceVar(&verbs, "verb", nil, "limit it to read, run, change or administer, may be repeated")
	flags.StringSliceVar(&req.Clusters, "cluster", nil, "limit it to clusters with this name or pattern, like 'ci-*', may be repeated")
	flags.StringVar(&file, "out", "", "new file to write the secret to")
	out := outputFlag(cmd)
	// Only fail for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(roles, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("project", a.completeProjects)
	_ = cmd.RegisterFlagCompletionFunc("verb", cobra.FixedCompletions(words(api.Verbs()), cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		req.Role = api.Role(role)
		for _, verb := range verbs {
			if !slices.Contains(words(api.Verbs()), verb) {
				return usage("--verb: %q is no verb; use %s", verb, strings.Join(words(api.Verbs()), ", "))
			}
			req.Verbs = append(req.Verbs, api.Verb(verb))
		}
		switch {
		case req.User == "":
			return usage("name the user it is for: --user NAME")
		case role == "":
			return usage("say what its bearer may do: --role admin, member or viewer")
		case !slices.Contains(roles, role):
			return usage("--role: %q is no role; use admin, member or viewer", role)
		case req.Project == "" && (req.Role == api.RoleMember || req.Role == api.RoleViewer):
			return usage("a %s's token is for one project; name it: --project NAME", role)
		case cmd.Flags().Changed("valid-for") && req.ValidFor == 0:
			return usage("--valid-for: 0 is no lifetime, and every token expires; omit the flag for a lifetime of %s", api.DefaultTokenLife)
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		return a.createToken(cmd.Context(), c, req, file, out)
	}
	return cmd
}

// createToken makes a token and prints its secret, or writes it to a new file.
func (a *app) createToken(ctx context.Context, c *client.Client, req api.TokenRequest, path string, out *format) error {
	if path == "" {
		t, err := c.CreateToken(ctx, req)
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, t, func(w io.Writer) { fmt.Fprintln(w, printable(t.Token)) })
	}
	var t api.NewToken
	err := secretInto(path, func() (made madeSecret, err error) {
		t, err = c.CreateToken(ctx, req)
		return madeSecret{t.ID, t.Token, func() error { return c.RevokeToken(ctx, t.ID) }, "nearmetal token revoke"}, err
	})
	if err != nil {
		return err
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
			t := newTable(w, "ID", "USER", "PROJECT", "ROLE", "LIMITS", "AGE", "EXPIRES", "LAST USED", "FROM")
			for _, k := range all {
				expires := a.until(k.ExpiresAt)
				if expires == "now" {
					expires = "expired"
				}
				used := "never"
				if k.LastUsedAt != nil {
					used = a.age(*k.LastUsedAt) + " ago"
				}
				t.row(k.ID, k.User, k.Project, string(k.Role), limits(k.Limits), a.age(k.CreatedAt), expires, used, k.LastUsedFrom)
			}
			t.flush()
		})
	}
	return cmd
}

// warnBefore is from when on the end of the token in use is announced.
const warnBefore = 7 * 24 * time.Hour

// tokenEnds notes when the token in use ends.
func (a *app) tokenEnds(at time.Time) { a.ends.Store(at.Unix()) }

// warnOfTokenEnd announces on a terminal that the token in use ends soon. Scripts, whose output nobody reads, see it by whoami.
func (a *app) warnOfTokenEnd() {
	seconds := a.ends.Load()
	ends := time.Unix(seconds, 0)
	if seconds == 0 || ends.Sub(a.Now()) > warnBefore || !onTerminal(a.Streams.Err) {
		return
	}
	fmt.Fprintf(a.Streams.Err, "Warning: your token ends %s, on %s; ask an administrator for another (nearmetal token create)\n",
		a.until(&ends), ends.Local().Format(timeFormat))
}

// onTerminal reports whether people read what is written.
func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// limits are the verbs and the patterns of a token.
func limits(l api.Limits) string {
	return strings.Join(append(words(l.Verbs), l.Clusters...), ",")
}

// words are values of a type of words as text.
func words[T ~string](all []T) []string {
	out := make([]string, len(all))
	for i, w := range all {
		out[i] = string(w)
	}
	return out
}

func (a *app) tokenRevoke() *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke ID...", Short: "Revoke tokens immediately", Args: someArgs("tokens to revoke"), ValidArgsFunction: a.completeTokens,
		Long: "Revoke tokens immediately. Open connections and waits that were begun with them end, too.",
	}
	return a.onEach(cmd, func(ctx context.Context, c *client.Client, id string) (string, error) {
		return "token " + id + " revoked", c.RevokeToken(ctx, id)
	})
}

func (a *app) whoamiCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "whoami", Short: "Show your user, role and project", Args: noArgs}
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
			ends := ""
			if who.ExpiresAt != nil {
				ends = fmt.Sprintf("%s (%s)", who.ExpiresAt.Local().Format(timeFormat), a.until(who.ExpiresAt))
			}
			fields(w, "User", who.User, "Project", who.Project, "Role", string(who.Role), "Verbs", strings.Join(words(who.Verbs), ", "),
				"Clusters", strings.Join(who.Clusters, ", "), "Token ends", ends)
		})
	}
	return a.connects(cmd)
}
