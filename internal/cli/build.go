package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func (a *app) envBuild() *cobra.Command {
	var file string
	var force, verify, detach, quiet, verbose bool
	follow := true
	cmd := &cobra.Command{
		Use: "build NAME | -f FILE", Short: "Build an environment", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRecipes,
		Long: `Build an environment from a recipe: one that comes with the product, by its name ('nearmetal env recipe' lists them), or one in a file. Its
steps are shown as they go by, and the end of its output if it fails; with --verbose all of the output as it comes, with --quiet how it
ended only.

A trusted builder ('nearmetal node trust') carries it out. With --verify two different nodes do, one after the other, and if they don't
arrive at the same image the build fails: so an image of nodes that are not trusted is used only when they agree.

When there is an image of the same recipe already, nothing is built, unless --force is given. Ctrl-C leaves the build alone: it goes on
('nearmetal env builds', 'nearmetal env cancel').`,
		Example: "  nearmetal env build debian-mpi\n  nearmetal env build -f mine.yaml --verbose",
	}
	flags := cmd.Flags()
	flags.StringVarP(&file, "file", "f", "", "file with the recipe, - for standard input")
	flags.BoolVar(&force, "force", false, "build although there is an image of the same recipe")
	flags.BoolVar(&verify, "verify", false, "build on two different nodes, trusted or not, and fail unless both make the same image")
	flags.BoolVar(&detach, "detach", false, "print the build's ID and do not wait for it")
	flags.BoolVar(&follow, "follow", true, "wait until the build has ended; --follow=false is --detach")
	flags.BoolVarP(&quiet, "quiet", "q", false, "show nothing until the build has ended")
	flags.BoolVarP(&verbose, "verbose", "v", false, "show the output as it comes")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req := api.BuildRequest{Force: force, Verify: verify}
		switch {
		case quiet && verbose:
			return usage("--quiet conflicts with --verbose")
		case len(args) == 1 && file != "":
			return usage("give a recipe's name or a file, not both")
		case len(args) == 1:
			req.Shipped = args[0]
		case file == "":
			return usage("name a recipe that comes with the product, or give a file: '%s'", cmd.UseLine())
		default:
			var err error
			if req.Recipe, err = a.recipeFile(file); err != nil {
				return err
			}
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		b, err := c.CreateBuild(cmd.Context(), req)
		if err != nil {
			return inFile(err, file)
		}
		if detach || !follow {
			return out.print(a.Streams.Out, b, func(w io.Writer) { fmt.Fprintln(w, b.ID) })
		}
		view := viewSteps
		switch {
		case quiet:
			view = viewEnd
		case verbose && *out == formatTable: // else the output would stand before the object
			view = viewOutput
		}
		return a.awaitBuild(cmd.Context(), c, b, view, out)
	}
	return cmd
}

// inFile lets the server's words about a recipe name the file that it came from.
func inFile(err error, file string) error {
	var answered *client.Error
	if file == "" || file == "-" || !errors.As(err, &answered) {
		return err
	}
	if problems, ok := strings.CutPrefix(answered.Detail, "the recipe: "); ok {
		answered.Detail = file + ": " + problems
	}
	return err
}

// recipeFile reads a recipe.
func (a *app) recipeFile(path string) (string, error) {
	var data []byte
	var err error
	if path == "-" {
		data, err = io.ReadAll(a.Streams.In)
	} else {
		data, err = os.ReadFile(path)
	}
	if err != nil {
		return "", usage("-f: %s", fileProblem(path, err))
	}
	if len(data) == 0 {
		return "", usage("-f: %s is empty; write a recipe, 'nearmetal env recipe debian-mpi' prints one", path)
	}
	return string(data), nil
}

func (a *app) envBuilds() *cobra.Command {
	cmd := &cobra.Command{Use: "builds", Short: "List builds, oldest first", Args: noArgs}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		all, err := c.Builds(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, all, func(w io.Writer) {
			t := newTable(w, "ID", "ENVIRONMENT", "PHASE", "DONE", "NODE", "AGE", "DIGEST", "MESSAGE")
			for _, b := range all {
				done := ""
				if b.Phase != api.BuildPending {
					done = fmt.Sprintf("%d%%", b.Percent)
				}
				t.row(b.ID, b.Environment, string(b.Phase), done, b.Node, a.age(b.CreatedAt), shorten(b.Digest, 20), orElse(b.Message, b.Step))
			}
			t.flush()
		})
	}
	return cmd
}

func (a *app) envLog() *cobra.Command {
	var follow bool
	var attempt int
	cmd := &cobra.Command{
		Use: "log BUILD", Aliases: []string{"logs"}, Short: "Show a build's output", Args: oneArg("build"), ValidArgsFunction: a.completeBuilds,
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "follow the output until the build has ended")
	cmd.Flags().IntVar(&attempt, "attempt", 0, "attempt (default: the latest)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		b, err := c.Build(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if cmd.Flags().Changed("attempt") {
			if attempt < 0 || attempt > b.Attempt {
				return usage("--attempt: build %s has had %s so far, no attempt %d", b.ID, plural(b.Attempt, "attempt"), attempt)
			}
		} else if follow {
			_, err = a.showBuild(cmd.Context(), c, b, viewOutput)
			return err
		} else {
			attempt = b.Attempt
		}
		_, err = c.BuildLog(cmd.Context(), b.ID, attempt, 0, follow, a.Streams.Out)
		return err
	}
	return cmd
}

func (a *app) envCancel() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel BUILD...", Short: "Cancel builds", Args: someArgs("builds to cancel"), ValidArgsFunction: a.completeBuilds,
	}
	return a.onEach(cmd, func(ctx context.Context, c *client.Client, id string) (string, error) {
		b, err := c.CancelBuild(ctx, id)
		if b.Phase.Ended() {
			return fmt.Sprintf("build %s had already ended (%s)", b.ID, b.Phase), err
		}
		return "build " + b.ID + " is being cancelled", err
	})
}

func (a *app) completeBuilds(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		all, err := c.Builds(ctx)
		var ids []string
		for _, b := range all {
			ids = append(ids, b.ID+"\t"+string(b.Phase)+" "+b.Environment)
		}
		return ids, err
	})
}
