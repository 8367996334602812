package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// powerFlags are the flags of `node power`.
type powerFlags struct {
	selector    map[string]string
	environment string
	force, wait bool
	timeout     time.Duration
}

func (a *app) nodePower() *cobra.Command {
	cmd := &cobra.Command{Use: "power", Short: "Power machines on and off, and show their power", Args: cobra.ArbitraryArgs, RunE: needCommand}
	cmd.AddCommand(
		a.powerAction(api.PowerActionOn, "Power machines on with an environment",
			`Power machines on: each boots the environment over the network and joins the site. --wait waits until they are ready, and shows the
duration of each boot stage. A machine that runs another environment boots again, which is refused while members run on it.`),
		a.powerAction(api.PowerActionOff, "Power machines off",
			`Power machines off: each is asked to shut down first, then its power is cut where the hardware can do that (Wake-on-LAN can't). This is
refused while members run on one of them; 'node drain --wait' empties it. --force powers off regardless, and needs machines by name
instead of a selector.`),
		a.powerAction(api.PowerActionCycle, "Power machines off and on again",
			`Power machines off and on again, with the environment they had or another one. Refused while members run on one of them, unless --force is
given.`),
		a.powerStatus(),
	)
	return cmd
}

func (a *app) powerAction(action api.PowerAction, short, long string) *cobra.Command {
	var f powerFlags
	cmd := &cobra.Command{
		Use: string(action) + " NODE... | --selector KEY=VALUE", Short: short, Long: long, ValidArgsFunction: a.completeMachines(0),
		Example: map[api.PowerAction]string{
			api.PowerActionOn:  "  nearmetal node power on n1 n2 --env debian-mpi --wait\n  nearmetal node power on --selector rack=r1 --env debian-mpi",
			api.PowerActionOff: "  nearmetal node power off n1 --wait",
		}[action],
	}
	flags := cmd.Flags()
	flags.StringToStringVarP(&f.selector, "selector", "l", nil, "the machines with these labels, KEY=VALUE,...")
	flags.BoolVar(&f.force, "force", false, "proceed even if running members are lost")
	flags.BoolVar(&f.wait, "wait", false, "wait until it is done")
	flags.Var(timeoutFlag(&f.timeout, 0), "timeout", "how long --wait waits (default: no limit)")
	if action != api.PowerActionOff {
		flags.StringVarP(&f.environment, "env", "E", "", "environment to boot")
		_ = cmd.RegisterFlagCompletionFunc("env", a.completeBootable) // only fails for a flag that does not exist
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		names := unique(args)
		switch {
		case len(names) == 0 && len(f.selector) == 0:
			return usage("name the nodes, or select them by labels: '%s'", cmd.UseLine())
		case len(names) > 0 && len(f.selector) > 0:
			return usage("--selector conflicts with node names")
		case f.force && len(f.selector) > 0:
			return usage("--force: name the nodes that members may be lost on; a selector is not enough")
		case action == api.PowerActionOn && f.environment == "":
			return usage("name the environment to boot: --env NAME; 'nearmetal env list' lists the environments")
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		nodes, err := c.PowerNodes(cmd.Context(), api.NodesPowerRequest{Nodes: names, Selector: f.selector, NodePowerRequest: api.NodePowerRequest{
			Action: action, Environment: f.environment, Force: f.force,
		}})
		if err != nil {
			return err
		}
		return a.powerAsked(cmd.Context(), c, nodes, action, f)
	}
	return cmd
}

// powerAsked tells what was asked, or waits until it is done.
func (a *app) powerAsked(ctx context.Context, c *client.Client, nodes []api.Node, action api.PowerAction, f powerFlags) error {
	what := map[api.PowerAction]string{api.PowerActionOn: "on", api.PowerActionOff: "off", api.PowerActionCycle: "off and on again"}[action]
	if !f.wait {
		for _, n := range nodes {
			with := ""
			if f.environment != "" {
				with = " with " + f.environment
			}
			if rec := &n.Machine.Record; action == api.PowerActionOff && rec.Phase == api.MachineOff && rec.Power == api.PowerOff {
				fmt.Fprintf(a.Streams.Out, "node %s is off already\n", n.Name)
				continue
			}
			fmt.Fprintf(a.Streams.Out, "node %s is to be powered %s%s%s\n", n.Name, what, with, givenUp(n.Machine, f.environment))
		}
		return nil
	}
	names, numbers := make([]string, len(nodes)), map[string]int64{}
	for i, n := range nodes {
		names[i], numbers[n.Name] = n.Name, n.Machine.Request.Number
	}
	aim := "ready"
	if action == api.PowerActionOff {
		aim = "off"
	}
	return a.awaitNodes(ctx, c, names, f.timeout, aim, powered(numbers, action), func(n api.Node) {
		if action == api.PowerActionOff {
			fmt.Fprintf(a.Streams.Out, "node %s is off\n", n.Name)
			return
		}
		fmt.Fprintf(a.Streams.Out, "node %s is ready with %s%s\n", n.Name, n.Machine.Record.Boot.Environment, bootTook(n.Machine))
	})
}

// givenUp tells which boot ends before it is ready for the one that is asked for.
func givenUp(m *api.MachinePart, environment string) string {
	if m.Record.Phase != api.MachineBooting || m.Record.Boot == nil || environment == "" || m.Record.Boot.Environment == environment {
		return ""
	}
	return "; it was booting " + m.Record.Boot.Environment + ", which ends here"
}

// bootTook tells how long a boot took, by stage, and whether that is within the target.
func bootTook(m *api.MachinePart) string {
	rows := stageRows(m.Record.Boot)
	if len(rows) == 0 {
		return ""
	}
	var parts []string
	total := 0.0
	for _, row := range rows {
		total += row.seconds
		parts = append(parts, fmt.Sprintf("%s %.1f", row.stage, row.seconds))
	}
	text := fmt.Sprintf(" after %.1fs (%s)", total, strings.Join(parts, ", "))
	if m.TargetSeconds > 0 && total > m.TargetSeconds {
		text += fmt.Sprintf("; the target is %.0fs", m.TargetSeconds)
	}
	return text
}

// stageRow is one stage of a boot.
type stageRow struct {
	stage   api.BootStage
	seconds float64
	at      time.Time
}

// stageRows are the stages that a boot has passed: each lasts from the end of the one before to its own end.
func stageRows(boot *api.Boot) []stageRow {
	if boot == nil {
		return nil
	}
	var rows []stageRow
	before := boot.DecidedAt
	for _, s := range boot.Stages {
		rows = append(rows, stageRow{s.Stage, max(s.At.Sub(before), 0).Seconds(), s.At})
		if s.At.After(before) {
			before = s.At
		}
	}
	return rows
}

func (a *app) powerStatus() *cobra.Command {
	var selector map[string]string
	cmd := &cobra.Command{
		Use: "status [NODE...]", Short: "Show the power state of machines", ValidArgsFunction: a.completeMachines(0),
		Long: "Show the power state of machines as last observed: of the named machines, of those with labels, or of all.",
	}
	cmd.Flags().StringToStringVarP(&selector, "selector", "l", nil, "only machines with these labels, KEY=VALUE,...")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		all, err := c.Nodes(cmd.Context())
		if err != nil {
			return err
		}
		nodes, err := machinesOf(all, args, selector)
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, nodes, func(w io.Writer) {
			t := newTable(w, "NODE", "POWER", "CONTROL", "PHASE", "ENVIRONMENT", "OBSERVED", "MESSAGE")
			for _, n := range nodes {
				rec := &n.Machine.Record
				observed := ""
				if !rec.PowerObservedAt.IsZero() {
					observed = a.age(rec.PowerObservedAt) + " ago"
				}
				t.row(n.Name, string(rec.Power), string(n.Machine.Spec.Power.Kind), string(rec.Phase), bootedText(n), observed, orElse(rec.PowerMessage, rec.Message))
			}
			t.flush()
		})
	}
	return cmd
}

// machinesOf are the nodes that are machines, those named only, or those with the labels.
func machinesOf(all []api.Node, names []string, selector map[string]string) ([]api.Node, error) {
	nodes := []api.Node{}
	found := map[string]bool{}
	for _, n := range all {
		if n.Machine == nil || len(names) > 0 && !slices.Contains(names, n.Name) || !carries(n.Machine.Spec.Labels, selector) {
			continue
		}
		found[n.Name] = true
		nodes = append(nodes, n)
	}
	for _, name := range names {
		if !found[name] && len(selector) == 0 {
			return nil, &exitError{ExitNotFound, fmt.Errorf("there is no machine %q; 'nearmetal node list' shows the nodes there are", name)}
		}
	}
	return nodes, nil
}

func carries(labels, selector map[string]string) bool {
	for k, v := range selector {
		if has, ok := labels[k]; !ok || has != v {
			return false
		}
	}
	return true
}

// bootedText is the environment that a machine runs or boots.
func bootedText(n api.Node) string {
	if n.Machine == nil || n.Machine.Record.Boot == nil {
		return ""
	}
	switch n.Machine.Record.Phase {
	case api.MachineBooting, api.MachineReady, api.MachineInspecting, api.MachineCleaning, api.MachineStopping:
		return n.Machine.Record.Boot.Environment
	default:
		return ""
	}
}
