package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cpumodel"
	"github.com/nearmetal/nearmetal/internal/resource"
)

func (a *app) nodeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "Enroll, power, show, drain and remove nodes", Args: cobra.ArbitraryArgs, RunE: needCommand}
	cmd.AddCommand(
		a.nodeCheck(), a.nodePrepare(), a.nodeList(), a.nodeShow(), a.nodeEvents(), a.nodeDrain(), a.nodeUndrain(), a.nodeMaintenance(), a.nodeTrust(), a.nodeUntrust(), a.nodeApprove(), a.nodeRevoke(), a.nodeForget(),
		a.nodeEnroll(), a.nodeSet(), a.nodeCandidates(), a.enrollTokenCommand(), a.nodeInspect(), a.nodeClean(), a.nodeQuarantine(), a.nodeRelease(), a.nodePower(), a.nodeConsole(), a.nodeBMCPassword(), a.nodeRemove(),
	)
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
			header := []string{"NAME", "PHASE", "POWER", "HEALTH", "ENVIRONMENT", "CORES USED", "MEMORY USED", "MEMBERS", "STACKS", "OVERSUBSCRIBED", "DRAIN", "SEEN", "MESSAGE"}
			machines := slices.ContainsFunc(nodes, func(n api.Node) bool { return n.Machine != nil })
			// Where no node is a machine, nothing is known of power and boot.
			cells := func(all []string) []string {
				if machines {
					return all
				}
				return slices.Delete(all, 2, 5)
			}
			t := newTable(w, cells(header)...)
			for _, n := range nodes {
				t.row(cells([]string{
					n.Name, string(n.Phase), powerText(n), healthText(n), bootedText(n), coresText(n), memoryText(n), fmt.Sprint(len(n.Members)),
					strings.Join(offered(n), ","), yesNo(n.Offer.Oversubscribed), drainText(n), a.ageOf(lastSeen(n)), messageText(n),
				})...)
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

// powerText is the power of a node's machine.
func powerText(n api.Node) string {
	if n.Machine == nil {
		return ""
	}
	return string(n.Machine.Record.Power)
}

// healthText is what the health of a node's machine comes to: the worst of its failed checks and its sensors. Empty: nothing is known.
func healthText(n api.Node) string {
	m := n.Machine
	switch {
	case m == nil:
		return ""
	case m.Sensors != nil && m.Sensors.State == api.SensorCritical:
		return "critical"
	case slices.ContainsFunc(m.Record.Health, func(h api.HealthResult) bool { return !h.OK }), m.Sensors != nil && m.Sensors.State == api.SensorWarning:
		return "warning"
	case m.Sensors != nil:
		return string(m.Sensors.State)
	case len(m.Record.Health) > 0:
		return "ok"
	default:
		return ""
	}
}

// underlayText is a node's address on the data network, with the MTU of the link that bears it.
func underlayText(agent *api.AgentPart) string {
	if agent.UnderlayMTU == 0 {
		return agent.Underlay
	}
	return fmt.Sprintf("%s, MTU %d", agent.Underlay, agent.UnderlayMTU)
}

// trunkText is the link that carries a node's VLANs, or why it does not.
func trunkText(t *api.Trunk) string {
	switch {
	case t == nil:
		return ""
	case !t.Usable():
		return t.Interface + ", not usable: " + t.Problem
	default:
		return fmt.Sprintf("%s, MTU %d", t.Interface, t.MTU)
	}
}

// poolText is the room that a node has for volumes, or why it has none.
func poolText(agent *api.AgentPart) string {
	if agent == nil || agent.VolumePool == nil {
		return ""
	}
	p := agent.VolumePool
	if len(p.Problems) > 0 {
		return "none: " + strings.Join(p.Problems, "; ")
	}
	text := fmt.Sprintf("%s, %s of %s promised to volumes, %s held", p.Kind, resource.Storage.Number(agent.VolumeBytes), resource.Storage.Number(p.CapacityBytes),
		resource.Storage.Number(p.HeldBytes))
	if p.UnlimitedIO != "" {
		text += "; limits of I/O do not bound " + p.UnlimitedIO
	}
	return text
}

// sharingText is how volumes cross from and to a node.
func sharingText(agent *api.AgentPart) string {
	if agent == nil || agent.VolumeSharing == nil {
		return ""
	}
	serves, reaches := "serves its volumes to other nodes", "reaches those of other nodes"
	if why := agent.VolumeSharing.ServeProblem; why != "" {
		serves = "does not serve its volumes to other nodes: " + why
	}
	if why := agent.VolumeSharing.ReachProblem; why != "" {
		reaches = "does not reach those of other nodes: " + why
	}
	text := serves + "; " + reaches
	if agent.VolumeSharing.Blocks {
		text += "; block volumes cross"
	}
	return text
}

// uplinkText is what a node's uplink carries, which minimum rates of ports are taken from.
func uplinkText(n api.Node) string {
	if n.Offer.Capacity.UplinkBitsPerSecond == 0 {
		return ""
	}
	return api.Rate(n.Offer.Capacity.UplinkBitsPerSecond).String()
}

func (a *app) printNode(w io.Writer, n api.Node) {
	shown := append([]string{"Name", n.Name, "Phase", string(n.Phase), "Message", messageText(n)}, a.drainFields(n)...)
	shown = append(shown, "Maintenance", windowsText(n), "Labels", labels(n.Labels))
	shown = append(shown, offerFields(n)...)
	shown = append(shown, besidesFields(n)...)
	if agent := n.Agent; agent != nil {
		shown = append(shown, "Underlay", underlayText(agent), "Trunk", trunkText(agent.Trunk), "Uplink", uplinkText(n), "Agent", agent.Version, "First seen", a.age(agent.FirstSeenAt)+" ago",
			"Last heard", a.ageOf(agent.LastSeenAt))
	}
	shown = append(shown, "Data network", dataNetworkText(n), "Volumes", poolText(n.Agent), "Sharing", sharingText(n.Agent))
	if n.Machine == nil { // whose identity comes and goes with each boot
		shown = append(shown, a.identityFields(n.Identity)...)
	}
	shown = append(shown, "Builder", a.builderText(n))
	fields(w, append(shown, "Members", strings.Join(n.Members, ", "))...)
	if n.Machine != nil {
		fmt.Fprintln(w)
		a.printMachine(w, n)
	}
	printAdapters(w, n)
	a.printGPUs(w, n)
	if len(n.Offer.Stacks)+len(n.Offer.Environments) == 0 && n.Agent == nil {
		return
	}
	fmt.Fprintln(w)
	stacks := newTable(w, "STACK", "OFFERED", "PROBLEMS")
	for _, s := range n.Offer.Stacks {
		problems := slices.Clone(s.Problems)
		for _, w := range s.Warnings {
			problems = append(problems, "warning: "+w)
		}
		stacks.row(string(s.Stack), yesNo(s.OK), strings.Join(problems, "; "))
	}
	stacks.flush()
	for _, s := range n.Offer.Stacks {
		if len(s.CPUModels) > 0 {
			fmt.Fprintf(w, "\nCPU models of stack %s: %s\n", s.Stack, strings.Join(append([]string{cpumodel.Host}, s.CPUModels...), ", "))
		}
	}
	fmt.Fprintln(w)
	environments := newTable(w, "ENVIRONMENT", "RUNS HERE", "DIGEST", "PROBLEMS")
	for _, e := range n.Offer.Environments {
		environments.row(e.Name, yesNo(e.OK), shorten(e.Digest, 20), strings.Join(e.Problems, "; "))
	}
	environments.flush()
}

// offered are the stacks whose host checks passed.
func offered(n api.Node) []string {
	var names []string
	for _, s := range n.Offer.Stacks {
		if s.OK {
			names = append(names, string(s.Stack))
		}
	}
	return names
}

// messageText is the node's message; while it boots and all goes well, how far it is.
func messageText(n api.Node) string {
	if n.Message != "" || n.Machine == nil {
		return n.Message
	}
	return stageOf(&n.Machine.Record)
}

// offerFields are the fields about what a node offers; none while nothing is known of it.
func offerFields(n api.Node) []string {
	if n.Agent == nil && len(n.Offer.Capacity.Cores) == 0 {
		return nil
	}
	cpus := make([]int, len(n.Offer.Capacity.Cores))
	for i, core := range n.Offer.Capacity.Cores {
		cpus[i] = core.CPU
	}
	over, confirmed := "", ""
	if n.Offer.Oversubscribed {
		over = "yes: physical cores are offered more than once, measurements do not count"
	}
	switch {
	case n.Offer.Confirmed:
	case n.Agent != nil:
		confirmed = "no: this is what its agent offered before the machine went off"
	default:
		confirmed = "no: this follows from its inspected hardware; its agent has never called"
	}
	return []string{
		"Cores used", coresText(n), "CPUs", ranges(cpus), "Memory used", memoryText(n), "NUMA nodes", fmt.Sprint(len(n.Offer.Capacity.NUMANodes)),
		"Confirmed", confirmed, "Differences", strings.Join(n.Offer.Differences, "; "), "Oversubscribed", over,
	}
}

// lastSeen is when a node's agent was last heard; nil when it was never.
func lastSeen(n api.Node) *time.Time {
	if n.Agent == nil {
		return nil
	}
	return n.Agent.LastSeenAt
}

// unconfirmed marks what no running agent stands for.
func unconfirmed(n api.Node, text string) string {
	if n.Offer.Confirmed {
		return text
	}
	return text + " (not confirmed)"
}

func coresText(n api.Node) string {
	cores := len(n.Offer.Capacity.Cores)
	if cores == 0 && n.Machine != nil {
		return ""
	}
	text := fmt.Sprintf("%d of %d", n.AllocatedCores, cores)
	if n.QuarantinedCores > 0 {
		text += fmt.Sprintf(", %d quarantined", n.QuarantinedCores)
	}
	return unconfirmed(n, text)
}

// memoryText rounds to MiB: the last bytes say nothing to people.
func memoryText(n api.Node) string {
	bytes := n.Offer.Capacity.MemoryBytes
	if bytes == 0 && n.Machine != nil {
		return ""
	}
	return unconfirmed(n, fmt.Sprintf("%s of %s", sizeText(n.AllocatedMemoryBytes), sizeText(bytes)))
}

// besidesFields are the disk and the huge pages of a node that has any.
func besidesFields(n api.Node) []string {
	var all []string
	c := n.Offer.Capacity
	if c.DiskBytes > 0 {
		all = append(all, "Disk", unconfirmed(n, fmt.Sprintf("%s of %s", sizeText(n.AllocatedDiskBytes), sizeText(c.DiskBytes))))
	}
	var pools []string
	for _, numa := range c.NUMANodes {
		for _, pool := range numa.HugePages {
			pools = append(pools, fmt.Sprintf("%s of %s on NUMA node %d", sizeText(pool.Bytes), api.Bytes(pool.PageBytes), numa.ID))
		}
	}
	if len(pools) > 0 {
		all = append(all, "Huge pages", strings.Join(pools, ", "))
	}
	return all
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
