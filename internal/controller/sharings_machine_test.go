package controller

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/volume"
)

var (
	addrServer  = netip.MustParseAddr("10.64.16.9")
	addrMachine = netip.MustParseAddr("10.64.16.2")
)

// withNetwork stores the cluster's own network.
func (x *crossed) withNetwork() {
	x.t.Helper()
	x.view(x.leader.PutNetworks(x.t.Context(), api.Network{
		UID: "uid-c1", ClusterUID: "uid-c1", Name: "c1", Index: 7, Technology: api.TechnologyVLAN, VLAN: 120, Prefix: netip.MustParsePrefix("10.64.16.0/24"),
		Gateway: netip.MustParseAddr("10.64.16.1"),
	}))
}

// served is a member whose volumes its node serves on the cluster's own network, too.
func (x *crossed) served(node, member string) api.Assignment {
	a := x.on(node, member, "1")
	a.Volumes[0].Server = addrServer
	return a
}

// machine is such a member that has a whole machine.
func (x *crossed) machine(node, member string, address netip.Addr) api.Assignment {
	a := x.served(node, member)
	a.Whole, a.Stack, a.CleanBy = true, api.StackMetal, []api.Prover{{By: api.ExecutorProvisioner, At: node}}
	a.Ports = []api.PortClaim{{Network: "uid-c1", Kind: api.PortPF, Address: address, MAC: "52:54:00:00:00:0a"}}
	return a
}

var volumePort = &volume.Port{ID: "uid-c1.volumes", Network: 7, Address: addrServer, MAC: "02:6e:00:07:00:09"}

func TestAWholeMachineHasVolumesOverTheClustersOwnNetwork(t *testing.T) {
	x := newCrossed(t)
	x.withNetwork()
	x.is([]api.Assignment{x.machine("n2", "c1-0", addrMachine), x.served("n3", "c1-1")}, nil)
	serving := volume.Sharing{
		Peers: []netip.Addr{addr3}, Serves: data, Clients: []netip.Addr{addr3}, Settled: true, Port: volumePort, Machines: []netip.Addr{addrMachine},
	}
	x.want("at first", "n1", serving)
	x.want("at first, a machine, which hears of no other node", "n2", volume.Sharing{Client: true, Settled: true})
	x.serves(addr3)
	x.look()
	x.want("while only a node is let in", "n2", volume.Sharing{Client: true, Settled: true})
	x.serves(addr3, addrMachine)
	x.look()
	x.want("once it is let in", "n2", volume.Sharing{Client: true, Settled: true, Reaches: []volume.Remote{{UID: "uid-data", Server: addrServer}}})
	x.want("a node", "n3", volume.Sharing{Peers: []netip.Addr{addr1}, Client: true, Settled: true, Reaches: remote})
}

func TestAWholeMachineThatIsLostIsShutOutBeforeAnotherMemberBegins(t *testing.T) {
	x := newCrossed(t)
	x.withNetwork()
	gone := x.machine("n2", "c1-0", addrMachine)
	x.is([]api.Assignment{gone}, nil)
	x.serves(addrMachine)
	x.look()
	x.down["n2"], x.released = true, x.now.Add(time.Minute)
	next := x.machine("n3", "c1-0", netip.MustParseAddr("10.64.16.3"))
	next.ID, next.Replaces = "uid-c1.c1-0.2", gone.ID
	x.is([]api.Assignment{next}, []api.Assignment{gone}, api.LostMember{Assignment: gone.ID, Member: gone.Member})
	x.want("while the lost one is let in", "n1", volume.Sharing{Serves: data, Port: volumePort, Machines: []netip.Addr{next.Ports[0].Address}})
	x.want("its successor, meanwhile", "n3", volume.Sharing{Client: true})
	x.serves(next.Ports[0].Address)
	x.look()
	x.want("once it is shut out", "n3", volume.Sharing{Client: true, Settled: true, Reaches: []volume.Remote{{UID: "uid-data", Server: addrServer}}})
	if len(x.told["n2"]) > 0 {
		t.Errorf("the lost one is told %+v, want nothing", x.told["n2"])
	}
}

// The node of a volume has a port on the network of a cluster with whole machines, and their nodes know it as a member, for as long as anything of them is left.
func TestTheNodeOfAVolumeIsOnTheNetworkOfWholeMachines(t *testing.T) {
	s := newStored(t)
	for _, name := range []string{"n1", "n2", "n3"} {
		s.view(s.repo.PutNode(t.Context(), api.NodeRecord{Name: name, Underlay: "198.18.0." + name[1:]}))
	}
	c := s.cluster("a", 1, "n1").Cluster("a")
	record := cloned(c.Record)
	record.Generation = 2
	beside := api.Assignment{
		ID: "ua.a-2.2", ClusterUID: "ua", Cluster: "a", Generation: 2, Group: "a", Member: "a-2", Rank: 2, Node: "n2", Stack: api.StackMetal, Environment: "local", Whole: true,
		Slots: []int{9}, CPUs: []int{0}, NUMANodes: []int{0},
		Ports:   []api.PortClaim{{Network: "ua", Kind: api.PortPF, Address: netip.MustParseAddr("10.64.16.9"), MAC: "02:6e:00:01:00:09"}},
		Volumes: []api.VolumeClaim{{UID: "v", Node: "n3", Path: "/data", Server: netip.MustParseAddr("10.64.16.10")}},
	}
	view := s.view(s.leader.Commit(t.Context(), c, state.Write{Record: record, Add: []state.Batch{{Assignments: []api.Assignment{beside}}}}))
	d := newDesired()
	changed, failed := d.update(1, someday, view)
	if len(failed) > 0 {
		t.Fatal(failed)
	}
	want := fabric.Port{ID: "ua.volumes", Address: netip.MustParseAddr("10.64.16.10"), MAC: "02:6e:00:01:00:0a", Interface: volume.PortInterface}
	server := whole(changed["n3"])
	if n := server.Networks; len(n) != 1 || len(n[0].Ports) != 1 || n[0].Ports[0] != want || len(n[0].Remotes) != 2 || len(server.Members) != 0 {
		t.Errorf("the volume's node is told %+v, want the port %+v, two members elsewhere, and none here", server, want)
	}
	for _, r := range whole(changed["n2"]).Networks[0].Remotes {
		if r.Address == want.Address && r.MAC == want.MAC && r.Peer == netip.MustParseAddr("198.18.0.3") {
			want.ID = "known"
		}
	}
	if want.ID != "known" {
		t.Errorf("a member's node knows %+v, want the volume's node among them", whole(changed["n2"]).Networks[0].Remotes)
	}
	changed, _ = d.update(1, someday, s.view(s.repo.PutNode(t.Context(), api.NodeRecord{Name: "n3", Underlay: "198.18.0.33"})))
	if _, told := changed["n2"]; !told {
		t.Error("the volume's node has another address, and nobody is told")
	}
}

// A machine that was let go of stays in its VLAN while it gives volumes back, and leaves it once it is off. One that was lost is cut off at once.
func TestAWholeMachineStaysInItsVLANWhileItGivesVolumesBack(t *testing.T) {
	w := newSwitched(t)
	w.askWhole("first", 1, api.TechnologyVLAN)
	view := w.passes("placed", placed("first"))
	a := only(t, view.Cluster("first"))
	a.Volumes = []api.VolumeClaim{{UID: "v", Name: "v", Path: "/data", Node: "n2", Server: netip.MustParseAddr("10.64.16.9")}}
	record := cloned(view.Cluster("first").Record)
	record.Chunks = nil
	record.Generation++
	w.view(w.leader.Commit(t.Context(), view.Cluster("first"), state.Write{Record: record, Add: []state.Batch{{Assignments: []api.Assignment{a}}}}))
	machine := func(phase api.MachinePhase) {
		m := w.cache.View().Machine("n1")
		w.view(w.leader.CommitMachine(t.Context(), m, state.MachineWrite{Record: api.MachineRecord{
			Name: "n1", UID: m.UID(), Index: 0, Phase: phase, Power: api.PowerOn, Boot: &api.Boot{Purpose: api.BootMember, Member: a.ID},
			Tenant: &api.MachineTenant{Assignment: a.ID, Cluster: "first"},
		}}))
	}
	machine(api.MachineReady)
	w.passes("in its VLAN", func(*state.View) bool { return len(w.tables.Networks()) == 2 })
	w.release(w.cache.View().Cluster("first"))
	for range 3 {
		w.mustPass()
	}
	w.mustHave("100:sw/a", "4096:sw/m1")
	machine(api.MachineStopping)
	for range 3 {
		w.mustPass()
	}
	w.mustHave("100:sw/a", "4096:sw/m1")
	machine(api.MachineOff)
	w.passes("out of its VLAN", func(*state.View) bool { return len(w.tables.Networks()) == 1 })
	w.mustHave("4096:sw/m1")

	c := w.cache.View().Cluster("first")
	machine(api.MachineReady)
	if got := returning(w.cache.View(), c, map[string]bool{}); !got[a.ID] {
		t.Errorf("giving back are %v, want %s", got, a.ID)
	}
	if got := returning(w.cache.View(), c, map[string]bool{a.ID: true}); got[a.ID] {
		t.Error("a machine that was lost may give something back")
	}
}
