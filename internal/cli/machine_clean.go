package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func (a *app) nodeClean() *cobra.Command {
	var dryRun, yes, wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "clean NODE...", Short: "Erase what a tenant left on machines", Args: someArgs("nodes to clean"), ValidArgsFunction: a.completeMachines(0),
		Long: `Erase what a tenant left on machines: each is powered off, boots the environment "inspect", erases all its disks, the variables of its
firmware and its TPM, reads them back, reports, and is powered off. 'node show' shows the steps while they go on, and the last cleaning.

Cleaning is refused while members run on a machine. It asks for confirmation; without a terminal it refuses unless --yes is given. A machine
whose cleaning fails is quarantined: it boots nothing but cleanings and inspections until one succeeds, or 'node release'.

--dry-run boots the machines, too, but they only report what they would do. Nothing is erased.`,
		Example: "  nearmetal node clean n1 --dry-run --wait\n  nearmetal node clean n1 n2 --yes --wait",
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "boot the machines and show what would be erased; erase nothing")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "erase all disks of the machines without confirmation")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the cleaning has ended, and show its steps")
	cmd.Flags().Var(timeoutFlag(&timeout, 0), "timeout", "how long --wait waits (default: no limit)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		names := unique(args)
		if !dryRun && !yes {
			if err := a.confirmClean(cmd.Context(), c, names); err != nil {
				return err
			}
		}
		nodes, err := c.CleanNodes(cmd.Context(), api.NodesCleanRequest{Nodes: names, DryRun: dryRun})
		if err != nil {
			return err
		}
		if !wait {
			for _, n := range nodes {
				fmt.Fprintf(a.Streams.Out, "node %s is to be cleaned%s; see 'nearmetal node show %s'\n", n.Name, dryNote(dryRun), n.Name)
			}
			return nil
		}
		numbers := map[string]int64{}
		for _, n := range nodes {
			numbers[n.Name] = n.Machine.Clean.Number
		}
		return a.awaitNodes(cmd.Context(), c, names, timeout, "cleaned", cleaned(numbers, dryRun), func(n api.Node) {
			if dryRun {
				fmt.Fprintf(a.Streams.Out, "node %s: nothing was erased\n", n.Name)
			} else {
				fmt.Fprintf(a.Streams.Out, "node %s is clean\n", n.Name)
			}
			printCleaning(a.Streams.Out, lastCleaning(&n.Machine.Record))
		})
	}
	return cmd
}

func dryNote(dryRun bool) string {
	if dryRun {
		return " (dry run: nothing is erased)"
	}
	return ""
}

// confirmClean returns nil when the user agrees to lose what is on the machines' disks.
func (a *app) confirmClean(ctx context.Context, c *client.Client, names []string) error {
	var lines []string
	for _, name := range names {
		n, err := c.Node(ctx, name)
		if err != nil {
			return err
		}
		disks := "disks unknown"
		if n.Machine != nil && n.Machine.Hardware != nil {
			var parts []string
			for _, d := range n.Machine.Hardware.Disks {
				parts = append(parts, fmt.Sprintf("%s (%s)", d.Name, sizeText(d.SizeBytes)))
			}
			disks = orElse(strings.Join(parts, ", "), "no disks")
		}
		lines = append(lines, fmt.Sprintf("  %s: %s", name, disks))
	}
	list := strings.Join(names, ", ")
	in, ok := a.Streams.In.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return &exitError{ExitUsage, fmt.Errorf("%s: nothing was erased: all disks would be; look first (--dry-run), then repeat the command with --yes", list)}
	}
	fmt.Fprintf(a.Streams.Err, "All disks are erased, for good:\n%s\nErase them? [y/N] ", strings.Join(lines, "\n"))
	agreed, err := answeredYes(ctx, in)
	if err != nil {
		fmt.Fprintln(a.Streams.Err)
		return fmt.Errorf("%s: nothing was erased: %w", list, err)
	}
	if !agreed {
		return &exitError{ExitFailed, fmt.Errorf("%s: nothing was erased", list)}
	}
	return nil
}

// cleaned tells that the cleaning of a number has ended well.
func cleaned(numbers map[string]int64, dryRun bool) nodeDone {
	return func(n api.Node) (bool, error) {
		if n.Machine == nil {
			return false, errors.New("node " + n.Name + " is no machine of ours any more")
		}
		rec := &n.Machine.Record
		switch {
		case rec.DoneClean < numbers[n.Name], rec.Phase == api.MachineCleaning, rec.Phase == api.MachineStopping:
			return false, nil
		case rec.Phase == api.MachineFailed:
			return false, failedMachine(n)
		case dryRun && rec.Cleaning != nil && rec.Cleaning.Done && rec.Cleaning.DryRun, !dryRun && rec.Cleaning == nil && rec.Clean != nil:
			return true, nil
		}
		return false, fmt.Errorf("node %q was not cleaned: %s", n.Name, orElse(rec.Message, "its cleaning was interrupted"))
	}
}

func (a *app) nodeQuarantine() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "quarantine NODE --reason TEXT", Short: "Keep a machine from being given to anybody", Args: oneArg("node"), ValidArgsFunction: a.completeMachines(1),
		Long: `Keep a machine from being given to anybody: it boots no environment until 'node release'. One that is on and idle is powered off. This is
refused while members run on it; 'node drain --wait' empties it.`,
		Example: `  nearmetal node quarantine n1 --reason "memory errors, ticket 4711"`,
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for those who find the machine so")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if strings.TrimSpace(reason) == "" {
			return usage("say why: --reason TEXT")
		}
		return a.holdNode(cmd.Context(), args[0], api.NodeHoldRequest{Action: api.HoldQuarantine, Reason: reason}, "is in quarantine")
	}
	return cmd
}

func (a *app) nodeRelease() *cobra.Command {
	cmd := &cobra.Command{
		Use: "release NODE", Short: "Release a machine from quarantine", Args: oneArg("node"), ValidArgsFunction: a.completeMachines(1),
		Long: `Release a machine from quarantine. After a cleaning that failed, the machine may still hold what a tenant left: look at it
first. 'node clean' releases the machine, too, when it succeeds.`,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.holdNode(cmd.Context(), args[0], api.NodeHoldRequest{Action: api.HoldRelease}, "is released")
	}
	return cmd
}

func (a *app) holdNode(ctx context.Context, name string, req api.NodeHoldRequest, is string) error {
	c, err := a.client(0)
	if err != nil {
		return err
	}
	n, err := c.HoldNode(ctx, name, req)
	if err != nil {
		return err
	}
	number := n.Machine.Hold.Number
	done := func(n api.Node) (bool, error) { return n.Machine != nil && n.Machine.Record.DoneHold >= number, nil }
	return a.awaitNodes(ctx, c, []string{name}, time.Minute, is, done, func(n api.Node) {
		if (n.Machine.Record.Quarantine != nil) != (req.Action == api.HoldQuarantine) {
			fmt.Fprintf(a.Streams.Out, "node %s: %s\n", n.Name, messageText(n))
			return
		}
		fmt.Fprintf(a.Streams.Out, "node %s %s\n", n.Name, is)
	})
}

// quarantineText is why nobody gets a machine.
func (a *app) quarantineText(q *api.MachineQuarantine) string {
	if q == nil {
		return ""
	}
	return fmt.Sprintf("%s (by %s, %s ago)", q.Reason, orElse(q.By, "the site"), a.age(q.Since))
}

// lastCleaning is the newest cleaning of a machine; nil: there was none.
func lastCleaning(rec *api.MachineRecord) *api.MachineClean {
	if rec.Cleaning != nil {
		return rec.Cleaning
	}
	return rec.Clean
}

// cleaningText is what a cleaning is, in a few words.
func (a *app) cleaningText(rec *api.MachineRecord) string {
	c := lastCleaning(rec)
	switch {
	case c == nil:
		return ""
	case c == rec.Clean:
		return fmt.Sprintf("clean, %s ago, in boot %d", a.age(c.At), c.Generation)
	case !c.Done && rec.Phase == api.MachineCleaning:
		return fmt.Sprintf("goes on%s, %s of %s", dryNote(c.DryRun), sizeText(c.Bytes), sizeText(c.TotalBytes))
	case !c.Done:
		return "interrupted" + dryNote(c.DryRun)
	case c.DryRun:
		return fmt.Sprintf("dry run, %s ago: nothing was erased", a.age(c.At))
	}
	return fmt.Sprintf("failed, %s ago", a.age(c.At))
}

// printCleaning writes the steps of a cleaning.
func printCleaning(w io.Writer, c *api.MachineClean) {
	if c == nil || len(c.Steps) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "CLEANING", "STATE", "METHOD", "SECONDS", "DONE", "VERIFIED", "MESSAGE")
	for i := range c.Steps {
		s := &c.Steps[i]
		done, seconds := "", ""
		if s.TotalBytes > 0 && s.State != api.CleanPlanned {
			done = fmt.Sprintf("%d%%", s.Bytes*100/s.TotalBytes)
		}
		if s.State == api.CleanDone || s.State == api.CleanRunning {
			seconds = fmt.Sprintf("%.1f", s.Seconds)
		}
		message := s.Message
		if len(s.Tried) > 0 && s.State != api.CleanFailed {
			message = strings.Join(append([]string{"before: " + strings.Join(s.Tried, "; ")}, compact(message)...), "; ")
		}
		t.row(string(s.Kind)+" "+s.Target, string(s.State), s.Method, seconds, done, s.Verified, message)
	}
	t.flush()
}

// compact is a text as a list, empty for none.
func compact(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}
