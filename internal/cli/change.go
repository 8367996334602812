package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

func (a *app) clusterExtend() *cobra.Command {
	var by, to api.Duration
	cmd := &cobra.Command{
		Use:   "extend NAME --by SPAN | --to SPAN",
		Short: "Extend the time limit of a cluster",
		Long: `Extend the time limit of a cluster by a span (--by), or to a new limit that counts from its placement (--to). A limit that has passed
can't be extended.`,
		Example: `  nearmetal cluster extend c1 --by 1h
  nearmetal cluster extend c1 --to 8h`,
		ValidArgsFunction: a.completeClusters(1),
	}
	cmd.Flags().Var(span{&by}, "by", "span to add to the limit, like 1h")
	cmd.Flags().Var(span{&to}, "to", "new time limit, like 8h")
	out := outputFlag(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		given := 0
		for _, name := range []string{"by", "to"} {
			if cmd.Flags().Changed(name) {
				given++
			}
		}
		switch {
		case given == 2:
			return usage("--by conflicts with --to: --by extends the present limit, --to sets a new one")
		case given == 0:
			return usage("give an extension (--by 1h) or a new limit (--to 8h)")
		case by == 0 && to == 0:
			return usage("a span of 0 changes nothing; give one like 1h")
		default:
			return oneArg("cluster")(cmd, args)
		}
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return a.extend(cmd.Context(), args[0], by, to, out) }
	return cmd
}

// extend sends the new limit as a whole: asked for twice, it is the same.
func (a *app) extend(ctx context.Context, name string, by, to api.Duration, out *format) error {
	c, err := a.client(0)
	if err != nil {
		return err
	}
	if by > 0 {
		cl, err := c.Cluster(ctx, name)
		if err != nil {
			return err
		}
		if cl.Spec.TimeLimit == 0 {
			return &exitError{ExitConflict, fmt.Errorf("cluster %q has no time limit; there is nothing to extend", name)}
		}
		to = cl.Spec.TimeLimit + by
	}
	cl, err := c.ExtendCluster(ctx, name, to)
	if err != nil {
		return unknownOutcome(err, name)
	}
	return out.print(a.Streams.Out, cl, func(w io.Writer) {
		fmt.Fprintf(w, "cluster %s: time limit %s\n", ref(cl), a.limitText(cl))
	})
}

func (a *app) clusterLabel() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "label NAME KEY=VALUE... KEY-...",
		Short: "Set and remove labels of a cluster",
		Long:  "Set labels of a cluster (KEY=VALUE) and remove others (KEY-). Labels that are not named stay as they are.",
		Example: `  nearmetal cluster label c1 team=fluids
  nearmetal cluster label c1 team- run=7`,
		ValidArgsFunction: a.completeClusters(1),
	}
	out := outputFlag(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) < 2 || args[0] == "" {
			return usage("name the cluster and its labels: '%s'", useLine(cmd))
		}
		_, err := labelChanges(args[1:])
		return err
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		changes, err := labelChanges(args[1:])
		if err != nil {
			return err
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		cl, err := c.LabelCluster(cmd.Context(), args[0], changes)
		if err != nil {
			return unknownOutcome(err, args[0])
		}
		return out.print(a.Streams.Out, cl, func(w io.Writer) {
			fmt.Fprintf(w, "cluster %s: labels %s\n", ref(cl), orElse(printable(labels(cl.Labels)), "none"))
		})
	}
	return cmd
}

// labelChanges reads KEY=VALUE and KEY-, the latter as an empty value.
func labelChanges(args []string) (map[string]string, error) {
	changes := map[string]string{}
	for _, arg := range args {
		key, value, set := strings.Cut(arg, "=")
		if !set {
			var removes bool
			if key, removes = strings.CutSuffix(arg, "-"); !removes {
				return nil, usage("%q is no change of a label; write KEY=VALUE to set one, KEY- to remove one", arg)
			}
		}
		if _, twice := changes[key]; twice {
			return nil, usage("label %q is given twice", key)
		}
		if problem := manifest.KeyProblem(key); problem != "" {
			return nil, usage("label %q %s", key, problem)
		}
		if problem := manifest.ValueProblem(value); problem != "" {
			return nil, usage("label %s=%q %s", key, value, problem)
		}
		if set && value == "" {
			return nil, usage("label %q has no value; to remove it write %s-", key, key)
		}
		changes[key] = value
	}
	return changes, nil
}
