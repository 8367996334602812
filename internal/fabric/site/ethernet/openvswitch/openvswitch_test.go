package openvswitch

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// before is earlier than every epoch of the suite.
var before = lifecycle.Epoch{Term: 0, Revision: 1}

// networkOf is one with full members at ports of the lab's switch.
func networkOf(number int, ports ...string) site.Network {
	n := site.Network{Number: number}
	for _, p := range ports {
		n.Ports = append(n.Ports, site.Port{At: ethernet.Place("sw", p), Limited: number == ethernet.Isolated})
	}
	return n
}

// apply applies networks by a new executor, and waits until the switch has carried them out.
func (o *ovs) apply(revision int64, networks ...site.Network) *ethernet.Site {
	o.t.Helper()
	s := o.executor()
	if err := s.Apply(o.t.Context(), lifecycle.Epoch{Term: 1, Revision: revision}, networks); err != nil {
		o.t.Fatal(err)
	}
	o.Forwarding()
	return s
}

// mustHear fails unless a frame from a port comes out at exactly these.
func (o *ovs) mustHear(from string, want ...string) {
	o.t.Helper()
	if diff := cmp.Diff(want, o.Heard(from, o.Passed), cmp.Transformer("sorted", func(s []string) []string { return slices.Sorted(slices.Values(s)) })); diff != "" {
		o.t.Errorf("who hears port %s (-want +got):\n%s", from, diff)
	}
}

func TestFramesStayInTheirNetwork(t *testing.T) {
	o := newOVS(t)
	o.mustHear("a", "b", "c", "m1", "m2", "m3") // as the switch makes ports
	o.apply(1, networkOf(5, "a", "b"))
	o.mustHear("a", "b")
	o.mustHear("b", "a")
	o.mustHear("c")
	o.apply(2, networkOf(5, "a"), networkOf(6, "b", "c"))
	o.mustHear("a")
	o.mustHear("b", "c")
	o.apply(3)
	for _, p := range []string{"a", "b", "c"} {
		o.mustHear(p)
	}
}
