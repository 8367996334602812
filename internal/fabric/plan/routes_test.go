package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// routedNetwork is testNetwork of a project, routed.
func routedNetwork(project string, index int, hosts ...int) fabric.Network {
	n := testNetwork(index, hosts...)
	n.Project, n.Routed = project, true
	return n
}

func TestPlansOfRoutedNetworksAreAsWritten(t *testing.T) {
	a, b, other := routedNetwork("lab", 1, 2), routedNetwork("lab", 2), routedNetwork("class", 3, 2)
	b.Remotes = behind(b, "198.18.0.2", 3)
	both := a
	both.Remotes = behind(a, "198.18.0.2", 4)
	out := a
	out.Egress = true
	moving := b
	moving.Remotes = slices.Concat(b.Remotes, behind(b, "198.18.0.3", 3))
	m := newMachine()
	var text strings.Builder
	step := func(why string, before func(), networks ...fabric.Network) {
		if before != nil {
			before()
		}
		ops, err := Compute(planConfig, networks, m.Observed)
		fmt.Fprintf(&text, "=== %s\n", why)
		if err != nil {
			fmt.Fprintf(&text, "error: %v\n", err)
		}
		for _, op := range ops {
			fmt.Fprintln(&text, op)
			m.execute(op)
		}
	}
	step("a routed network on this node alone has a gateway", nil, a)
	step("another of the project is on another node: both get a tunnel, and the other's members are known", nil, a, b)
	step("nothing to do", nil, a, b)
	step("a routed network of another project is connected to neither", nil, a, b, other)
	step("a member comes there that is on the first network", nil, both, b, other)
	step("a member moves: for a while its place is not certain", nil, both, moving, other)
	step("the first network gets egress", nil, out, b, other)
	step("somebody meddled with neighbours and places", func() {
		m.change("nmbr2", func(l *Link) {
			l.Neighbours = append(l.Neighbours[:0:0], Neighbour{netip.MustParseAddr("10.64.32.9"), "02:00:00:00:00:09"})
		})
		m.change("nmvx2", func(l *Link) { l.Placed = []Placed{{Heard: l.Placed[0].Heard, Partial: true}} })
	}, out, b, other)
	step("the other network is gone", nil, a, other)
	step("nothing is left", nil)
	golden(t, "routes", text.String())
}
