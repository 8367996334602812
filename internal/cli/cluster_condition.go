package cli

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nearmetal/nearmetal/api"
)

func (a *app) clusterCondition() *cobra.Command {
	cmd := &cobra.Command{Use: "condition", Short: "Give the network of a cluster a delay, loss or rate, and take it away", Args: cobra.ArbitraryArgs, RunE: needCommand}
	cmd.Long = cmd.Short + `. What each member sends on the cluster's own network then passes a forwarder on its node. Each packet between two members
has the condition of its sender, so a round trip has the delay twice. Members run on meanwhile, and members that come later have the condition, too.
Members must run on the stack "container". Their nodes' agents must be started with --conditions, as those of 'nearmetal dev' are.`
	cmd.AddCommand(a.conditionSet(), a.conditionShow(), a.conditionClear())
	return cmd
}

// conditionFlags are the flags of the commands that wait.
type conditionFlags struct {
	noWait  bool
	timeout time.Duration
}

func (f *conditionFlags) add(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVar(&f.noWait, "no-wait", false, "do not wait until "+what)
	cmd.Flags().Var(timeoutFlag(&f.timeout, 0), "timeout", "how long to wait (0: no limit)")
}

// percentage makes a percentage the value of a flag: "0.1", "5".
type percentage struct{ value *float64 }

// String is empty for none, so that help shows no default.
func (p percentage) String() string {
	if p.value == nil || *p.value == 0 {
		return ""
	}
	return percentText(*p.value)
}

// Set reads a percentage, with or without its sign.
func (p percentage) Set(text string) error {
	v, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil || !(v >= 0 && v <= 100) {
		return fmt.Errorf("%q is no percentage; write a number from 0 to 100, like 0.1", text)
	}
	*p.value = v
	return nil
}

// Type names the kind of value in help.
func (p percentage) Type() string { return "percent" }

func addConditionFlags(flags *pflag.FlagSet, c *api.NetworkCondition) {
	flags.Var(span{&c.Delay}, "delay", "how much longer each packet takes, like 25ms")
	flags.Var(span{&c.Jitter}, "jitter", "by how much the delay varies either way, like 1ms; packets keep their order")
	flags.Var(percentage{&c.Loss}, "loss", "percentage of packets that are lost")
	flags.Var(percentage{&c.Duplicate}, "duplicate", "percentage of packets that come twice")
	flags.Var(percentage{&c.Corrupt}, "corrupt", "percentage of packets that have one bit turned over")
	flags.Var(percentage{&c.Reorder}, "reorder", "percentage of packets that overtake those that wait for the delay")
	flags.Var(bitRate{&c.Rate}, "rate", "what each member sends at most, like 100Mbit; what comes too fast waits in a queue of 50 ms")
	flags.Int64Var(&c.Seed, "seed", 0, "choose other packets for what happens by chance")
}

func (a *app) conditionSet() *cobra.Command {
	var f conditionFlags
	var condition api.NetworkCondition
	cmd := &cobra.Command{
		Use: "set NAME", Short: "Set the condition of a cluster's network",
		Long: `Set the condition of a cluster's network, in place of another one, and wait until each member's node has measured that it is in force. What the flags
do not name is as without a condition.

What members exchange with the outside by this network has the condition in both directions. IPv6, further networks, InfiniBand and shared memory between
members of one node have none. Root in a member can take its condition away.`,
		Example: `  nearmetal cluster condition set c1 --delay 25ms --jitter 1ms --loss 0.1
  nearmetal cluster condition set c1 --rate 100Mbit`,
		Args: oneArg("cluster"), ValidArgsFunction: a.completeClusters(1),
	}
	addConditionFlags(cmd.Flags(), &condition)
	f.add(cmd, "all members have the condition")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		cl, err := c.SetCondition(cmd.Context(), args[0], condition)
		if err != nil {
			return unknownOutcome(err, args[0])
		}
		if !f.noWait && hasPlaces(cl) {
			if cl, err = a.await(cmd.Context(), c, cl, untilCondition(condition, f.timeout)); err != nil {
				return err
			}
		}
		return out.print(a.Streams.Out, cl, func(w io.Writer) { fmt.Fprintln(w, conditionSetText(cl)) })
	}
	return cmd
}

// conditionSetText says what became of a condition that was set.
func conditionSetText(cl api.Cluster) string {
	switch s := cl.Status.Condition; {
	case s == nil:
		return fmt.Sprintf("The network of cluster %q has no condition any more.", ref(cl))
	case !hasPlaces(cl):
		return fmt.Sprintf("Cluster %q is %s; its members get the condition when they run: %s.", ref(cl), cl.Status.Phase, conditionText(s.NetworkCondition))
	case s.State != api.ConditionInForce:
		return fmt.Sprintf("The condition of cluster %q is being set; see 'nearmetal cluster condition show %s'.", ref(cl), ref(cl))
	default:
		return fmt.Sprintf("What members of cluster %q send has a condition: %s.", ref(cl), conditionText(s.NetworkCondition))
	}
}

func (a *app) conditionClear() *cobra.Command {
	var f conditionFlags
	cmd := &cobra.Command{
		Use: "clear NAME", Short: "Take the condition of a cluster's network away",
		Long:    "Take the condition of a cluster's network away, and wait until no member has one. Packets that wait for a delay are lost.",
		Example: "  nearmetal cluster condition clear c1",
		Args:    oneArg("cluster"), ValidArgsFunction: a.completeClusters(1),
	}
	f.add(cmd, "no member has a condition")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		cl, err := c.ClearCondition(cmd.Context(), args[0])
		if err != nil {
			return unknownOutcome(err, args[0])
		}
		if !f.noWait && hasPlaces(cl) {
			if cl, err = a.await(cmd.Context(), c, cl, untilNoCondition(f.timeout)); err != nil {
				return err
			}
		}
		return out.print(a.Streams.Out, cl, func(w io.Writer) {
			if cl.Status.Condition != nil {
				fmt.Fprintf(w, "The condition of cluster %q is being cleared; see 'nearmetal cluster condition show %s'.\n", ref(cl), ref(cl))
				return
			}
			fmt.Fprintf(w, "The network of cluster %q has no condition.\n", ref(cl))
		})
	}
	return cmd
}

func (a *app) conditionShow() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show the condition of a cluster's network", Args: oneArg("cluster"), ValidArgsFunction: a.completeClusters(1),
		Example: "  nearmetal cluster condition show c1",
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		cl, err := c.Cluster(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, cl.Status.Condition, func(w io.Writer) {
			s := cl.Status.Condition
			if s == nil {
				fmt.Fprintf(w, "The network of cluster %q has no condition.\n", ref(cl))
				return
			}
			fields(w, "Condition", conditionText(s.NetworkCondition), "State", s.State, "Waiting", conditionWaits(s))
		})
	}
	return cmd
}

// untilCondition waits until every member has a condition.
func untilCondition(condition api.NetworkCondition, timeout time.Duration) await {
	return await{what: "having the condition", timeout: timeout, line: conditionWaitLine, done: func(cl api.Cluster) (bool, error) {
		s := cl.Status.Condition
		if s == nil || s.State == api.ConditionClearing || s.NetworkCondition != condition {
			return true, &exitError{ExitConflict, fmt.Errorf("the condition of cluster %q was changed meanwhile", ref(cl))}
		}
		return s.State == api.ConditionInForce, nil
	}}
}

// untilNoCondition waits until no member has a condition.
func untilNoCondition(timeout time.Duration) await {
	return await{what: "without a condition", timeout: timeout, line: conditionWaitLine, done: func(cl api.Cluster) (bool, error) {
		s := cl.Status.Condition
		if s != nil && s.State != api.ConditionClearing {
			return true, &exitError{ExitConflict, fmt.Errorf("the condition of cluster %q was set again meanwhile", ref(cl))}
		}
		return s == nil, nil
	}}
}

// conditionWaitLine says what the condition of a cluster waits for.
func conditionWaitLine(cl api.Cluster) string {
	if cl.Status.Condition == nil {
		return ""
	}
	return conditionWaits(cl.Status.Condition)
}

// conditionWaits says which members do not have the condition of their cluster yet.
func conditionWaits(s *api.NetworkConditionStatus) string {
	switch {
	case s.Waiting == 0:
		return ""
	case s.Waiting > 1:
		return fmt.Sprintf("%s, and %d more", cmp.Or(s.Message, "a member is at work"), s.Waiting-1)
	default:
		return cmp.Or(s.Message, "a member is at work")
	}
}

// conditionLine is the condition of a cluster in one line: delay 25ms, loss 0.1% (setting).
func conditionLine(s *api.NetworkConditionStatus) string {
	if s == nil {
		return ""
	}
	text := conditionText(s.NetworkCondition)
	if text == "" {
		return s.State
	}
	return text + " (" + s.State + ")"
}

// conditionText says what a condition is: delay 25ms, jitter 1ms, loss 0.1%, rate 100Mbit.
func conditionText(c api.NetworkCondition) string {
	var parts []string
	add := func(name, value string, given bool) {
		if given {
			parts = append(parts, name+" "+value)
		}
	}
	add("delay", c.Delay.String(), c.Delay > 0)
	add("jitter", c.Jitter.String(), c.Jitter > 0)
	for _, p := range []struct {
		name  string
		value float64
	}{{"loss", c.Loss}, {"duplicate", c.Duplicate}, {"corrupt", c.Corrupt}, {"reorder", c.Reorder}} {
		add(p.name, percentText(p.value)+"%", p.value > 0)
	}
	add("rate", c.Rate.String(), c.Rate > 0)
	add("seed", strconv.FormatInt(c.Seed, 10), c.Seed > 0)
	return strings.Join(parts, ", ")
}

func percentText(value float64) string { return strconv.FormatFloat(value, 'f', -1, 64) }
