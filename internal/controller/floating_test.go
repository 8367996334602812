package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// wantOutward asks for a cluster with egress.
func (l *led) wantOutward(name string, size int) {
	l.t.Helper()
	l.view(l.repo.CreateCluster(l.t.Context(), api.ClusterIntent{
		Name: name, UID: "u" + name, CreatedAt: l.now, Spec: api.ClusterSpec{Egress: true, Groups: []api.Group{{
			Name: name, Size: size, Shape: api.Shape{Cores: 1, Memory: 64 << 20}, Stack: api.StackContainer, Environment: "local",
		}}},
	}))
}

// assign makes an address lead to a member, or nowhere when the member is empty.
func (l *led) assign(address, cluster, member string, ports ...string) {
	l.t.Helper()
	a := netip.MustParseAddr(address)
	if l.cache.View().Address(a) == nil {
		l.view(l.repo.AllocateAddress(l.t.Context(), api.FloatingAddress{Address: a, Project: api.DefaultProject, AllocatedAt: l.now}, func([]api.FloatingAddress) error { return nil }))
	}
	_, revision, err := l.repo.ChangeAddress(l.t.Context(), a, func(a *api.FloatingAddress, _ []api.FloatingAddress) error {
		a.Target = nil
		if member != "" {
			a.Target = &api.AddressTarget{Cluster: cluster, ClusterUID: "u" + cluster, Member: member, Ports: ports, AssignedAt: l.now}
		}
		return nil
	})
	l.view(revision, err)
}

// floatingAt are the floating addresses of a node's networks, as lines.
func (l *led) floatingAt(node string) []string {
	lines := []string{}
	for _, n := range l.agents.desired[node].Networks {
		for _, f := range n.Floating {
			lines = append(lines, fmt.Sprintf("%s %s %v", f.Address, f.Port, f.Forwards))
		}
	}
	return lines
}

func (l *led) wantFloating(what string, byNode map[string][]string) {
	l.t.Helper()
	for node, want := range byNode {
		if got := l.floatingAt(node); !slices.Equal(got, want) {
			l.t.Errorf("%s: %s has the floating addresses %q, want %q", what, node, got, want)
		}
	}
}

func TestAFloatingAddressIsWhereItsMemberIs(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 1)
	l.node("n2", 1)
	l.wantOutward("a", 2)
	l.assign("192.0.2.1", "a", "a-0")
	l.afterPasses(3)
	var on [2]string
	for a := range l.cache.View().Cluster("a").Held() {
		on[a.Rank] = a.Node
	}
	l.wantFloating("after a start", map[string][]string{on[0]: {"192.0.2.1 ua.a-0.1 []"}, on[1]: {}})
	l.assign("192.0.2.1", "", "")
	l.assign("192.0.2.2", "a", "a-1", "tcp/2222=22")
	l.mustPass()
	l.wantFloating("another address and member", map[string][]string{on[0]: {}, on[1]: {"192.0.2.2 ua.a-1.1 [tcp/2222=22]"}})
	l.assign("192.0.2.2", "a", "a-7")
	l.mustPass()
	l.wantFloating("a member that does not exist", map[string][]string{on[0]: {}, on[1]: {}})
	l.assign("192.0.2.2", "b", "a-1") // of a cluster that does not exist
	l.mustPass()
	l.wantFloating("a cluster that does not exist", map[string][]string{on[0]: {}, on[1]: {}})
}

func TestNetworksWithAWayOutKnowThePoolAndTheLimit(t *testing.T) {
	l := newLed(t, memory.New())
	l.lead.desired.networks.out = outward{pool: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/28")}, connections: 77}
	l.node("n1", 2)
	l.wantOutward("a", 1)
	l.want("b")
	l.afterPasses(3)
	for _, n := range l.agents.desired["n1"].Networks {
		if n.Egress != (len(n.FloatingPool) == 1) || n.Egress != (n.Connections == 77) {
			t.Errorf("network %s, egress %t, has the pool %v and the limit %d", n.Name, n.Egress, n.FloatingPool, n.Connections)
		}
	}
}

func TestAFloatingAddressFollowsTheReplacementOfALostMember(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 1)
	l.wantOutward("a", 1)
	l.assign("192.0.2.1", "a", "a-0")
	l.afterPasses(3)
	l.report(api.MemberReady)
	l.afterPasses(2)
	l.node("n2", 1)
	l.agents.down["n1"] = true
	l.now = l.now.Add(time.Hour)
	l.afterPasses(4)
	l.wantFloating("after its node was lost", map[string][]string{"n1": {}, "n2": {"192.0.2.1 " + only(t, l.cache.View().Cluster("a")).ID + " []"}})
	l.release(l.cache.View().Cluster("a"))
	l.afterPasses(2)
	l.wantFloating("when its cluster ends", map[string][]string{"n1": {}, "n2": {}})
}
