package cli

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// completionTimeout bounds what a server may take while a user waits for the shell.
const completionTimeout = 2 * time.Second

func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a completion script for a shell",
		Long: `Print a script that makes a shell complete commands, flags and names.

  bash:  source <(nearmetal completion bash)
  zsh:   nearmetal completion zsh > "${fpath[1]}/_nearmetal"
  fish:  nearmetal completion fish > ~/.config/fish/completions/nearmetal.fish`,
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args:      oneArg("shell"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return cmd.Root().GenBashCompletionV2(a.Streams.Out, true)
			case "zsh":
				return cmd.Root().GenZshCompletion(a.Streams.Out)
			case "fish":
				return cmd.Root().GenFishCompletion(a.Streams.Out, true)
			default:
				return usage("there is no completion for %q; use bash, zsh or fish", args[0])
			}
		},
	}
}

// complete asks the server for names. What can't be had is not completed: a shell is no place for errors.
func (a *app) complete(cmd *cobra.Command, names func(context.Context, *client.Client) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	c, err := a.client(completionTimeout)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	found, err := names(ctx, c)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// completeClusters completes the names of clusters, at most so many (0: any number), none twice.
func (a *app) completeClusters(most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
			all, err := c.Clusters(ctx)
			var names []string
			own := ownProject(ctx, c, all)
			for _, cl := range all {
				name := ref(cl)
				if cl.Project == own {
					name = cl.Name
				}
				if !slices.Contains(args, name) {
					names = append(names, name)
				}
			}
			return names, err
		})
	}
}

// ownProject is the project whose clusters the user calls by their short names.
func ownProject(ctx context.Context, c *client.Client, all []api.Cluster) string {
	if !slices.ContainsFunc(all, func(cl api.Cluster) bool { return ref(cl) != cl.Name }) {
		return "" // short names do for all
	}
	who, err := c.Whoami(ctx)
	if err != nil {
		return ""
	}
	return who.Project
}

// completeScale completes a cluster and, when members are to be removed, those.
func (a *app) completeScale(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 && cmd.Flags().Changed("remove") {
		return a.completeMembers(cmd, args, typed)
	}
	return a.completeClusters(1)(cmd, args, typed)
}

// completeClusterMember completes a cluster, then one of its members.
func (a *app) completeClusterMember(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return a.completeClusters(1)(cmd, args, typed)
	case 1:
		return a.completeMembers(cmd, args, typed)
	default:
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeMembers completes the members of the cluster that the first argument names.
func (a *app) completeMembers(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		cl, err := c.Cluster(ctx, args[0])
		var names []string
		for _, m := range cl.Status.Members {
			if m.Phase != api.MemberReleasing && m.Phase != api.MemberSpare && !slices.Contains(args, m.Name) {
				names = append(names, m.Name)
			}
		}
		return names, err
	})
}

func (a *app) completeProjects(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		all, err := c.Projects(ctx)
		var names []string
		for _, p := range all {
			names = append(names, p.Name)
		}
		return names, err
	})
}

func (a *app) completeShapes(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		all, err := c.Shapes(ctx)
		var names []string
		for _, s := range all {
			names = append(names, s.Name)
		}
		return names, err
	})
}

func (a *app) completeTokens(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		all, err := c.Tokens(ctx)
		var ids []string
		for _, t := range all {
			if !slices.Contains(args, t.ID) {
				ids = append(ids, t.ID+"\t"+string(t.Role)+" "+t.User)
			}
		}
		return ids, err
	})
}

func (a *app) completeJobs(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		all, err := c.Jobs(ctx, "")
		var ids []string
		for _, j := range all {
			ids = append(ids, j.ID+"\t"+string(j.Phase)+" "+shorten(commandText(j), 30))
		}
		return ids, err
	})
}

// completeNodes completes the names of nodes, at most so many (0: any number), none twice.
func (a *app) completeNodes(most int) cobra.CompletionFunc {
	return a.completeNodesThat(most, func(api.Node) bool { return true })
}

// completeMachines completes the names of nodes whose power and boot are ours.
func (a *app) completeMachines(most int) cobra.CompletionFunc {
	return a.completeNodesThat(most, func(n api.Node) bool { return n.Machine != nil })
}

func (a *app) completeNodesThat(most int, are func(api.Node) bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
			all, err := c.Nodes(ctx)
			var names []string
			for _, n := range all {
				if are(n) && !slices.Contains(args, n.Name) {
					names = append(names, n.Name)
				}
			}
			return names, err
		})
	}
}

func (a *app) completeEnrollTokens(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		all, err := c.EnrollTokens(ctx)
		var ids []string
		for i := range all {
			if !slices.Contains(args, all[i].ID) {
				ids = append(ids, all[i].ID+"\t"+all[i].Prefix)
			}
		}
		return ids, err
	})
}

// completeBootable completes environments that machines can boot to run: they have a root and a kernel.
func (a *app) completeBootable(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		all, err := c.Environments(ctx)
		var names []string
		for _, e := range all {
			if e.Image != nil && e.Image.RootBytes > 0 && slices.Contains(e.Image.Stacks, api.StackMetal) {
				names = append(names, e.Name)
			}
		}
		return names, err
	})
}

func (a *app) completeEnvironments(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		all, err := c.Environments(ctx)
		var names []string
		for _, e := range all {
			names = append(names, e.Name)
		}
		return names, err
	})
}
