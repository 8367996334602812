package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func (a *app) envBuild() *cobra.Command {
	var file string
	var force, detach, quiet bool
	follow := true
	cmd := &cobra.Command{
		Use: "build NAME | -f FILE", Short: "Build an environment", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRecipes,
		Long: `Build an environment from a recipe: one that comes with the product, by its name ('nearmetal env recipe' lists them), or one in a file. A
builder node carries it out. The output is shown as it comes; with --quiet its progress only.

When there is an image of the same recipe already, nothing is built, unless --force is given. Ctrl-C leaves the build alone: it goes on
('nearmetal env builds', 'nearmetal env cancel').`,
		Example: "  nearmetal env build debian-mpi\n  nearmetal env build -f mine.yaml --quiet",
	}
	flags := cmd.Flags()
	flags.StringVarP(&file, "file", "f", "", "file with the recipe, - for standard input")
	flags.BoolVar(&force, "force", false, "build although there is an image of the same recipe")
	flags.BoolVar(&detach, "detach", false, "print the build's ID and do not wait for it")
	flags.BoolVar(&follow, "follow", true, "show the output as it comes, until the build has ended")
	flags.BoolVarP(&quiet, "quiet", "q", false, "show the progress, not the output")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req := api.BuildRequest{Force: force}
		switch {
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
			return err
		}
		if detach || !follow {
			return out.print(a.Streams.Out, b, func(w io.Writer) { fmt.Fprintln(w, b.ID) })
		}
		return a.awaitBuild(cmd.Context(), c, b, quiet || *out != formatTable, out)
	}
	return cmd
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
		return "", usage("-f: %v", err)
	}
	if len(data) == 0 {
		return "", usage("-f: %s is empty; write a recipe, 'nearmetal env recipe debian-mpi' prints one", path)
	}
	return string(data), nil
}

// awaitBuild shows a build until it has ended, and ends as it did.
func (a *app) awaitBuild(ctx context.Context, c *client.Client, b api.Build, quiet bool, out *format) error {
	var err error
	if quiet {
		b, err = a.watchBuild(ctx, c, b.ID, func(b api.Build) bool { return b.Phase.Ended() })
	} else {
		b, err = a.followBuild(ctx, c, b)
	}
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w; build %s goes on: 'nearmetal env log %s --follow', 'nearmetal env cancel %s'", errInterrupted, b.ID, b.ID, b.ID)
	}
	if err != nil {
		return err
	}
	switch b.Phase {
	case api.BuildSucceeded:
		return out.print(a.Streams.Out, b, func(w io.Writer) {
			if b.Reused {
				fmt.Fprintf(w, "environment %s is there: %s, an image of the same recipe\n", b.Environment, b.Digest)
				return
			}
			fmt.Fprintf(w, "environment %s is built: %s%s\n", b.Environment, b.Digest, buildTook(b))
		})
	case api.BuildCancelled:
		return &exitError{ExitInterrupted, fmt.Errorf("build %s of environment %q was cancelled", b.ID, b.Environment)}
	default:
		return fmt.Errorf("build %s of environment %q failed: %s; see 'nearmetal env log %s'", b.ID, b.Environment,
			orElse(b.Message, "no reason is known"), b.ID)
	}
}

func buildTook(b api.Build) string {
	if b.StartedAt == nil || b.EndedAt == nil {
		return ""
	}
	return fmt.Sprintf(", in %.1fs", b.EndedAt.Sub(*b.StartedAt).Seconds())
}

// watchBuild tells the progress of a build until it is as asked.
func (a *app) watchBuild(ctx context.Context, c *client.Client, id string, until func(api.Build) bool) (api.Build, error) {
	p := a.progress()
	defer p.stop()
	for {
		b, err := c.Build(ctx, id)
		if err != nil {
			return api.Build{ID: id}, err
		}
		if until(b) {
			return b, nil
		}
		p.say(buildLine(b))
		select {
		case <-ctx.Done():
			return b, ctx.Err()
		case <-time.After(poll):
		}
	}
}

// buildLine is what a build does.
func buildLine(b api.Build) string {
	text := fmt.Sprintf("build %s of %s: %s", b.ID, b.Environment, b.Phase)
	switch {
	case b.CancelRequested:
		text += ", being cancelled"
	case b.Phase == api.BuildPending:
		text += ", " + orElse(b.Message, "waits for a builder node")
	case b.Step != "":
		text += fmt.Sprintf(" on %s, %d%%: %s", b.Node, b.Percent, b.Step)
	}
	return text
}

// followBuild copies the output of a build, attempt after attempt, until it has ended, and returns it then.
func (a *app) followBuild(ctx context.Context, c *client.Client, b api.Build) (api.Build, error) {
	attempt := -1
	var offset int64
	for {
		id := b.ID
		// Before anybody has taken it up there is no output to wait for.
		b, err := a.watchBuild(ctx, c, id, func(b api.Build) bool { return b.Phase != api.BuildPending })
		if err != nil {
			return api.Build{ID: id}, err
		}
		if b.Attempt != attempt {
			if attempt >= 0 {
				fmt.Fprintf(a.Streams.Err, "build %s begins anew on node %s\n", id, b.Node)
			}
			attempt, offset = b.Attempt, 0
		}
		n, err := c.BuildLog(ctx, id, attempt, offset, true, a.Streams.Out)
		offset += n
		if err != nil {
			return b, err
		}
		if b, err = c.Build(ctx, id); err != nil {
			return api.Build{ID: id}, err
		}
		if b.Phase.Ended() && b.Attempt == attempt {
			return b, nil
		}
		select { // the output ended before the build: the server was stopping, or it begins anew
		case <-ctx.Done():
			return b, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (a *app) envBuilds() *cobra.Command {
	cmd := &cobra.Command{Use: "builds", Short: "List builds, the oldest first", Args: noArgs}
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
				t.row(b.ID, b.Environment, string(b.Phase), fmt.Sprintf("%d%%", b.Percent), b.Node, a.age(b.CreatedAt), shorten(b.Digest, 20), orElse(b.Message, b.Step))
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
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the build has ended")
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
			_, err = a.followBuild(cmd.Context(), c, b)
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
		Use: "cancel BUILD...", Short: "Ask builds to end", Args: someArgs("builds to cancel"), ValidArgsFunction: a.completeBuilds,
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
