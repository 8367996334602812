package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
)

func (a *app) nodeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "Show, drain and forget nodes", Args: cobra.ArbitraryArgs, RunE: needCommand}
	cmd.AddCommand(a.nodeList(), a.nodeShow(), a.nodeDrain(), a.nodeUndrain(), a.nodeForget())
	return a.connects(cmd)
}

func (a *app) nodeList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List nodes", Args: noArgs}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		nodes, err := c.Nodes(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, nodes, func(w io.Writer) {
			t := newTable(w, "NAME", "PHASE", "CORES USED", "MEMORY USED", "MEMBERS", "STACKS", "OVERSUBSCRIBED", "DRAIN", "SEEN", "MESSAGE")
			for _, n := range nodes {
				t.row(n.Name, string(n.Phase), coresText(n), memoryText(n), fmt.Sprint(len(n.Members)), strings.Join(offered(n), ","),
					yesNo(n.Oversubscribed), drainText(n), a.ageOf(n.LastSeenAt), n.Message)
			}
			t.flush()
		})
	}
	return cmd
}

func (a *app) nodeShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show NAME", Short: "Show a node", Args: oneArg("node"), ValidArgsFunction: a.completeNodes(1)}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		n, err := c.Node(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, n, func(w io.Writer) { a.printNode(w, n) })
	}
	return cmd
}

func (a *app) printNode(w io.Writer, n api.Node) {
	cpus := make([]int, len(n.Capacity.Cores))
	for i, core := range n.Capacity.Cores {
		cpus[i] = core.CPU
	}
	over := ""
	if n.Oversubscribed {
		over = "yes: physical cores are offered more than once, measurements do not count"
	}
	shown := append([]string{"Name", n.Name, "Phase", string(n.Phase), "Message", n.Message}, a.drainFields(n)...)
	fields(w, append(shown, "Labels", labels(n.Labels), "Cores used", coresText(n), "CPUs", ranges(cpus), "Memory used", memoryText(n), "NUMA nodes", fmt.Sprint(len(n.Capacity.NUMANodes)),
		"Oversubscribed", over, "Underlay", n.Underlay, "Agent", n.AgentVersion, "First seen", a.age(n.FirstSeenAt)+" ago",
		"Last heard", a.ageOf(n.LastSeenAt), "Members", strings.Join(n.Members, ", "))...)
	fmt.Fprintln(w)
	stacks := newTable(w, "STACK", "OFFERED", "PROBLEMS")
	for _, s := range n.Stacks {
		stacks.row(string(s.Stack), yesNo(s.OK), strings.Join(s.Problems, "; "))
	}
	stacks.flush()
	fmt.Fprintln(w)
	environments := newTable(w, "ENVIRONMENT", "RUNS HERE", "DIGEST", "PROBLEMS")
	for _, e := range n.Environments {
		environments.row(e.Name, yesNo(e.OK), shorten(e.Digest, 20), strings.Join(e.Problems, "; "))
	}
	environments.flush()
}

// offered are the stacks whose host checks passed.
func offered(n api.Node) []string {
	var names []string
	for _, s := range n.Stacks {
		if s.OK {
			names = append(names, string(s.Stack))
		}
	}
	return names
}

func coresText(n api.Node) string {
	text := fmt.Sprintf("%d of %d", n.AllocatedCores, len(n.Capacity.Cores))
	if n.QuarantinedCores > 0 {
		text += fmt.Sprintf(", %d quarantined", n.QuarantinedCores)
	}
	return text
}

// memoryText rounds to MiB: the last bytes say nothing to people.
func memoryText(n api.Node) string {
	return fmt.Sprintf("%s of %s", sizeText(n.AllocatedMemoryBytes), sizeText(n.Capacity.MemoryBytes))
}

// sizeText writes bytes with one decimal in the largest unit.
func sizeText(bytes int64) string {
	const gib, mib = 1 << 30, 1 << 20
	switch {
	case bytes >= gib && bytes%gib == 0:
		return fmt.Sprintf("%dGiB", bytes/gib)
	case bytes >= gib:
		return fmt.Sprintf("%.1fGiB", float64(bytes)/gib)
	default:
		return fmt.Sprintf("%dMiB", bytes/mib)
	}
}

func (a *app) envCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "env", Aliases: []string{"environment"}, Short: "Show environments", Args: cobra.ArbitraryArgs, RunE: needCommand,
	}
	cmd.AddCommand(a.envList(), a.envShow())
	return a.connects(cmd)
}

func (a *app) envList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List environments", Args: noArgs}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		all, err := c.Environments(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, all, func(w io.Writer) {
			t := newTable(w, "NAME", "STACKS", "NODES", "DESCRIPTION")
			for _, e := range all {
				ok := 0
				for _, n := range e.Nodes {
					if n.OK {
						ok++
					}
				}
				t.row(e.Name, stackNames(e.Stacks), fmt.Sprintf("%d of %d", ok, len(e.Nodes)), e.Description)
			}
			t.flush()
		})
	}
	return cmd
}

func (a *app) envShow() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show an environment and where it runs", Args: oneArg("environment"),
		ValidArgsFunction: a.completeEnvironments,
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		e, err := c.Environment(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, e, func(w io.Writer) {
			fields(w, "Name", e.Name, "Description", e.Description, "Stacks", stackNames(e.Stacks))
			fmt.Fprintln(w)
			t := newTable(w, "NODE", "RUNS THERE", "DIGEST", "PROBLEMS")
			for _, n := range e.Nodes {
				t.row(n.Node, yesNo(n.OK), shorten(n.Digest, 20), strings.Join(n.Problems, "; "))
			}
			t.flush()
		})
	}
	return cmd
}

func stackNames(stacks []api.Stack) string {
	names := make([]string, len(stacks))
	for i, s := range stacks {
		names[i] = string(s)
	}
	return strings.Join(names, ",")
}
