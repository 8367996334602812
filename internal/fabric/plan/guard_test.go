package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// scriptFor returns the rules that a plan loads, and carries the plan out.
func scriptFor(t testing.TB, m *machine, networks ...fabric.Network) string {
	t.Helper()
	ops, err := Compute(planConfig, networks, m.Observed)
	if err != nil {
		t.Fatal(err)
	}
	var scripts []string
	for _, op := range ops {
		if rules, ok := op.(LoadRules); ok {
			scripts = append(scripts, rules.Script)
		}
		m.execute(op)
	}
	return strings.Join(scripts, "")
}

func TestSecurityGroupsAreWrittenAsPlanned(t *testing.T) {
	bare := testNetwork(1, 2, 3, 4)
	web := withGroup(t, bare, "web", []int{0}, "in tcp 80 from 0.0.0.0/0", "in icmp 8 from 10.64.16.0/20", "in tcp 22 from group admin")
	both := withGroup(t, web, "admin", []int{1}, "in any from group admin", "out tcp 22 to group web", "out any to 10.64.18.0/24")
	web = withGroup(t, web, "admin", nil) // named, without a port here
	web.Groups[1].Members = []netip.Addr{both.Ports[1].Address}
	later := slices.Clone(both.Groups)
	m := newMachine()
	var b strings.Builder
	step := func(why string, n fabric.Network) {
		fmt.Fprintf(&b, "=== %s\n%s", why, scriptFor(t, m, n))
	}
	finish(t, m, []fabric.Network{bare})
	step("a port gets a group", web)
	step("nothing to do", web)
	step("another group, whose port may send what rules allow", both)
	later[1].Members = append(slices.Clone(later[1].Members), netip.MustParseAddr("10.64.16.99"))
	both.Groups = later
	step("a member more, on another node, is one element", both)
	later = slices.Clone(later)
	later[0].Rules = parseRules(t, "in tcp 80 from 0.0.0.0/0", "in tcp 443 from 0.0.0.0/0", "in icmp 8 from 10.64.16.0/20", "in tcp 22 from group admin")
	both.Groups = later
	step("a rule more is one element", both)
	m.Rules[bridgeTable].Parts["chain in_"+PortName(bare.Ports[0].ID)] = "chain in {\n}\n"
	step("somebody emptied a chain", both)
	delete(m.Rules[bridgeTable].Sets, "of_"+groupName(bare, "admin"))
	step("somebody emptied a set", both)
	m.CanGuard = false
	step("a kernel that can't enforce groups closes their ports", both)
	m.CanGuard = true
	finish(t, m, []fabric.Network{both})
	step("no groups", bare)
	golden(t, "guard", b.String())
}

func TestElementsThatPacketsMadeAreNoDrift(t *testing.T) {
	n := withGroup(t, testNetwork(1, 2, 3), "web", []int{0}, "in tcp 80 from 0.0.0.0/0", "out any to 10.0.0.0/8")
	m := newMachine()
	script := scriptFor(t, m, n)
	for _, set := range []string{"flows", "closing", "echoes", "askers"} {
		head := "set " + set + "_" + PortName(n.Ports[0].ID) + " {"
		at := strings.Index(script, head)
		end := at + strings.Index(script[at:], "flags dynamic,timeout\n") + len("flags dynamic,timeout\n")
		script = script[:end] + "\t\telements = { 0xa401003 . 0x6 . 0x50 . 0x8000 timeout 10m expires 9m,\n\t\t\t     0xa401003 . 0x6 . 0x51 . 0x8000 timeout 1m expires 1s }\n" + script[end:]
	}
	m.Rules = Ruleset{}
	m.load(script)
	if more := scriptFor(t, m, n); more != "" {
		t.Errorf("still to be done is:\n%s", more)
	}
}

func TestAPortWithSecurityGroupsGetsNoShortcut(t *testing.T) {
	bare := testNetwork(1, 2, 3)
	m := newMachine()
	finish(t, m, []fabric.Network{bare})
	m.attach(bare, 0)
	m.attach(bare, 1)
	n := withGroup(t, bare, "web", []int{0})
	ops, err := Compute(planConfig, []fabric.Network{n}, m.Observed)
	if err != nil {
		t.Fatal(err)
	}
	shut, isShut := ops[0].(ShutShortcut)
	if !isShut || shut.Name != PortName(n.Ports[0].ID) {
		t.Errorf("the plan begins with %v, want that the port's shortcut is shut before its rules change", ops[0])
	}
	finish(t, m, []fabric.Network{n})
	if _, open := m.OpenShortcuts[PortName(n.Ports[1].ID)]; !open || len(m.OpenShortcuts) != 1 {
		t.Errorf("shortcuts are %v, want that of the port without groups", m.OpenShortcuts)
	}
}
