package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

func TestPlansOfNetworksWithAChosenMTUAreAsWritten(t *testing.T) {
	small, wide := testNetwork(1, 2), testNetwork(2, 2)
	small.MTU, wide.MTU, wide.Routed, wide.Project = 1400, 8950, true, "lab"
	spread := small
	spread.Remotes = behind(small, "198.18.0.2", 3)
	across := wide
	across.Remotes = behind(wide, "198.18.0.2", 3)
	m := newMachine()
	var text strings.Builder
	m.write(&text, "a network on this node alone has its own MTU", small)
	m.attach(small, 0)
	m.write(&text, "it spans nodes, and keeps it", spread)
	m.write(&text, "so does a routed one", spread, across)
	m.attach(across, 0)
	m.write(&text, "nothing to do", spread, across)
	m.change("nmbr1", func(l *Link) { l.MTU = 1500 })
	m.change(PortName(small.Ports[0].ID), func(l *Link) { l.MTU = 1500 })
	m.write(&text, "somebody changed MTUs", spread, across)
	m.UnderlayMTU = 8999
	m.write(&text, "the underlay shrinks by a byte: larger frames don't skip the tunnel's device, and nothing mends the underlay", spread, across)
	m.UnderlayMTU = 600
	m.write(&text, "the underlay has no room for any network", spread, across)
	golden(t, "mtu", text.String())
}

// write computes a plan, carries it out, and writes it with what still differs after it.
func (m *machine) write(text *strings.Builder, why string, networks ...fabric.Network) {
	fmt.Fprintf(text, "=== %s\n", why)
	ops, err := Compute(planConfig, networks, m.Observed)
	if err != nil {
		fmt.Fprintf(text, "error: %v\n", err)
		return
	}
	for _, op := range ops {
		if _, rules := op.(LoadRules); !rules {
			fmt.Fprintln(text, op)
		}
		m.execute(op)
	}
	rest, err := Compute(planConfig, networks, m.Observed)
	for _, d := range Drifts(planConfig, networks, m.Observed, rest) {
		fmt.Fprintf(text, "network %d: %s: want %s, got %s\n", d.Network, d.Object, d.Want, d.Got)
	}
	if err != nil {
		fmt.Fprintf(text, "error: %v\n", err)
	}
}

func TestANodeWithoutAnUnderlayHasNoneThatIsTooSmall(t *testing.T) {
	n := testNetwork(1, 2)
	n.MTU = 8950
	seen := newMachine().Observed
	seen.UnderlayMTU = 0
	if got := narrow([]fabric.Network{n}, seen); len(got) > 0 {
		t.Errorf("got %v", got)
	}
	seen.UnderlayMTU = 1500
	n.Ports = nil
	if got := narrow([]fabric.Network{n}, seen); len(got) > 0 {
		t.Errorf("without ports here: got %v", got)
	}
}
