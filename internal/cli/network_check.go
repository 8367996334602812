package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// networkPatience is how long a network may take to be checked.
const networkPatience = 30 * time.Second

func (a *app) networkCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use: "check NAME", Short: "Check a network, or trace a packet on it", Args: oneArg("network"), ValidArgsFunction: a.completeNetworks,
		Long: `Check a network on all its nodes. Each node compares its kernel with what should be in force, looks at its ports, and exchanges probes with the
other nodes. The probes are as large as the network's packets become in a tunnel, so an MTU that is too small on the way is found. Differences
are reported and not repaired; agents repair them by themselves within 30 seconds.

With --from and --to, trace the first packet of a connection instead, and the answer to it: each place that the packet passes, and the rule
that lets it pass or stops it. The packet begins at a port of the network. It goes to another port there, to a member on another routed network
of the project, to a floating address, or to the outside. With an address of the outside in --from and a floating address in --to, it comes in.
A trace evaluates what nodes should have in force, and sends nothing.

The exit code is 0 if everything is in order, or if the packet and the answer arrive, and 1 otherwise.`,
		Example: `  nearmetal network check project/lab
  nearmetal network check project/lab --from one/one-0 --to two/two-0
  nearmetal network check project/lab --from one/one-0 --to 10.64.128.4 --protocol tcp --port 22
  nearmetal network check project/lab --from one/one-0 --to 203.0.113.5 --protocol tcp --port 443
  nearmetal network check project/lab --from 203.0.113.5 --to 192.0.2.1 --protocol tcp --port 22`,
	}
	var r client.TraceRequest
	flags := cmd.Flags()
	flags.StringVar(&r.From, "from", "", "trace a packet from this port, CLUSTER/MEMBER or its address on the network, or from an address outside of the site")
	flags.StringVar(&r.To, "to", "", "trace a packet to this port, CLUSTER/MEMBER, to a floating address or to any other address")
	flags.StringVar(&r.Protocol, "protocol", "icmp", "protocol of the traced packet: tcp, udp, icmp or icmp6")
	flags.IntVar(&r.Port, "port", 0, "destination port of the traced packet, or the type of an ICMP message (default: echo request)")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		traced := slices.ContainsFunc([]string{"from", "to", "protocol", "port"}, flags.Changed)
		if traced && (r.From == "" || r.To == "") {
			return usage("a trace needs both ends of the packet: --from CLUSTER/MEMBER --to CLUSTER/MEMBER")
		}
		if !slices.Contains([]string{"tcp", "udp", "icmp", "icmp6"}, r.Protocol) {
			return usage("--protocol %q is not known; use tcp, udp, icmp or icmp6", r.Protocol)
		}
		if !strings.HasPrefix(r.Protocol, "icmp") && (r.Port < 1 || r.Port > 65535) {
			return usage("--protocol %s needs --port with a destination port from 1 to 65535", r.Protocol)
		}
		c, err := a.client(networkPatience)
		if err != nil {
			return err
		}
		if traced {
			return a.tracePacket(cmd.Context(), c, args[0], r, out)
		}
		return a.checkNetwork(cmd.Context(), c, args[0], out)
	}
	return cmd
}

func (a *app) checkNetwork(ctx context.Context, c *client.Client, name string, out *format) error {
	check, err := c.CheckNetwork(ctx, name)
	if err != nil {
		return err
	}
	if err := out.print(a.Streams.Out, check, func(w io.Writer) { printNetworkCheck(w, check) }); err != nil {
		return err
	}
	if slices.ContainsFunc(check.Findings, func(f api.NetworkFinding) bool { return !f.OK }) {
		return &exitError{code: ExitFailed}
	}
	return nil
}

func printNetworkCheck(w io.Writer, check api.NetworkCheck) {
	if len(check.Findings) == 0 {
		fmt.Fprintln(w, "no node has a port of the network, so there is nothing to check")
		return
	}
	t := newTable(w, "NODE", "CHECK", "STATUS", "DETAIL")
	for _, f := range check.Findings {
		status := "ok"
		if !f.OK {
			status = "wrong"
		}
		t.row(f.Node, f.Check, status, f.Detail)
	}
	t.flush()
}

func (a *app) tracePacket(ctx context.Context, c *client.Client, name string, r client.TraceRequest, out *format) error {
	path, err := c.TracePacket(ctx, name, r)
	if err != nil {
		return err
	}
	if err := out.print(a.Streams.Out, path, func(w io.Writer) { printTrace(w, path) }); err != nil {
		return err
	}
	if !path.Passes || len(path.Reply) > 0 && !path.Answered {
		return &exitError{code: ExitFailed}
	}
	return nil
}

func printTrace(w io.Writer, path api.NetworkTrace) {
	t := newTable(w, "HOP", "NODE", "PLACE", "RESULT", "DETAIL")
	rows := func(prefix string, hops []api.TraceHop) {
		for i, h := range hops {
			result := "passes"
			if !h.Passes {
				result = "stops"
			}
			t.row(prefix+strconv.Itoa(i+1), h.Node, h.Place, result, h.Detail)
		}
	}
	rows("", path.Request)
	rows("answer ", path.Reply)
	t.flush()
	fmt.Fprintf(w, "\n%s from %s to %s %s\n", path.Packet, path.From, path.To, traceVerdict(path))
}

// traceVerdict is the end of a trace in words.
func traceVerdict(path api.NetworkTrace) string {
	last := func(hops []api.TraceHop) string {
		h := hops[len(hops)-1]
		return fmt.Sprintf("%d (%s, %s)", len(hops), h.Node, h.Place)
	}
	switch {
	case !path.Passes:
		return "is stopped at hop " + last(path.Request)
	case path.Answered:
		return "passes, and so does the answer"
	case len(path.Reply) > 0:
		return "passes, but the answer is stopped at its hop " + last(path.Reply)
	default:
		return "passes"
	}
}
