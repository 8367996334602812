package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
)

// applyFlags are the flags of `cluster apply`.
type applyFlags struct {
	file    string
	dryRun  bool
	noWait  bool
	timeout time.Duration
}

func (a *app) clusterApply() *cobra.Command {
	var f applyFlags
	cmd := &cobra.Command{
		Use:   "apply [NAME] -f FILE",
		Short: "Bring a cluster to the state that a file describes",
		Long: `Bring a cluster to the state that a file (YAML or JSON, "-" for standard input) describes, and wait until it is reached. A cluster that
does not exist is created; an existing one is changed. The plan is printed first, with a line for each change:

  + what is created or added
  ~ what is changed
  - what is removed
  = what stays

If any change is impossible, the file is refused and nothing is changed. With --dry-run, the command only prints the plan, and
for a new cluster of whole machines, whether each machine would fit and why. A NAME guards against the wrong file: it has to be the name in the
file.`,
		Example: `  nearmetal cluster apply -f c1.yaml --dry-run
  nearmetal cluster apply c1 -f c1.yaml`,
		ValidArgsFunction: a.completeClusters(1),
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "file", "f", "", `file that describes the cluster, "-" for standard input`)
	flags.BoolVar(&f.dryRun, "dry-run", false, "only print the plan")
	flags.BoolVar(&f.noWait, "no-wait", false, "do not wait until it is done")
	flags.Var(timeoutFlag(&f.timeout, waitTimeout), "timeout", "how long to wait (0: no limit, the default for a cluster that may be queued)")
	out := outputFlag(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case f.file == "":
			return usage("give the file that describes the cluster (-f FILE)")
		case len(args) > 1:
			return usage("%q is one name too many; '%s' applies one file", args[1], cmd.CommandPath())
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req, err := a.readManifest(f.file)
		if err != nil {
			return err
		}
		name := fullName(req.Project, req.Name)
		if len(args) == 1 && args[0] != req.Name && args[0] != name {
			return usage("the file describes cluster %q, not %q; nothing was changed", name, args[0])
		}
		if len(args) == 1 {
			name = args[0]
		}
		if req.Queue && !cmd.Flags().Changed("timeout") {
			f.timeout = 0
		}
		return a.apply(cmd.Context(), name, req, f, out)
	}
	return cmd
}

// apply prints the plan, carries it out and waits.
func (a *app) apply(ctx context.Context, name string, req api.ClusterRequest, f applyFlags, out *format) error {
	c, err := a.client(0)
	if err != nil {
		return err
	}
	plan, err := c.ApplyCluster(ctx, name, req, true)
	if err != nil {
		return err
	}
	if *out == formatTable {
		printSteps(a.Streams.Out, plan.Steps)
		if f.dryRun {
			printMachineFits(a.Streams.Out, plan.Machines)
		}
	}
	if f.dryRun || !changes(plan.Steps) {
		return out.print(a.Streams.Out, plan, func(io.Writer) {})
	}
	result, err := c.ApplyCluster(ctx, name, req, false)
	if err != nil {
		return unknownOutcome(err, name)
	}
	if *out == formatTable && !slices.Equal(result.Steps, plan.Steps) {
		fmt.Fprintln(a.Streams.Out, "It was changed by somebody else meanwhile; this was done:")
		printSteps(a.Streams.Out, result.Steps)
	}
	if result.Cluster != nil && !f.noWait && !result.Cluster.Status.Paused && !result.Cluster.Status.Saved {
		w := untilSettled(*result.Cluster, f.timeout)
		w.volumesToo()
		w.created = slices.ContainsFunc(result.Steps, func(s api.PlanStep) bool { return s.Action == "create" })
		cl, err := a.await(ctx, c, *result.Cluster, w)
		if err != nil {
			return err
		}
		result.Cluster = &cl
	}
	return out.print(a.Streams.Out, result, func(w io.Writer) {
		if result.Cluster != nil {
			fmt.Fprintln(w)
			a.printCluster(w, *result.Cluster)
		}
	})
}

// changes tells whether a plan does anything.
func changes(steps []api.PlanStep) bool {
	return slices.ContainsFunc(steps, func(s api.PlanStep) bool { return s.Action != "keep" })
}

// printSteps writes a plan, a line for each step.
func printSteps(w io.Writer, steps []api.PlanStep) {
	for _, s := range steps {
		fmt.Fprintln(w, printable(stepLine(s)))
	}
	if len(steps) == 0 {
		fmt.Fprintln(w, "nothing to change")
	}
}

func stepLine(s api.PlanStep) string {
	line := sign(s.Action) + " " + s.Path
	switch {
	case s.Path == "":
		return line + s.Message
	case s.From != "" && s.To != "" && s.From != s.To:
		line += ": " + s.From + " -> " + s.To
	case s.Action == "remove" && s.From != "":
		line += ": " + s.From
	case s.To != "":
		line += ": " + s.To
	case s.From != "":
		line += ": " + s.From
	}
	if s.Message != "" {
		line += " (" + s.Message + ")"
	}
	return line
}

// sign is how a plan marks an action.
func sign(action string) string {
	switch action {
	case "create", "add":
		return "+"
	case "remove":
		return "-"
	case "keep":
		return "="
	default:
		return "~"
	}
}
