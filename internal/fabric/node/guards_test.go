package node

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

func TestAKernelWithoutWhatGroupsNeedClosesTheirPorts(t *testing.T) {
	lab := newGuardLab(t, 3)
	good := lab.node.fabric.guards.probe
	lab.node.fabric.guards.probe = "table bridge nm_probe { set s { type nonsense; } }"
	lab.guard(t, lab.group(t, "open", []int{0}, "in any from 0.0.0.0/0"))
	lab.mustStop(t, "a packet from the port", udp(0, 1, 9, 9))
	var text, behind string
	lab.inOrder(t, func() { text, behind = lab.put(t, udp(1, 0, 9, 9)), lab.put(t, udp(1, 2, 9, 9)) })
	if _, ok := (listener{lab.members[2].fd}).until(behind, markerTimeout); !ok {
		t.Error("a packet between ports without groups did not arrive")
	}
	if _, ok := (listener{lab.members[0].fd}).until(text, time.Millisecond); ok {
		t.Error("a packet to the port arrived, but must not")
	}
	lab.mustPass(t, "a packet between ports without groups", udp(1, 2, 9, 9))
	err := lab.node.fabric.Attach(context.Background(), lab.members[0].port, lab.members[0].place())
	if !errors.Is(err, fabric.ErrUnguarded) || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("attaching a port with a group: got %v, want ErrUnguarded with the kernel's refusal", err)
	}
	if err := lab.node.fabric.Attach(context.Background(), lab.members[1].port, lab.members[1].place()); err != nil {
		t.Errorf("attaching a port without groups: %v", err)
	}
	lab.node.fabric.guards.probe = good
	apply(t, lab.node.fabric, lab.network)
	lab.mustPass(t, "a packet after the kernel learned it", udp(1, 0, 9, 9))
}

func TestAPortThatIsAttachedWithItsGroupsIsGuarded(t *testing.T) {
	lab := newGuardLab(t, 2)
	lab.network.Ports = append(lab.network.Ports, testPort(lab.network, 9))
	lab.guard(t, lab.group(t, "web", []int{2}, "in tcp 80 from 0.0.0.0/0"))
	lab.members = append(lab.members, lab.join(t, lab.node.fabric, lab.network, 2))
	lab.mustStop(t, "a packet to a port that has just come", udp(1, 2, 9, 9))
	lab.mustPass(t, "a packet that a rule allows", tcp(1, 2, 9, 80, flagSYN))
	if open, err := lab.node.fabric.observe(t.Context()); err != nil || open.OpenShortcuts[plan.PortName(lab.network.Ports[2].ID)] != (plan.Shortcut{}) {
		t.Errorf("the port has a shortcut past the rules, or %v", err)
	}
}

func TestWhatSomebodyChangedInSecurityGroupsIsFoundAndRepaired(t *testing.T) {
	lab := newGuardLab(t, 3)
	lab.guard(t, lab.group(t, "web", []int{0}, "in tcp 80 from 0.0.0.0/0", "in udp 7 from group web"))
	name := plan.PortName(lab.network.Ports[0].ID)
	for what, script := range map[string]string{
		"flushed all rules":         "nft flush ruleset",
		"flushed a chain":           "nft flush chain bridge nm in_" + name,
		"added a rule to a chain":   "nft insert rule bridge nm in_" + name + " accept",
		"removed the way to it":     "nft flush map bridge nm guards_in",
		"emptied a set":             "nft flush set bridge nm $(nft list sets | sed -n 's/.*set \\(in_nmg[^_ ]*\\) .*/\\1/p' | head -1)",
		"made a chain for a port":   "nft add chain bridge nm in_nmp0000000000",
		"changed the way from it":   "nft flush map bridge nm guards_out",
		"removed a member of group": "nft flush set bridge nm $(nft list sets | sed -n 's/.*set \\(of_nmg[^_ ]*\\) .*/\\1/p' | head -1)",
	} {
		lab.node.run(t, script)
		if drifts, err := lab.node.fabric.Audit(t.Context()); err != nil || len(drifts) == 0 {
			t.Errorf("somebody %s: found are %v, %v", what, drifts, err)
		}
		apply(t, lab.node.fabric, lab.network)
		if drifts, err := lab.node.fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
			t.Errorf("somebody %s, after the repair: found are %v, %v", what, drifts, err)
		}
		lab.mustPass(t, "a packet that a rule allows", tcp(1, 0, 999, 80, flagSYN))
		lab.mustStop(t, "a packet that no rule allows", tcp(1, 0, 999, 81, flagSYN))
	}
}

func TestWhatPortsHaveOpenIsNoDriftAndSurvivesChanges(t *testing.T) {
	lab := newGuardLab(t, 4)
	groups := []fabric.Group{lab.group(t, "web", []int{0}, "in tcp 80 from group admin", "in any from 192.0.2.0/24"), lab.group(t, "admin", nil)}
	lab.guard(t, groups...)
	lab.mustPass(t, "a request", udp(0, 1, 999, 53))
	lab.mustPass(t, "an echo request", icmp(0, 1, 8, 7))
	if drifts, err := lab.node.fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
		t.Errorf("a port has something open, and found are %v, %v", drifts, err)
	}
	change := func(what string, change func(groups []fabric.Group)) {
		t.Helper()
		groups = slices.Clone(groups)
		change(groups)
		lab.guard(t, groups...)
		lab.mustPass(t, "a reply after "+what, udp(1, 0, 53, 999))
	}
	change("a member came", func(groups []fabric.Group) { groups[1].Members = []netip.Addr{lab.network.Ports[2].Address} })
	lab.mustPass(t, "a packet of the member that came", tcp(2, 0, 9, 80, flagSYN))
	change("a member went", func(groups []fabric.Group) { groups[1].Members = nil })
	lab.mustStop(t, "a packet of the member that went", tcp(2, 0, 9, 80, flagSYN))
	change("rules were widened and narrowed", func(groups []fabric.Group) {
		groups[0].Rules = parsedRules(t, "in tcp 80-90 from 10.64.16.0/30", "in tcp 85 from 10.64.16.5/32", "in any from 192.0.0.0/8")
	})
	lab.mustPass(t, "a packet that a changed rule allows", tcp(1, 0, 9, 90, flagSYN))
	lab.mustStop(t, "a packet that a changed rule does not allow", tcp(3, 0, 9, 90, flagSYN))
	change("rules by overlapping prefixes", func(groups []fabric.Group) {
		groups[0].Rules = parsedRules(t, "in tcp 80-90 from 10.64.0.0/16", "in tcp 85-95 from 10.64.16.5/32", "in any from 128.0.0.0/1")
	})
	change("another port came to the group", func(groups []fabric.Group) {
		groups[0].Ports = append(slices.Clone(groups[0].Ports), lab.network.Ports[3].ID)
	})
	restarted := newFabric(t, lab.node.namespace, Config{})
	lab.node.fabric = restarted
	change("the agent was restarted", func([]fabric.Group) {})
	lab.guard(t)
	lab.mustPass(t, "a packet to a port whose group is gone", tcp(1, 0, 9, 99, flagSYN))
	if out := lab.node.run(t, "nft list table bridge nm"); strings.Contains(out, "nmg") || strings.Contains(out, "flows") {
		t.Errorf("left over are parts of groups:\n%s", out)
	}
}

func TestSecurityGroupsHoldForFramesOfOtherNodes(t *testing.T) {
	lab := newUnderlayLab(t, false)
	server := lab.networks[0]
	server.Groups = []fabric.Group{{ID: "web", Ports: []string{server.Ports[0].ID}, Rules: parsedRules(t, "in icmp from 10.64.48.99/32")}}
	apply(t, lab.nodes[0].fabric, server)
	mustNotReach(t, lab.members[1].namespace, "a port with a group on another node", lab.members[0].address())
	mustReach(t, lab.members[0].namespace, "a member on another node", lab.members[1].address())
	server.Groups[0].Members = []netip.Addr{lab.members[1].port.Address}
	server.Groups[0].Rules = parsedRules(t, "in icmp from group web")
	apply(t, lab.nodes[0].fabric, server)
	mustReach(t, lab.members[1].namespace, "a port whose group has this member of another node", lab.members[0].address())
}

func TestAPortWithASecurityGroupReachesTheOutside(t *testing.T) {
	lab := newEgressLab(t)
	lab.networks[0].Groups = []fabric.Group{{ID: "web", Ports: []string{lab.networks[0].Ports[0].ID}}}
	apply(t, lab.node.fabric, lab.networks...)
	mustReach(t, lab.members[0].namespace, "the outside", internet)
	lab.networks[0].Groups[0].Rules = parsedRules(t, "out icmp to 198.51.100.0/24")
	apply(t, lab.node.fabric, lab.networks...)
	mustNotReach(t, lab.members[0].namespace, "the outside, which no rule allows,", internet)
}
