package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/fabric/topology"
)

func (a *app) fabricCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "fabric", Short: "Show the site's fabrics, their switches and links, and audit them", Args: cobra.ArbitraryArgs, RunE: needCommand}
	cmd.Long = cmd.Short + `. A fabric is a cell of the site: the Ethernet of the nodes' data network, called "ethernet", and each InfiniBand that
the site manages. A node is in one cell for each fabric that its ports are connected to.

Clusters go under as few leaf switches as they can. Nodes at links with too many errors get members only when no other node has room.`
	cmd.AddCommand(a.fabricList(), a.fabricShow(), a.fabricTopology(), a.fabricEvents(), a.fabricAudit())
	return a.connects(cmd)
}

func (a *app) fabricList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List fabrics", Args: noArgs}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		all, err := c.Fabrics(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, all, func(w io.Writer) {
			t := newTable(w, "NAME", "TECHNOLOGY", "SWITCHES", "LINKS", "NODES", "PARTITIONS", "MANAGER", "FAULTS", "ALARMS", "READ")
			for i := range all {
				f := &all[i]
				t.row(f.Name, string(f.Technology), strconv.Itoa(f.Switches), strconv.Itoa(f.Links), strconv.Itoa(nodesIn(f)), strconv.Itoa(len(f.Partitions)), masterOf(f),
					strconv.Itoa(len(f.Faults)), strconv.Itoa(len(f.Alarms)), a.ageOf(f.ReadAt))
			}
			t.flush()
		})
	}
	return cmd
}

// nodesIn counts the nodes in a cell, whatever number of ports they have.
func nodesIn(f *api.Fabric) int {
	names := map[string]bool{}
	for _, n := range f.Nodes {
		names[n.Node] = true
	}
	return len(names)
}

// masterOf is the master subnet manager of a fabric, by its node or its GUID.
func masterOf(f *api.Fabric) string {
	for _, m := range f.Managers {
		if m.State == "master" {
			return orElse(m.Node, m.GUID)
		}
	}
	return ""
}

func (a *app) fabricShow() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show a fabric: its nodes, subnet managers, partitions and faults", Args: oneArg("fabric"), ValidArgsFunction: a.completeFabrics,
		Example: "  nearmetal fabric show ethernet\n  nearmetal fabric show ib0 -o json",
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		f, err := c.Fabric(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, f, func(w io.Writer) { a.printFabric(w, &f) })
	}
	return cmd
}

func (a *app) printFabric(w io.Writer, f *api.Fabric) {
	read := ""
	if f.ReadAt != nil {
		read = a.age(*f.ReadAt) + " ago"
	}
	fields(w, "Name", f.Name, "Technology", string(f.Technology), "Switches", strconv.Itoa(f.Switches), "Links", strconv.Itoa(f.Links), "Nodes", strconv.Itoa(nodesIn(f)),
		"Read", read, "Problem", f.Problem)
	for _, alarm := range f.Alarms {
		_, _ = fmt.Fprintf(w, "Alarm: %s\n", alarm)
	}
	for _, fault := range f.Faults {
		_, _ = fmt.Fprintf(w, "Fault: %s, last seen %s ago\n", fault.Message, a.age(fault.LastSeenAt))
	}
	if len(f.Managers) > 0 {
		_, _ = io.WriteString(w, "\n")
		t := newTable(w, "SUBNET MANAGER", "NODE", "PRIORITY", "STATE")
		for _, m := range f.Managers {
			t.row(m.GUID, m.Node, strconv.Itoa(m.Priority), m.State)
		}
		t.flush()
	}
	if len(f.Nodes) > 0 {
		_, _ = io.WriteString(w, "\n")
		t := newTable(w, "NODE", "PORT", "SWITCH", "SWITCH PORT", "RATE", "RAIL")
		for _, n := range f.Nodes {
			t.row(n.Node, n.At, n.Switch, n.SwitchPort, linkRate(n.RateBitsPerSecond), strconv.Itoa(n.Rail))
		}
		t.flush()
	}
	if len(f.Partitions) > 0 {
		_, _ = io.WriteString(w, "\n")
		t := newTable(w, "NUMBER", "NETWORK", "PROJECT", "MEMBERS", "LIMITED", "LOAD")
		for _, p := range f.Partitions {
			t.row(strconv.Itoa(p.Number), p.Network, otherProject(p.Project), strconv.Itoa(p.Members), strconv.Itoa(p.Limited), loadText(p.LoadBitsPerSecond))
		}
		t.flush()
	}
}

// linkRate is a link's rate; empty where it is not known.
func linkRate(bitsPerSecond int64) string {
	if bitsPerSecond == 0 {
		return ""
	}
	return api.Rate(bitsPerSecond).String()
}

// loadText is a measured rate, rounded.
func loadText(bitsPerSecond int64) string {
	switch {
	case bitsPerSecond == 0:
		return ""
	case bitsPerSecond < 1_000_000_000:
		return fmt.Sprintf("%.1f Mbit/s", float64(bitsPerSecond)/1e6)
	default:
		return fmt.Sprintf("%.1f Gbit/s", float64(bitsPerSecond)/1e9)
	}
}

func (a *app) fabricTopology() *cobra.Command {
	cmd := &cobra.Command{
		Use: "topology NAME", Short: "Show the switches and links of a fabric, or draw them", Args: oneArg("fabric"), ValidArgsFunction: a.completeFabrics,
		Long: `Show the switches of a fabric and the links between them and to hosts, with rates, loads and errors, as of the last survey.

With --svg, write a picture of the fabric: links as wide as they are fast, as dark as they are loaded, and red where they have a fault; each
host is marked with the partitions of its ports.`,
		Example: "  nearmetal fabric topology ib0\n  nearmetal fabric topology ib0 --svg ib0.svg",
	}
	svg := cmd.Flags().String("svg", "", "write a picture (SVG) to this file instead; - is standard output")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		t, err := c.FabricTopology(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if !cmd.Flags().Changed("svg") {
			return out.print(a.Streams.Out, t, func(w io.Writer) { printTopology(w, &t) })
		}
		f, err := c.Fabric(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		picture := topology.Draw(&t, f.Partitions)
		if *svg == "-" {
			_, err := io.WriteString(a.Streams.Out, picture)
			return err
		}
		if err := os.WriteFile(*svg, []byte(picture), 0o644); err != nil {
			return fmt.Errorf("the picture can't be written: %w", err)
		}
		return nil
	}
	return cmd
}

func printTopology(w io.Writer, t *api.FabricTopology) {
	if len(t.Switches) == 0 {
		_, _ = io.WriteString(w, "No switch is known. An InfiniBand fabric is surveyed every minute; switches of an Ethernet are known from nodes that were inspected and heard LLDP.\n")
		return
	}
	switches := newTable(w, "SWITCH", "ID", "LEVEL", "RAIL", "POD", "PORTS")
	for _, s := range t.Switches {
		ports := ""
		if s.Ports > 0 {
			ports = strconv.Itoa(s.Ports)
		}
		switches.row(s.Name, s.ID, strconv.Itoa(s.Level), strconv.Itoa(s.Rail), s.Pod, ports)
	}
	switches.flush()
	_, _ = io.WriteString(w, "\n")
	links := newTable(w, "FROM", "PORT", "TO", "PORT", "WIDTH", "SPEED", "RATE", "LOAD", "ERRORS", "FAULT")
	for _, l := range t.Links {
		links.row(l.From.Name, l.From.Port, l.To.Name, l.To.Port, l.Width, l.Speed, linkRate(l.RateBitsPerSecond), loadText(max(l.From.SentBitsPerSecond, l.To.SentBitsPerSecond)),
			errorsText(l), faultText(l))
	}
	links.flush()
}

// errorsText sums up the errors at both ends of a link, by their names.
func errorsText(l api.FabricLink) string {
	sum := map[string]int64{}
	var names []string
	for _, e := range []api.FabricEnd{l.From, l.To} {
		for name, n := range e.Errors {
			if sum[name] == 0 {
				names = append(names, name)
			}
			sum[name] += n
		}
	}
	slices.Sort(names)
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d", name, sum[name])
	}
	return strings.Join(names, ", ")
}

// faultText is a link's fault without the link's name.
func faultText(l api.FabricLink) string {
	_, what, found := strings.Cut(l.Fault, ": ")
	if !found {
		return l.Fault
	}
	return what
}

func (a *app) fabricEvents() *cobra.Command {
	cmd := &cobra.Command{
		Use: "events NAME", Short: "Show when alarms and faults of a fabric began and ended", Args: oneArg("fabric"), ValidArgsFunction: a.completeFabrics,
		Example: "  nearmetal fabric events ib0",
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		events, err := c.FabricEvents(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, events, func(w io.Writer) {
			t := newTable(w, "TIME", "REASON", "ALARM", "MESSAGE")
			for _, e := range events {
				t.row(e.Time.Local().Format(timeFormat), e.Reason, e.Alarm, e.Message)
			}
			t.flush()
		})
	}
	return cmd
}

func (a *app) fabricAudit() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit NAME", Short: "Read a fabric's tables and compare them with what they should be", Args: oneArg("fabric"), ValidArgsFunction: a.completeFabrics,
		Long: `Read a fabric's own tables now and compare them with the ports that members hold. Nothing is changed: the leader repairs what differs within
half a minute. The command ends with an error if anything differs.`,
		Example: "  nearmetal fabric audit ib0",
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		audit, err := c.AuditFabric(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if err := out.print(a.Streams.Out, audit, func(w io.Writer) { printAudit(w, &audit) }); err != nil {
			return err
		}
		if len(audit.Drift) > 0 {
			return fmt.Errorf("fabric %s differs from what it should have, at %d of its ports", audit.Fabric, len(audit.Drift))
		}
		return nil
	}
	return cmd
}

func printAudit(w io.Writer, audit *api.FabricAudit) {
	_, _ = fmt.Fprintf(w, "Read %d ports in networks of fabric %s.\n", audit.Ports, audit.Fabric)
	for _, d := range audit.Drift {
		_, _ = fmt.Fprintf(w, "drift: %s\n", d)
	}
	for _, u := range audit.Unknown {
		_, _ = fmt.Fprintf(w, "unknown: %s\n", u)
	}
	if len(audit.Drift)+len(audit.Unknown) == 0 {
		_, _ = io.WriteString(w, "All is as it should be.\n")
	}
}

// completeFabrics completes the name of one fabric.
func (a *app) completeFabrics(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		all, err := c.Fabrics(ctx)
		var names []string
		for _, f := range all {
			names = append(names, f.Name)
		}
		return names, err
	})
}
