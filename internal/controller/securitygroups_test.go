package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/portgroups"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// securityGroup makes a security group of the default project.
func (l *led) securityGroup(name string, rules ...string) {
	l.t.Helper()
	l.view(l.repo.CreateSecurityGroup(l.t.Context(), api.SecurityGroup{Name: name, UID: "group-" + name, Project: api.DefaultProject, Rules: rules, CreatedAt: l.now}))
}

// setRules replaces the rules of a security group.
func (l *led) setRules(name string, rules ...string) {
	l.t.Helper()
	_, revision, err := l.repo.ChangeSecurityGroup(l.t.Context(), name, l.now, func([]string) ([]string, error) { return rules, nil })
	l.view(revision, err)
}

// wantGuarded asks for a cluster whose members have ports with security groups on the network lab.
func (l *led) wantGuarded(name string, size int, groups ...string) {
	l.t.Helper()
	l.view(l.repo.CreateCluster(l.t.Context(), api.ClusterIntent{
		Name: name, UID: "u" + name, CreatedAt: l.now, Spec: api.ClusterSpec{Groups: []api.Group{{
			Name: name, Size: size, Shape: api.Shape{Cores: 1, Memory: 64 << 20}, Stack: api.StackContainer, Environment: "local",
			Networks: []api.GroupNetwork{{Name: "project/lab", SecurityGroups: groups}},
		}}},
	}))
}

// groupsAt are the security groups of the network lab on a node, as lines.
func (l *led) groupsAt(node string) []string {
	var lines []string
	for _, n := range l.agents.desired[node].Networks {
		for _, g := range n.Groups {
			if n.UID != "net-lab" {
				l.t.Errorf("network %s has group %s", n.Name, g.ID)
			}
			lines = append(lines, fmt.Sprintf("%s %v %v %v", g.ID, g.Rules, g.Members, g.Ports))
		}
	}
	return lines
}

func TestNodesHaveTheSecurityGroupsOfAllPortsOnTheirNetworks(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 2)
	l.node("n2", 2)
	l.network("lab", "10.64.128.0/24")
	l.securityGroup("ops")
	l.securityGroup("web", "in tcp 22 from group ops")
	l.wantGuarded("a", 2, "web")
	l.wantGuarded("b", 1, "ops", "web")
	l.wantGuarded("c", 1)
	view := l.afterPasses(4)
	want := []string{
		"ops [] [10.64.128.4] [ub.b-0.1+1]",
		"web [in tcp 22 from group ops] [10.64.128.2 10.64.128.3 10.64.128.4] [ua.a-0.1+1 ua.a-1.1+1 ub.b-0.1+1]",
	}
	for _, node := range []string{"n1", "n2"} {
		if got := l.groupsAt(node); !slices.Equal(got, want) {
			t.Errorf("%s has the groups %q, want %q", node, got, want)
		}
	}
	if ports := only(t, view.Cluster("b")).Ports; ports[0].SecurityGroups != nil || !slices.Equal(ports[1].SecurityGroups, []string{"ops", "web"}) {
		t.Errorf("the ports of b-0 are %+v, want groups on the second alone", ports)
	}

	l.setRules("web", "in tcp 80 from 0.0.0.0/0")
	l.mustPass()
	want = []string{"ops [] [10.64.128.4] [ub.b-0.1+1]", "web [in tcp 80 from 0.0.0.0/0] [10.64.128.2 10.64.128.3 10.64.128.4] [ua.a-0.1+1 ua.a-1.1+1 ub.b-0.1+1]"}
	for _, node := range []string{"n1", "n2"} {
		if got := l.groupsAt(node); !slices.Equal(got, want) {
			t.Errorf("after a change of rules, %s has the groups %q, want %q", node, got, want)
		}
	}
}

func TestAPortKeepsItsSecurityGroupsWhileItsClusterIsLetGo(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 2)
	l.network("lab", "10.64.128.0/24")
	l.securityGroup("web", "in any from group web")
	l.wantGuarded("a", 1, "web")
	view := l.afterPasses(3)
	l.release(view.Cluster("a"))
	l.afterPasses(2)
	if got := l.groupsAt("n1"); !slices.Equal(got, []string{"web [in any from group web] [10.64.128.2] [ua.a-0.1+1]"}) {
		t.Errorf("a port that is not clean yet has the groups %q", got)
	}
}

// guardedEnds are the ends of one cluster on the network lab, with one port of a security group on each node.
func guardedEnds(group string, nodes ...string) map[string]ends {
	prefix := netip.MustParsePrefix("10.64.128.0/24")
	on := ends{network: api.Network{UID: "lab", Index: 7, Project: "physics", Prefix: prefix, Gateway: prefix.Addr().Next()}, byNode: map[string]end{}}
	for i, node := range nodes {
		port := fabric.Port{ID: node + "+1", Address: netip.AddrFrom4([4]byte{10, 64, 128, byte(2 + i)})}
		e := end{ports: []fabric.Port{port}}
		if group != "" {
			e.guarded = append(e.guarded, guardedPort(port, group))
		}
		on.byNode[node] = e
	}
	return map[string]ends{"lab": on}
}

func TestAChangeOfRulesConcernsTheNodesWithSuchPortsAlone(t *testing.T) {
	n := newCarried(outward{}, false)
	rules := func(project, name string, rules ...string) []*api.SecurityGroup {
		return []*api.SecurityGroup{{Name: state.SecurityGroupName(project, name), Project: project, Rules: rules}}
	}
	first := rules("physics", "web", "in udp from 10.0.0.0/8")
	n.learnRules(nil, first)
	n.set("ua", nil, guardedEnds("web", "n1", "n2"))
	merge(t, &n)
	groups := func() []fabric.Group {
		var d agentstream.Desired
		n.addTo(&d, "n2")
		return whole(d).Networks[0].Groups
	}
	if got := groups(); len(got) != 1 || fmt.Sprint(got[0].Rules) != "[in udp from 10.0.0.0/8]" {
		t.Errorf("n2 has the groups %v", got)
	}
	n.learnRules(nil, rules("default", "web", "in any from 0.0.0.0/0"))
	if got := merge(t, &n); len(got) > 0 {
		t.Errorf("a group of another project changes nodes %v", got)
	}
	next := rules("physics", "web", "in tcp from 10.0.0.0/8")
	n.learnRules(first, next)
	if got := merge(t, &n); !slices.Equal(got, []string{"n1", "n2"}) {
		t.Errorf("new rules change nodes %v, want both with such ports", got)
	}
	n.learnRules(next, nil)
	merge(t, &n)
	if got := groups(); len(got) != 1 || len(got[0].Rules) != 0 || len(got[0].Ports) != 2 {
		t.Errorf("when a group is gone, ports that still have it are %v, want them closed", got)
	}
	n.learnRules(nil, next)
	n.set("ua", n.ends["lab"]["ua"].asMap(), guardedEnds("", "n1", "n2"))
	if got := merge(t, &n); !slices.Equal(got, []string{"n1", "n2"}) || len(groups()) > 0 {
		t.Errorf("when no port has groups, nodes %v change and %v is left", got, groups())
	}
}

func TestRulesThatNodesCannotEnforceReachNoNode(t *testing.T) {
	n := newCarried(outward{}, false)
	broken := []*api.SecurityGroup{{Name: "physics.web", Project: "physics", Rules: []string{"in tcp from 10.0.0.0/8", "in tcp 80 from 10.0.0.0/8"}}}
	n.learnRules(nil, broken)
	n.set("ua", nil, guardedEnds("web", "n1"))
	dirty := map[string]bool{}
	if failed := n.merge(dirty); failed["lab"] == nil || len(dirty) > 0 {
		t.Errorf("got %v for nodes %v, want the reason and no node", failed, dirty)
	}
}

func guardedPort(p fabric.Port, groups ...string) portgroups.Port {
	return portgroups.Port{ID: p.ID, Address: p.Address, Groups: groups}
}
