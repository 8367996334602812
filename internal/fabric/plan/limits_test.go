package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// limit carries out an operation on limits.
func (m *machine) limit(op Operation) {
	if m.Limits.Ports == nil {
		m.Limits.Ports = map[string]Limit{}
	}
	switch o := op.(type) {
	case SetParentRate:
		m.Limits.Parent = o.Rate
	case SetLimit:
		m.Limits.Ports[o.Port] = o.Limit
		if class := o.Limit.Class; class != 0 && !slices.Contains(m.Limits.Classes, class) {
			m.Limits.Classes = append(m.Limits.Classes, class)
		}
	case ClearLimit:
		delete(m.Limits.Ports, o.Port)
	case DeleteClass:
		m.Limits.Classes = remove(m.Limits.Classes, o.Class)
	}
}

func TestPlansOfLimitsAreAsWritten(t *testing.T) {
	one, three := testNetwork(1, 2, 3), testNetwork(3, 2)
	three.Remotes = behind(three, "198.18.0.2", 3)
	plain := one
	one = withPorts(one, 2, 3)
	one.Ports[0].Quality = api.Quality{MinRate: 2e8, MaxRate: 1e9, DSCP: "10"}
	marked := withPorts(three, 2)
	marked.Ports[0].Quality = api.Quality{DSCP: "46"}
	m := newMachine()
	var b strings.Builder
	step := func(why string, before func(), networks ...fabric.Network) {
		if before != nil {
			before()
		}
		ops, err := Compute(planConfig, networks, m.Observed)
		fmt.Fprintf(&b, "=== %s\n", why)
		if err != nil {
			fmt.Fprintf(&b, "error: %v\n", err)
		}
		for _, op := range ops {
			fmt.Fprintln(&b, op)
			m.execute(op)
		}
	}
	attachAll := func(n fabric.Network) {
		for i := range n.Ports {
			m.attach(n, i)
		}
	}
	step("two networks without rates", nil, plain, three)
	attachAll(plain)
	attachAll(three)
	step("a port gets rates and a mark: its shortcut goes first, and the limit comes once the device is there", nil, one, three)
	step("nothing to do", nil, one, three)
	step("a port of a network across nodes is marked: the outer packets are, too", nil, one, marked)
	step("somebody meddled with queues", func() {
		name := PortName(one.Ports[0].ID)
		limit := m.Limits.Ports[name]
		limit.Max, limit.Broken = 5e9, true
		m.Limits.Parent, m.Limits.Ports[name] = 0, limit
		m.Limits.Classes = append(m.Limits.Classes, 0x70)
	}, one, marked)
	step("somebody removed the device", func() {
		delete(m.Links, ShaperName)
		m.Limits = Limits{}
	}, one, marked)
	step("the node learned what its uplink carries", func() { m.UplinkRate = 10e9 }, one, marked)
	slower := withPorts(one, 2, 3)
	slower.Ports[0].Quality = api.Quality{MinRate: 1e8}
	step("a port has another rate and no mark", nil, slower, marked)
	step("only the mark is left: the class goes after its port", nil, plain, marked)
	step("nothing has rates or marks: limits go first, and shortcuts return", nil, plain, three)
	step("the kernel can't: the node does without", func() { m.CanShape = false }, one, marked)
	one.Ports[0].Quality = api.Quality{MinRate: 2e9, MaxRate: 1e9}
	step("an invalid rate changes nothing", nil, one)
	golden(t, "limits", b.String())
}

func TestPortsHaveClassesOfTheirOwn(t *testing.T) {
	n := fabric.Network{}
	for i := range fabric.MaxShapedPorts {
		n.Ports = append(n.Ports, fabric.Port{ID: fmt.Sprint(i), Quality: api.Quality{MaxRate: 1e9}})
	}
	seen := map[uint16]bool{}
	for _, limit := range LimitsOf([]fabric.Network{n}, unbounded) {
		if limit.Class == 0 || limit.Class%classStep != 0 || seen[limit.Class] {
			t.Fatalf("class %#x is not one of its own, or prefers packets on other links", limit.Class)
		}
		seen[limit.Class] = true
	}
}

func TestMarksAreReadBackWhateverNFTCallsThem(t *testing.T) {
	for text, want := range map[string]string{
		"ip dscp set af11": "ip dscp set 10", "ip dscp set cs0": "ip dscp set 0", "ip dscp set lephb": "ip dscp set 1", "ip dscp set 0x05": "ip dscp set 5",
		"ip dscp set df": "ip dscp set 0", "ip dscp set 46": "ip dscp set 46", "\t\tip dscp set va": "\t\tip dscp set 44", "ip dscp set strange": "ip dscp set strange",
		"ip dscp af11 accept": "ip dscp af11 accept",
	} {
		if got := normalMark(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
