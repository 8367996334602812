package controller

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// network asks for a network of the default project; an invalid prefix asks for any.
func (l *led) network(name, prefix string) {
	l.t.Helper()
	in := api.NetworkIntent{Name: name, UID: "net-" + name, Project: api.DefaultProject, CreatedAt: l.now}
	if prefix != "" {
		in.Prefix = netip.MustParsePrefix(prefix)
	}
	l.view(l.repo.CreateNetwork(l.t.Context(), in))
}

// wantOn asks for a cluster whose only group has members of one core on networks.
func (l *led) wantOn(name string, size int, networks ...string) {
	l.t.Helper()
	l.view(l.repo.CreateCluster(l.t.Context(), api.ClusterIntent{
		Name: name, UID: "u" + name, CreatedAt: l.now, Spec: api.ClusterSpec{Groups: []api.Group{{
			Name: name, Size: size, Shape: api.Shape{Cores: 1, Memory: 64 << 20}, Stack: api.StackContainer, Environment: "local", Networks: api.OnNetworks(networks...),
		}}},
	}))
}

// addressesOn are those that clusters hold on a network, with their members.
func addressesOn(view *state.View, network string) []string {
	var all []string
	for _, c := range view.Clusters {
		for a := range c.All() {
			for _, p := range a.Ports {
				if p.Network == network {
					all = append(all, fmt.Sprintf("%s %s %s", a.Member, p.Address, p.MAC))
				}
			}
		}
	}
	return all
}

func (l *led) afterPasses(n int) *state.View {
	l.t.Helper()
	var view *state.View
	for range n {
		view = l.mustPass()
	}
	return view
}

func TestClustersOnANetworkOfTheirProjectHaveAddressesOfTheirOwnAndNameEachOther(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 2)
	l.node("n2", 2)
	l.network("lab", "10.64.128.0/24")
	l.wantOn("a", 2, "storage", "project/lab") // placed in the pass that gives the network its numbers, or the next
	l.wantOn("b", 1, "project/lab")
	l.want("c")
	view := l.afterPasses(4)
	want := []string{"a-0 10.64.128.2 02:6e:00:01:00:02", "a-1 10.64.128.3 02:6e:00:01:00:03", "b-0 10.64.128.4 02:6e:00:01:00:04"}
	if got := addressesOn(view, "net-lab"); !slices.Equal(got, want) {
		t.Errorf("on the network are %q, want %q", got, want)
	}
	for node, desired := range l.agents.desired {
		i := slices.IndexFunc(desired.Networks, func(n fabric.Network) bool { return n.UID == "net-lab" })
		if i < 0 || len(desired.Networks[i].Peers()) != 1 {
			t.Errorf("%s has the networks %+v, want the project's with one peer", node, desired.Networks)
		}
	}
	hosts := hostsOf(t, l.agents.desired)
	for member, name := range map[string]string{"a-0": "10.64.128.4\tb-0.b\n", "b-0": "10.64.128.2\ta-0.a\n"} {
		if !strings.Contains(hosts[member], name) {
			t.Errorf("%s does not know %q: %q", member, name, hosts[member])
		}
	}
	if strings.Contains(hosts["c-0"], ".a") || strings.Contains(hosts["c-0"], ".b") {
		t.Errorf("a cluster that is not on the network knows its members: %q", hosts["c-0"])
	}
	_, revision, err := l.repo.ChangeNetworkRecords(t.Context(), "lab", func([]api.NetworkRecord) ([]api.NetworkRecord, error) {
		return []api.NetworkRecord{{Name: "licence", Addresses: []string{"10.20.0.5"}}}, nil
	})
	l.view(revision, err)
	l.afterPasses(1)
	hosts = hostsOf(t, l.agents.desired)
	for member, knows := range map[string]bool{"a-1": true, "b-0": true, "c-0": false} {
		if strings.Contains(hosts[member], "10.20.0.5\tlicence\t# record\n") != knows {
			t.Errorf("%s knows the record: want %t; it has %q", member, knows, hosts[member])
		}
	}
	l.release(view.Cluster("a"))
	l.afterPasses(2)
	if hosts := hostsOf(t, l.agents.desired); strings.Contains(hosts["b-0"], ".a") {
		t.Errorf("b-0 still knows the members of a cluster that is let go: %q", hosts["b-0"])
	}
}

// hostsOf are the hosts files of members, by their names.
func hostsOf(t *testing.T, desired map[string]agentstream.Desired) map[string]string {
	t.Helper()
	hosts := map[string]string{}
	for _, d := range desired {
		for _, m := range d.Members {
			for _, f := range m.Files {
				if f.Path == "/etc/hosts" {
					hosts[m.Assignment.Member] = string(f.Content)
				}
			}
		}
	}
	return hosts
}

func TestAnAddressOnANetworkIsNobodyElsesUntilItsHolderIsClean(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 4)
	l.network("lab", "")
	l.wantOn("a", 1, "project/lab")
	view := l.afterPasses(3)
	before := only(t, view.Cluster("a"))
	l.release(view.Cluster("a"))
	l.wantOn("b", 1, "project/lab")
	view = l.afterPasses(3)
	if b := only(t, view.Cluster("b")); b.Ports[1].Address == before.Ports[1].Address {
		t.Errorf("b-0 has the address %s of a-0, which is not clean", b.Ports[1].Address)
	}
	l.agents.clean["n1"] = []string{before.ID}
	l.afterPasses(2)
	l.wantOn("c", 1, "project/lab")
	if c := only(t, l.afterPasses(3).Cluster("c")); c.Ports[1].Address != before.Ports[1].Address {
		t.Errorf("c-0 has address %s, want %s, which is free again", c.Ports[1].Address, before.Ports[1].Address)
	}
}

func TestANetworkIsForgottenWhenItsLastPortWasProvedClean(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 4)
	l.network("lab", "")
	l.wantOn("a", 1, "project/lab")
	view := l.afterPasses(3)
	if _, err := l.repo.RequestNetworkDelete(t.Context(), "lab", l.now); !errors.Is(err, state.ErrInUse) {
		t.Fatalf("a network with a cluster is to be deleted: %v", err)
	}
	a := only(t, view.Cluster("a"))
	// A group that is dropped no longer names the network, and still has ports on it.
	l.view(func() (int64, error) {
		_, revision, err := l.repo.UpdateIntent(t.Context(), "a", "", func(in *api.ClusterIntent) error {
			in.Spec.Groups = []api.Group{in.Spec.Groups[0]}
			in.Spec.Groups[0].Networks = nil
			return nil
		})
		return revision, err
	}())
	l.view(l.repo.RequestNetworkDelete(t.Context(), "lab", l.now))
	view = l.afterPasses(2)
	if view.Network("net-lab") == nil || view.NetworkIntent("lab") == nil {
		t.Fatal("a network is forgotten, and a member has a port on it")
	}
	l.release(view.Cluster("a"))
	if view = l.afterPasses(2); view.Network("net-lab") == nil {
		t.Fatal("a network is forgotten before its last port was proved clean")
	}
	l.agents.clean["n1"] = []string{a.ID}
	if view = l.afterPasses(3); view.Network("net-lab") != nil || view.NetworkIntent("lab") != nil {
		t.Error("a network is left, and nothing has a port on it")
	}
}

func TestANetworkWhoseSubnetIsTakenIsRefusedWithTheReason(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 4)
	l.network("one", "10.64.128.0/24")
	l.network("two", "10.64.128.128/25")
	l.wantOn("a", 1, "project/two")
	l.wantOn("b", 1, "project/one")
	view := l.afterPasses(3)
	if two := view.Network("net-two"); two == nil || two.Index != 0 || two.Prefix.IsValid() || !strings.Contains(two.Refused, "10.64.128.128/25 overlaps another network's") {
		t.Errorf("the second network of overlapping ones is %+v", two)
	}
	if r := view.Cluster("a").Record; r == nil || r.Phase != api.ClusterRefused || !strings.Contains(r.Message, "project/two was refused") {
		t.Errorf("the cluster on a refused network is %+v", r)
	}
	if a := only(t, view.Cluster("b")); a.Ports[0].Address.String() == a.Ports[1].Address.String() || view.Network("ub").Prefix.Overlaps(view.Network("net-one").Prefix) {
		t.Errorf("a cluster's own network overlaps the project's: %+v", a.Ports)
	}
}

func TestAClusterIsRefusedWhereANetworkOfItsProjectIsFull(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 32)
	l.network("lab", "10.64.128.0/28") // 13 members
	l.wantOn("a", 10, "project/lab")
	l.wantOn("b", 4, "project/lab")
	l.wantOn("c", 3, "project/lab")
	view := l.afterPasses(5)
	if r := view.Cluster("b").Record; r == nil || r.Phase != api.ClusterRefused || !strings.Contains(r.Message, "room for 13 members: 10 addresses are taken, and 4 more are needed") {
		t.Errorf("the cluster that has no room on the network is %+v", r)
	}
	if got := len(addressesOn(view, "net-lab")); got != 13 {
		t.Errorf("%d addresses are taken, want those of a and c", got)
	}
}

// wantAt asks for a cluster of one member with a fixed address on a network.
func (l *led) wantAt(name, network, address string) {
	l.t.Helper()
	l.view(l.repo.CreateCluster(l.t.Context(), api.ClusterIntent{
		Name: name, UID: "u" + name, CreatedAt: l.now, Spec: api.ClusterSpec{Groups: []api.Group{{
			Name: name, Size: 1, Shape: api.Shape{Cores: 1, Memory: 64 << 20}, Stack: api.StackContainer, Environment: "local",
			Networks: []api.GroupNetwork{{Name: network, Address: address}},
		}}},
	}))
}

func TestAFixedAddressIsGivenToItsMemberAndKeptFromOthers(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 8)
	l.network("lab", "10.64.128.0/28")
	l.wantAt("a", "project/lab", "10.64.128.3")
	l.afterPasses(3)
	l.wantOn("b", 2, "project/lab")
	view := l.afterPasses(3)
	got := addressesOn(view, "net-lab")
	want := []string{"a-0 10.64.128.3 02:6e:00:01:00:03", "b-0 10.64.128.2 02:6e:00:01:00:02", "b-1 10.64.128.4 02:6e:00:01:00:04"}
	if !slices.Equal(got, want) {
		t.Errorf("addresses %q, want %q", got, want)
	}
}

func TestAFixedAddressThatCantBeHadIsRefusedWithTheReason(t *testing.T) {
	for address, reason := range map[string]string{
		"10.64.129.3":  "is not in subnet 10.64.128.0/28",
		"10.64.128.0":  "is reserved: members' addresses begin with 10.64.128.2",
		"10.64.128.1":  "is reserved",
		"10.64.128.15": "is reserved: it is the subnet's broadcast address",
		"10.64.128.2":  "is held by member b-0",
		"10.64.128.3":  "is held by member f-0",
	} {
		l := newLed(t, memory.New())
		l.node("n1", 8)
		l.network("lab", "10.64.128.0/28")
		l.wantOn("b", 1, "project/lab")
		l.wantAt("f", "project/lab", "10.64.128.3")
		l.afterPasses(3)
		l.wantAt("a", "project/lab", address)
		record := l.afterPasses(3).Cluster("a").Record
		if record.Phase != api.ClusterRefused || !strings.Contains(record.Message, reason) {
			t.Errorf("%s: the cluster is %s, %q; want it refused because the address %s", address, record.Phase, record.Message, reason)
		}
	}
}

func TestAReplacementGetsTheFixedAddressWhenTheLostMemberIsClean(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 8)
	l.network("lab", "10.64.128.0/28")
	l.wantAt("a", "project/lab", "10.64.128.3")
	l.afterPasses(3)
	l.report(api.MemberReady)
	before := only(t, l.afterPasses(2).Cluster("a"))
	l.report(api.MemberFailed)
	view := l.afterPasses(3)
	for a := range view.Cluster("a").Held() {
		t.Fatalf("member %s holds %v while the lost one is not clean", a.ID, a.Ports)
	}
	l.wantOn("b", 3, "project/lab")
	if got := addressesOn(l.afterPasses(3), "net-lab"); !slices.Equal(got[1:], []string{
		"b-0 10.64.128.2 02:6e:00:01:00:02", "b-1 10.64.128.4 02:6e:00:01:00:04", "b-2 10.64.128.5 02:6e:00:01:00:05",
	}) {
		t.Errorf("while the member is lost, others have %q", got)
	}
	l.agents.clean["n1"] = []string{before.ID}
	after := only(t, l.afterPasses(4).Cluster("a"))
	if after.ID == before.ID || after.Ports[1].Address.String() != "10.64.128.3" {
		t.Errorf("the replacement %s has %v, want another member at 10.64.128.3", after.ID, after.Ports)
	}
}
