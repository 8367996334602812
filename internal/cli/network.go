package cli

import (
	"context"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func (a *app) networkCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "network", Short: "Create, show, check and delete networks", Args: cobra.ArbitraryArgs, RunE: needCommand}
	cmd.Long = cmd.Short + `. Every placed cluster has a private network of its own, named like the cluster, and the further ones
that its groups name: CLUSTER:NETWORK. These end with their cluster.

A project's network outlives clusters: project/NETWORK. Members of all clusters of the project whose groups name it reach each other there,
and know each other as MEMBER.CLUSTER.

These commands also take NETWORK alone for project/NETWORK, unless a cluster has that name. A group's networks need the full name, because
NETWORK alone is a further private network of the cluster there.

For a network of another project than the token's, write PROJECT.CLUSTER, PROJECT.CLUSTER:NETWORK or project/PROJECT.NETWORK.`
	cmd.AddCommand(a.networkCreate(), a.networkList(), a.networkShow(), a.networkSet(), a.networkCheck(), a.networkDelete())
	return a.connects(cmd)
}

func (a *app) networkList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List networks", Args: noArgs}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		all, err := c.Networks(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, all, func(w io.Writer) {
			projects := severalProjects(all, func(n api.NetworkStatus) string { return n.Project })
			t := newTable(w, projects.row("NAME", "PROJECT", "CLUSTER", "PHASE", "TECHNOLOGY", "ID", "SUBNET", "EGRESS", "PORTS")...)
			for i := range all {
				n := &all[i]
				t.row(projects.row(n.Name, n.Project, n.Cluster, string(n.Phase), string(n.Technology), indexText(n), subnetText(n), yesNo(n.Egress),
					portsText(n.Ports))...)
			}
			t.flush()
		})
	}
	return cmd
}

// portState is whether a port is in use, and why it still exists where it is not.
func portState(p *api.NetworkPort) string {
	switch {
	case p.Quarantined:
		return "quarantined"
	case p.Releasing:
		return "releasing"
	default:
		return "in use"
	}
}

// portsText counts the ports in use, and apart from them those that still exist.
func portsText(ports []api.NetworkPort) string {
	of := map[string]int{}
	for i := range ports {
		of[portState(&ports[i])]++
	}
	text := strconv.Itoa(of["in use"])
	for _, state := range []string{"releasing", "quarantined"} {
		if of[state] > 0 {
			text += ", " + strconv.Itoa(of[state]) + " " + state
		}
	}
	return text
}

func (a *app) networkShow() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show a network and its ports", Args: oneArg("network"), ValidArgsFunction: a.completeNetworks,
		Long: `Show a network, by its name or UID, and its ports.

With --counters, also show what passed each port since it was made, as the member sees it: sent left the member. Agents report counters every 5
seconds. Packets are counted as the kernel passes them, and one may stand for many on the wire. Dropped are packets that the port's own links
dropped; packets that rules dropped count as sent.`,
		Example: "  nearmetal network show c1\n  nearmetal network show c1:storage -o json\n  nearmetal network show project/lab --counters",
	}
	counters := cmd.Flags().Bool("counters", false, "also show the bytes, packets and drops of each port")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		n, err := c.Network(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, n, func(w io.Writer) {
			printNetwork(w, &n)
			if *counters {
				printCounters(w, &n)
			}
		})
	}
	return cmd
}

// indexText is the number that the wire has for a network: its VLAN ID, its partition key, or its index.
func indexText(n *api.NetworkStatus) string {
	if n.Index == 0 {
		return ""
	}
	switch n.Technology {
	case api.TechnologyVLAN:
		return strconv.Itoa(n.VLAN)
	case api.TechnologyInfiniBand:
		return api.PKeyText(n.PKey)
	}
	return strconv.Itoa(n.Index)
}

// subnetText is the subnet of a network that has one, or asks for one.
func subnetText(n *api.NetworkStatus) string {
	if !n.Prefix.IsValid() {
		return ""
	}
	return n.Prefix.String()
}

// subnet6Text is the IPv6 subnet of a network that has one.
func subnet6Text(n *api.NetworkStatus) string {
	if !n.HasIPv6() {
		return ""
	}
	return n.Prefix6.String()
}

func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// portColumn is a column of ports that is shown if any port has something in it.
type portColumn struct {
	title string
	cell  func(p *api.NetworkPort) string
}

// functionText is the adapter's part that a port is on.
func functionText(p *api.NetworkPort) string { return strings.TrimSuffix(p.Device+" "+p.Part, " ") }

// routedText is whether a network of a project is routed. Those of clusters never are.
func routedText(n *api.NetworkStatus) string {
	if !n.OfProject() {
		return ""
	}
	return yesNo(n.Routed)
}

// mtuText is the MTU that was chosen for a network.
func mtuText(n *api.NetworkStatus) string {
	if n.MTU == 0 {
		return ""
	}
	return strconv.Itoa(n.MTU)
}

// partitionText is how a partition carries IP.
func partitionText(n *api.NetworkStatus) string {
	if n.Technology != api.TechnologyInfiniBand {
		return ""
	}
	text, p := yesNo(n.Partition.IPoIB), n.Partition
	if p.IPoIBMode != "" {
		text += ", " + string(p.IPoIBMode)
	}
	if p.MTUBytes > 0 {
		text += ", MTU " + strconv.Itoa(p.MTUBytes)
	}
	if p.RateGbps > 0 {
		text += ", at least " + strconv.Itoa(p.RateGbps) + " Gbit/s"
	}
	if p.ServiceLevel > 0 {
		text += ", service level " + strconv.Itoa(p.ServiceLevel)
	}
	return text
}

func printNetwork(w io.Writer, n *api.NetworkStatus) {
	gateway := ""
	if n.Gateway.IsValid() {
		gateway = n.Gateway.String()
	}
	fields(w, "Name", n.Name, "UID", n.UID, "Project", otherProject(n.Project), "Cluster", n.Cluster, "Phase", string(n.Phase), "Refused", n.Refused,
		"Technology", string(n.Technology), "Cell", n.Cell, "ID", indexText(n), "IPoIB", partitionText(n), "Subnet", subnetText(n), "Gateway", gateway, "IPv6 subnet", subnet6Text(n), "Egress", yesNo(n.Egress), "Routed", routedText(n), "MTU", mtuText(n), "Ports", portsText(n.Ports))
	printRecords(w, n.Records)
	if len(n.Ports) == 0 {
		return
	}
	_, _ = io.WriteString(w, "\n")
	// Columns that all ports leave empty are omitted.
	choices := slices.DeleteFunc([]portColumn{
		{"IPV6 ADDRESS", func(p *api.NetworkPort) string { return addressText(p.Address6) }},
		{"DEVICE", functionText},
		{"GUID", func(p *api.NetworkPort) string { return p.GUID }},
		{"MEMBERSHIP", func(p *api.NetworkPort) string {
			switch {
			case p.Limited:
				return "limited"
			case p.GUID != "":
				return "full"
			default:
				return ""
			}
		}},
		{"SECURITY GROUPS", func(p *api.NetworkPort) string { return strings.Join(p.SecurityGroups, ",") }},
		{"RATES", func(p *api.NetworkPort) string { return p.RatesText() }},
		{"DSCP", func(p *api.NetworkPort) string { return string(p.DSCP) }},
	}, func(c portColumn) bool {
		return !slices.ContainsFunc(n.Ports, func(p api.NetworkPort) bool { return c.cell(&p) != "" })
	})
	titles := []string{"CLUSTER", "MEMBER", "NODE", "KIND", "ADDRESS", "MAC"}
	for _, c := range choices {
		titles = append(titles, c.title)
	}
	t := newTable(w, append(titles, "STATE")...)
	for i := range n.Ports {
		p := &n.Ports[i]
		cells := []string{p.Cluster, p.Member, p.Node, string(p.Kind), p.Address.String(), p.MAC}
		for _, c := range choices {
			cells = append(cells, c.cell(p))
		}
		t.row(append(cells, portState(p))...)
	}
	t.flush()
}

// completeNetworks completes the name of one network, a short one where it is of the user's own project.
func (a *app) completeNetworks(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		all, err := c.Networks(ctx)
		if err != nil {
			return nil, err
		}
		own := ""
		if who, err := c.Whoami(ctx); err == nil {
			own = who.Project
		}
		var names []string
		for i := range all {
			name := all[i].Name
			if all[i].Project != own {
				name = fullName(all[i].Project, name)
				if short, ok := api.CutProjectNetwork(all[i].Name); ok {
					name = api.ProjectNetwork(fullName(all[i].Project, short))
				}
			}
			names = append(names, name)
		}
		return names, nil
	})
}
