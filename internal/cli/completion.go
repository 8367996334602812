package cli

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

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
			for _, cl := range all {
				if !slices.Contains(args, cl.Name) {
					names = append(names, cl.Name)
				}
			}
			return names, err
		})
	}
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

func (a *app) completeNodes(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		all, err := c.Nodes(ctx)
		var names []string
		for _, n := range all {
			names = append(names, n.Name)
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
