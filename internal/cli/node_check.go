package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/hostcheck"
)

// Host checks and prepares the machine that the command runs on.
type Host interface {
	Check(ctx context.Context) ([]hostcheck.Finding, error)
	Plan(ctx context.Context, w hostcheck.Wanted) hostcheck.Prepared
	Apply(ctx context.Context, changes []hostcheck.Change, show func(hostcheck.Change)) error
}

func (a *app) nodeCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use: "check [NAME]", Short: "Report what a machine lacks to be a node",
		Long: `Report what this machine lacks to be a node, for each stack, and the command that fixes it. It needs no server and changes nothing. As root it
sees more.

With NAME, have the agent of that node check its host now, which needs an administrator. With --recorded, report what it found when it started.

The exit code is 0 if nothing is missing, warnings or not, and 1 otherwise.`,
		Example: `  nearmetal node check
  nearmetal node check -o json
  nearmetal node check n1`,
		ValidArgsFunction: a.completeNodes(1),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && args[0] == "" {
				return usage("'nearmetal node check' takes the name of one node, or nothing for this machine")
			}
			return nil
		},
	}
	recorded := cmd.Flags().Bool("recorded", false, "report what the agent of the node found when it started")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *recorded && len(args) == 0 {
			return usage("--recorded is what the agent of a node found; name the node")
		}
		var all []hostcheck.Finding
		var err error
		if len(args) == 1 {
			all, err = a.checkNode(cmd.Context(), args[0], *recorded)
		} else {
			all, err = a.Commands.Host.Check(cmd.Context())
		}
		if err != nil {
			return err
		}
		if err := out.print(a.Streams.Out, all, func(w io.Writer) { printFindings(w, all) }); err != nil {
			return err
		}
		if hostcheck.Worst(all) == hostcheck.Missing {
			return &exitError{code: ExitFailed}
		}
		return nil
	}
	return cmd
}

// checkPatience is how long a host may take to be checked, with what it takes to ask.
const checkPatience = 40 * time.Second

// checkNode returns what the agent of a node finds, or has found when it started.
func (a *app) checkNode(ctx context.Context, name string, recorded bool) ([]hostcheck.Finding, error) {
	c, err := a.client(checkPatience)
	if err != nil {
		return nil, err
	}
	if !recorded {
		check, err := c.CheckHost(ctx, name)
		var all []hostcheck.Finding
		for _, f := range check.Findings {
			all = append(all, hostcheck.Finding{Area: hostcheck.Area(f.Area), Name: f.Name, Status: hostcheck.Status(f.Status), Detail: f.Detail, Fix: f.Fix})
		}
		return all, err
	}
	node, err := c.Node(ctx, name)
	if err != nil {
		return nil, err
	}
	if node.Agent == nil {
		return nil, &exitError{ExitConflict, fmt.Errorf("no agent of node %q has connected yet, so nothing is known of its host", name)}
	}
	var all []hostcheck.Finding
	for _, check := range node.Offer.Stacks {
		all = append(all, hostcheck.Stack(check)...)
	}
	return all, nil
}

// printFindings writes a line for each finding, and below them what is to be done.
func printFindings(w io.Writer, all []hostcheck.Finding) {
	t := newTable(w, "STATUS", "FOR", "WHAT", "DETAIL")
	for _, f := range all {
		t.row(string(f.Status), string(f.Area), f.Name, f.Detail)
	}
	t.flush()
	if !slices.ContainsFunc(all, func(f hostcheck.Finding) bool { return f.Fix != "" }) {
		return
	}
	fmt.Fprintln(w)
	fixes := newTable(w, "FOR", "WHAT", "FIX")
	for _, f := range all {
		if f.Fix != "" {
			fixes.row(string(f.Area), f.Name, f.Fix)
		}
	}
	fixes.flush()
}

func (a *app) nodePrepare() *cobra.Command {
	var dryRun bool
	var stacks []string
	var huge string
	var functions []string
	cmd := &cobra.Command{
		Use: "prepare", Short: "Prepare this machine to be a node", Args: noArgs,
		Long: `Install the programs that a node needs, load kernel modules, and set what the kernel has to be set to, now and at each boot. Each change is
shown before it is made, and nothing is changed that is in order: a second run changes nothing. What needs firmware, another kernel or a reboot is listed.

With --virtual-functions, adapters get virtual functions now. For virtual machines the IOMMU is turned on besides, by an argument of the kernel. The
driver mlx4_core takes the number only when it is loaded, so it gets an option, and the machine has to be rebooted.

Packages are installed by apt-get, without starting services. The only files that are written are /etc/modules-load.d/nearmetal.conf,
/etc/sysctl.d/60-nearmetal.conf, /etc/modprobe.d/nearmetal-sriov.conf and /etc/default/grub.d/nearmetal.cfg. Needs root.`,
		Example: `  nearmetal node prepare --dry-run
  nearmetal node prepare --for container
  nearmetal node prepare --for container,vm,builder --huge-pages 8GiB
  nearmetal node prepare --virtual-functions enp59s0f0=7`,
	}
	flags := cmd.Flags()
	flags.BoolVar(&dryRun, "dry-run", false, "show the changes, and make none")
	flags.StringSliceVar(&stacks, "for", []string{"container", "vm"}, "what to prepare for: container, vm, builder")
	flags.StringVar(&huge, "huge-pages", "", "memory to reserve in huge pages, like 8GiB")
	flags.StringArrayVar(&functions, "virtual-functions", nil, "number of virtual functions of an adapter, by PCI address or interface: ADAPTER=N; may be repeated")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		wanted, err := wantedOf(stacks, huge)
		if err != nil {
			return err
		}
		if len(functions) > 0 {
			if wanted.Functions, err = functionCounts(functions); err != nil {
				return err
			}
		}
		return a.prepare(cmd.Context(), wanted, dryRun, out)
	}
	return cmd
}

func wantedOf(stacks []string, huge string) (w hostcheck.Wanted, err error) {
	known := []hostcheck.Area{hostcheck.Container, hostcheck.VM, hostcheck.Builder}
	for _, word := range stacks {
		area := hostcheck.Area(word)
		if !slices.Contains(known, area) {
			return w, usage("--for %q is not known; use container, vm or builder", word)
		}
		if !slices.Contains(w.For, area) {
			w.For = append(w.For, area)
		}
	}
	if huge != "" {
		if w.HugePages, err = api.ParseBytes(huge); err != nil {
			return w, usage("--huge-pages: %v", err)
		}
	}
	return w, nil
}

func (a *app) prepare(ctx context.Context, w hostcheck.Wanted, dryRun bool, out *format) error {
	plan := a.Commands.Host.Plan(ctx, w)
	people := *out == formatTable
	show := func(c hostcheck.Change) {
		if people {
			fmt.Fprintf(a.Streams.Out, "%s\n", c)
		}
	}
	if dryRun {
		for _, c := range plan.Changes {
			show(c)
		}
	} else if err := a.Commands.Host.Apply(ctx, plan.Changes, show); err != nil {
		return err
	}
	return out.print(a.Streams.Out, plan, func(w io.Writer) {
		if len(plan.Changes) == 0 {
			fmt.Fprintln(w, "nothing to change")
		}
		for _, text := range plan.Left {
			fmt.Fprintf(w, "left to do: %s\n", text)
		}
	})
}
