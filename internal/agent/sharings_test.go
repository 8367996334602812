package agent

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	fabricfake "github.com/nearmetal/nearmetal/internal/fabric/fake"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/fake"
)

var (
	server = netip.MustParseAddr("198.18.0.2")
	other  = netip.MustParseAddr("198.18.0.3")
)

// withSharing is an agent of node n1 over a disk and what its kernel has of volumes that cross.
func withSharing(t *testing.T, disk *fake.Disk, crossing *fake.Crossing) *Agent {
	t.Helper()
	a := withVolumes(t, disk)
	a.cfg.Sharer, a.sharings.states = crossing.Sharer(), map[string]*sharingState{}
	return a
}

// settleSharings converges volumes and how they cross until nothing is under way.
func settleSharings(t *testing.T, a *Agent) {
	t.Helper()
	for range 100 {
		settleVolumes(t, a)
		a.convergeSharings(t.Context(), a.cfg.Clock.Now())
		busy := a.sharings.looking || a.volumes.looking
		for _, s := range a.sharings.states {
			busy = busy || s.busy
		}
		if !busy {
			a.convergeVolumes(t.Context(), a.cfg.Clock.Now())
			for _, s := range a.volumes.states {
				busy = busy || s.busy
			}
		}
		if !busy {
			return
		}
		(<-a.events)()
	}
	t.Fatal("something is always under way for volumes that cross")
}

// retry ends the pause after a failure.
func (s *sharingState) retry(a *Agent) { s.attempts.NextTry = a.cfg.Clock.Now() }

// sharing is that of cluster u1.
func sharing(change func(*volume.Sharing)) *agentstream.Desired {
	s := volume.Sharing{ClusterUID: "u1", UserIDs: clusterIDs, Peers: []netip.Addr{server, other}, Settled: true}
	change(&s)
	return &agentstream.Desired{Sharings: []volume.Sharing{s}}
}

// client is a node that is to have the volume, once it is let in.
func client(letIn bool) func(*volume.Sharing) {
	return func(s *volume.Sharing) {
		s.Client = true
		if letIn {
			s.Reaches = []volume.Remote{{UID: volumeUID, Server: server}}
		}
	}
}

// farMember is a member of cluster u1 with a volume of node n2.
func farMember(t *testing.T, a *Agent) *memberState {
	t.Helper()
	m := claiming(t, a, "/volumes/data")
	m.want.Assignment.Volumes[0].Node = "n2"
	m.want.Assignment.UserIDs = clusterIDs
	a.members[m.id] = m
	a.placeVolumes(m.want)
	return m
}

func TestAMemberStartsOnceItsVolumeOfAnotherNodeIsThere(t *testing.T) {
	crossing := fake.NewCrossing()
	a := withSharing(t, fake.NewDisk(1<<40), crossing)
	m := farMember(t, a)
	crossing.Fail(errors.New("the way is blocked"))
	for _, step := range []struct {
		do      func()
		message string
	}{
		{func() {}, `volume "data" lies on node n2, which this node has not heard of yet`},
		{func() { a.wantSharings(sharing(client(false))) }, `volume "data" lies on node n2, which has not let this node in yet`},
		{func() { a.wantSharings(sharing(client(true))) }, `volume "data" lies on node n2, and is being attached`},
		{func() { settleSharings(t, a) }, `volume "data" lies on node n2, and can't be reached: u1: the way is blocked`},
		{func() {
			a.wantSharings(sharing(func(s *volume.Sharing) { client(true)(s); s.Settled = false }))
			settleSharings(t, a)
		}, `volume "data" waits until a node that is lost can't write to it any more`},
	} {
		step.do()
		a.start(t.Context(), m)
		if m.busy || m.message != step.message || m.attempts.Count != 0 {
			t.Fatalf("busy %t after %d attempts with %q; want it to wait with %q", m.busy, m.attempts.Count, m.message, step.message)
		}
	}
	a.wantSharings(sharing(client(true)))
	settleSharings(t, a)
	a.start(t.Context(), m)
	if !m.busy {
		t.Fatalf("it waits still: %q", m.message)
	}
	if want := []driver.Mount{{Source: a.cfg.Sharer.Dir(volumeUID, "u1"), Path: "/volumes/data"}}; !slices.Equal(m.want.Mounts, want) {
		t.Errorf("mounts: got %+v, want %+v", m.want.Mounts, want)
	}
	(<-a.events)() // how the start went
}

func TestANodeThatWasShutOutBeginsAnewOnceItsMembersAreGone(t *testing.T) {
	crossing := fake.NewCrossing()
	a := withSharing(t, fake.NewDisk(1<<40), crossing)
	m := farMember(t, a)
	a.wantSharings(sharing(client(true)))
	settleSharings(t, a)
	m.state = driver.StateRunning
	has := func() bool {
		state, _ := crossing.State("u1")
		return slices.Contains(state.Reaches, volumeUID)
	}
	for _, d := range []*agentstream.Desired{
		sharing(client(false)), // the volume's node is away, and another leader does not know what was told before
		sharing(client(true)),
		{}, // it was shut out
		sharing(client(true)),
	} {
		a.wantSharings(d)
		settleSharings(t, a)
		if !has() {
			t.Fatalf("the volume was taken from under a member for %+v", d.Sharings)
		}
	}
	next := volumeClaim("n2")
	if why := a.missingRemote(next, "u1"); !strings.Contains(why, "which shut this node out") {
		t.Errorf("another member would begin to use what a lost one has: %q", why)
	}
	m.state, m.cleaned = driver.StateAbsent, true
	before := len(crossing.Calls())
	settleSharings(t, a)
	if calls := crossing.Calls()[before:]; len(calls) < 2 || !has() {
		t.Errorf("after its members it was asked for %v, and has the volume: %t; want it taken away, and attached anew", calls, has())
	}
	if why := a.missingRemote(next, "u1"); why != "" {
		t.Errorf("another member: %s", why)
	}
	a.wantSharings(&agentstream.Desired{})
	settleSharings(t, a)
	if _, there := crossing.State("u1"); there || len(a.sharings.states) > 0 {
		t.Error("what nobody needs is left")
	}
}

func volumeClaim(node string) api.VolumeClaim {
	return api.VolumeClaim{UID: volumeUID, Name: "data", Path: "/volumes/data", Node: node}
}

// servedTo is what the volume's node is to do.
func servedTo(clients ...netip.Addr) func(*volume.Sharing) {
	return func(s *volume.Sharing) {
		s.Clients = clients
		if len(clients) > 0 {
			s.Serves = []volume.Share{{UID: volumeUID}}
		}
	}
}

func TestAVolumeIsServedWhileItIsAttachedAndAttachedWhileItIsServed(t *testing.T) {
	disk, crossing := fake.NewDisk(1<<40), fake.NewCrossing()
	a := withSharing(t, disk, crossing)
	a.wantSharings(sharing(servedTo(other)))
	settleSharings(t, a)
	if state, _ := crossing.State("u1"); len(state.Serves) > 0 {
		t.Errorf("a volume is served that is not attached: %+v", state)
	}
	a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{wantedVolume("u1")}})
	settleSharings(t, a)
	if state, _ := crossing.State("u1"); !slices.Equal(state.Serves, []string{volumeUID}) || !slices.Equal(state.Clients, []netip.Addr{other}) {
		t.Errorf("once it is attached, there is %+v", state)
	}
	if seen := a.observedSharings(); len(seen) != 1 || seen[0].ClusterUID != "u1" || len(seen[0].Clients) != 1 || seen[0].Problem != "" {
		t.Errorf("the node says %+v", seen)
	}
	crossing.Fail(errors.New("a client does not let go"))
	a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{wantedVolume()}})
	a.wantSharings(&agentstream.Desired{})
	settleSharings(t, a)
	if len(disk.Attached(volumeUID)) != 1 || !strings.Contains(a.volumes.states[volumeUID].held, "still served") {
		t.Errorf("it was detached while it is served: %q", a.volumes.states[volumeUID].held)
	}
	if seen := a.observedSharings(); len(seen) != 1 || !strings.Contains(seen[0].Problem, "does not let go") {
		t.Errorf("the node says %+v", seen)
	}
	a.sharings.states["u1"].retry(a)
	settleSharings(t, a)
	settleSharings(t, a)
	if _, there := crossing.State("u1"); there || len(disk.Attached(volumeUID)) > 0 {
		t.Errorf("served: %t, attached %v", there, disk.Attached(volumeUID))
	}
}

func TestAMemberBesideItsVolumeWaitsUntilWhoWasLostIsShutOut(t *testing.T) {
	disk, crossing := fake.NewDisk(1<<40), fake.NewCrossing()
	a := withSharing(t, disk, crossing)
	a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{wantedVolume("u1")}})
	a.wantSharings(sharing(servedTo(server, other)))
	settleSharings(t, a)
	m := claiming(t, a, "/volumes/data")
	crossing.Fail(errors.New("it does not answer"))
	waits := func(when string) {
		t.Helper()
		a.start(t.Context(), m)
		if m.busy || !strings.Contains(m.message, "a node that is lost") {
			t.Fatalf("%s: busy %t with %q", when, m.busy, m.message)
		}
	}
	a.wantSharings(sharing(servedTo(other)))
	settleSharings(t, a)
	waits("while it could not be shut out")
	a.wantSharings(&agentstream.Desired{})
	waits("though the leader names nothing")
	a.wantSharings(sharing(servedTo(other)))
	a.sharings.states["u1"].retry(a)
	settleSharings(t, a)
	a.start(t.Context(), m)
	if !m.busy {
		t.Errorf("it waits still: %q", m.message)
	}
	(<-a.events)()
}

func TestAnAgentThatStartsFindsWhatCrossesAndChangesNothing(t *testing.T) {
	disk, crossing := fake.NewDisk(1<<40), fake.NewCrossing()
	a := withSharing(t, disk, crossing)
	a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{wantedVolume("u1")}})
	a.wantSharings(sharing(servedTo(other)))
	settleSharings(t, a)
	a = withSharing(t, disk, crossing)
	a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{wantedVolume("u1")}})
	a.wantSharings(sharing(servedTo(other)))
	settleSharings(t, a)
	if slices.ContainsFunc(crossing.Calls(), func(call string) bool { return strings.HasPrefix(call, "End") }) {
		t.Errorf("it was asked for %v", crossing.Calls())
	}
	if seen := a.observedSharings(); len(seen) != 1 || !slices.Equal(seen[0].Clients, []netip.Addr{other}) {
		t.Errorf("another agent finds %+v", seen)
	}
}

func TestAMemberIsCleanOnceItsVolumeIsGivenBackWhileItsNodeServesIt(t *testing.T) {
	crossing := fake.NewCrossing()
	a := withSharing(t, fake.NewDisk(1<<40), crossing)
	m := farMember(t, a)
	a.wantSharings(sharing(client(true)))
	settleSharings(t, a)
	m.state, m.want.Release = driver.StateRunning, true
	settleSharings(t, a)
	if state, _ := crossing.State("u1"); len(state.Reaches) != 1 || a.reaches(m) {
		t.Errorf("under a member that is there, the node has %+v", state)
	}
	m.state, m.cleaned = driver.StateAbsent, true
	if !a.reaches(m) {
		t.Error("a member is clean though its volume is mounted")
	}
	settleSharings(t, a) // though the leader still names it
	if state, _ := crossing.State("u1"); len(state.Reaches) != 0 || a.reaches(m) {
		t.Errorf("after the last member the node has %+v", state)
	}
}

func TestWhatCarriesABlockVolumeIsStartedAgain(t *testing.T) {
	crossing := fake.NewCrossing()
	a := withSharing(t, fake.NewDisk(1<<40), crossing)
	m := farMember(t, a)
	m.want.Assignment.Volumes[0].Block = true
	a.wantSharings(sharing(func(s *volume.Sharing) {
		client(true)(s)
		s.Reaches[0].Block = true
	}))
	settleSharings(t, a)
	if s, _ := crossing.State("u1"); len(s.Reaches) != 1 {
		t.Fatalf("it is not reached: %+v", s)
	}
	a.placeVolumes(m.want)
	if want := a.cfg.Sharer.Socket(volumeUID, "u1"); len(m.want.Disks) != 1 || m.want.Disks[0].Socket != want {
		t.Errorf("disks %+v, want one at %s", m.want.Disks, want)
	}
	before := len(crossing.Calls())
	a.lookAtSharings(t.Context(), a.cfg.Clock.Now())
	settleSharings(t, a)
	if calls := crossing.Calls()[before:]; len(calls) > 0 {
		t.Errorf("what is there is changed: %q", calls)
	}
	crossing.Boot()
	crossing.Put(volume.SharingState{ClusterUID: "u1"})
	a.lookAtDisks(t.Context())
	settleSharings(t, a)
	if s, _ := crossing.State("u1"); len(s.Reaches) != 1 {
		t.Errorf("it is not reached any more: %+v", s)
	}
}

func TestTheTunnelsOfVolumesAreSealedWithTheNetworksBeforeVolumesCross(t *testing.T) {
	crossing, ports := fake.NewCrossing(), &fabricfake.Fabric{}
	a := withSharing(t, fake.NewDisk(1<<40), crossing)
	a.cfg.Fabric, a.cfg.Node.WireGuardKey, a.networks.apply = ports, "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", a.applyNetworks
	const key, another = "AgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "AwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
	tell := func(keys ...string) {
		a.desired = sharing(func(s *volume.Sharing) {
			s.Client, s.Encrypted, s.Peers = true, true, nil
			for _, k := range keys {
				s.Sealed = append(s.Sealed, volume.SealedPeer{Peer: server, Key: k})
			}
		})
		a.wantSharings(a.desired)
	}
	settle := func() {
		a.convergeNetworks(t.Context(), a.cfg.Clock.Now())
		for a.networks.busy {
			(<-a.events)()
		}
	}
	tell(key)
	settleSharings(t, a)
	if calls := crossing.Calls(); len(calls) > 0 {
		t.Errorf("before its tunnel is sealed it was asked for %v", calls)
	}
	settle()
	want := []fabric.Tunnel{{VNI: 1<<23 | int(clusterIDs.First>>9), Peers: []fabric.TunnelPeer{{Address: server, Key: key}}}}
	if got := ports.Sealed(); !reflect.DeepEqual(got, want) {
		t.Errorf("sealed are %+v, want %+v", got, want)
	}
	settleSharings(t, a)
	if _, there := crossing.State("u1"); !there {
		t.Error("volumes don't cross once the tunnel is sealed")
	}
	tell(another)
	settle()
	if got := ports.Sealed(); len(got) != 1 || got[0].Peers[0].Key != another {
		t.Errorf("after the peer's key changed, sealed are %+v", got)
	}
	a.desired = &agentstream.Desired{}
	settle()
	if got := ports.Sealed(); len(got) > 0 {
		t.Errorf("what nobody names is sealed still: %+v", got)
	}
	tell(key)
	a.cfg.Node.WireGuardKey = ""
	settle()
	if got := ports.Sealed(); len(got) > 0 {
		t.Errorf("a node without WireGuard seals %+v", got)
	}
	a.desired = sharing(client(true)) // in clear
	settle()
	if got := ports.Sealed(); len(got) > 0 {
		t.Errorf("on a site in clear, sealed are %+v", got)
	}
}

func TestABlockVolumeIsServedOnceNoMachineThatIsToGoHasIt(t *testing.T) {
	for _, block := range []bool{true, false} {
		crossing := fake.NewCrossing()
		a := withSharing(t, fake.NewDisk(1<<40), crossing)
		v := wantedVolume("u1")
		if v.Block = block; block {
			v.MaxFiles = 0
		}
		a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{v}})
		m := claiming(t, a, "/volumes/data")
		m.want.Assignment.Volumes[0].Block = block
		m.state, m.want.Release, m.assigned = driver.StateRunning, true, &m.want.Assignment
		a.wantSharings(sharing(func(s *volume.Sharing) {
			servedTo(other)(s)
			s.Serves[0].Block = block
		}))
		settleSharings(t, a)
		if s, _ := crossing.State("u1"); len(s.Serves) > 0 == block {
			t.Errorf("block volume %t, with a machine that is to go: %+v", block, s)
		}
		m.state = driver.StateExited
		settleSharings(t, a)
		if s, _ := crossing.State("u1"); len(s.Serves) != 1 {
			t.Errorf("block volume %t, once that has ended: %+v", block, s)
		}
		m.state, m.want.Release = driver.StateRunning, false
		settleSharings(t, a)
		if s, _ := crossing.State("u1"); len(s.Serves) != 1 {
			t.Errorf("block volume %t, with one that stays: %+v", block, s)
		}
	}
}

// A node serves volumes to whole machines on their cluster's network, though it has no member there, and only once that network's rules are in force.
func TestANodeIsOnTheNetworkOfWholeMachinesBeforeItServesThem(t *testing.T) {
	crossing, ports := fake.NewCrossing(), &fabricfake.Fabric{}
	a := withSharing(t, fake.NewDisk(1<<40), crossing)
	a.cfg.Fabric, a.networks.apply = ports, a.applyNetworks
	machine := netip.MustParseAddr("10.64.0.2")
	port := fabric.Port{ID: volume.PortID("u1"), Address: netip.MustParseAddr("10.64.0.9"), MAC: "02:6e:00:07:00:09", Interface: volume.PortInterface}
	own := fabric.Network{
		Network: api.Network{UID: "u1", Index: 7, Technology: api.TechnologyVLAN, VLAN: 120, Prefix: netip.MustParsePrefix("10.64.0.0/24"), Gateway: netip.MustParseAddr("10.64.0.1")},
		Ports:   []fabric.Port{port, {ID: "u1.stray.1", Address: netip.MustParseAddr("10.64.0.8"), MAC: "02:6e:00:07:00:08"}},
	}
	settle := func() {
		a.convergeNetworks(t.Context(), a.cfg.Clock.Now())
		for a.networks.busy {
			(<-a.events)()
		}
	}
	a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{wantedVolume("u1")}})
	a.desired = sharing(func(s *volume.Sharing) {
		s.Peers, s.Serves, s.Machines = nil, []volume.Share{{UID: volumeUID}}, []netip.Addr{machine}
		s.Port = &volume.Port{ID: port.ID, Network: 7, Address: port.Address, MAC: port.MAC}
	})
	a.desired.Networks = []fabric.Network{own}
	a.wantSharings(a.desired)
	settleSharings(t, a)
	if state, there := crossing.State("u1"); there {
		t.Errorf("before its port's rules are in force there is %+v", state)
	}
	settle()
	if got := a.networks.applied; len(got) != 1 || len(got[0].Ports) != 1 || got[0].Ports[0] != port {
		t.Errorf("applied are %+v, want the port of the volumes alone", got)
	}
	settleSharings(t, a)
	if state, _ := crossing.State("u1"); !slices.Equal(state.Clients, []netip.Addr{machine}) {
		t.Errorf("once they are, there is %+v", state)
	}
	if why := a.unsettled("u1"); why != "" {
		t.Errorf("members wait, with none to shut out: %s", why)
	}
	crossing.Put(volume.SharingState{ClusterUID: "u1", Serves: []string{volumeUID}, Clients: []netip.Addr{machine, netip.MustParseAddr("10.64.0.3")}})
	a.lookAtSharings(t.Context(), a.cfg.Clock.Now())
	(<-a.events)()
	if why := a.unsettled("u1"); why == "" {
		t.Error("members begin while a machine is let in that was lost")
	}
	// Nobody is to be served any more: the network stays until that has ended.
	crossing.Fail(errors.New("a machine does not let go"))
	a.desired = &agentstream.Desired{Networks: []fabric.Network{own}}
	a.wantSharings(a.desired)
	settleSharings(t, a)
	settle()
	if len(a.networks.applied) != 1 {
		t.Error("the network is gone before its volumes are no longer served")
	}
	a.sharings.states["u1"].retry(a)
	settleSharings(t, a)
	settle()
	if _, there := crossing.State("u1"); there || len(a.networks.applied) != 0 {
		t.Errorf("it is served: %t; networks %+v", there, a.networks.applied)
	}
}

// A machine goes off once what its member wrote to volumes of other nodes has been brought there.
func TestAMachineGoesOffOnceVolumesOfOtherNodesAreGivenBack(t *testing.T) {
	crossing := fake.NewCrossing()
	a := withSharing(t, fake.NewDisk(1<<40), crossing)
	off := make(chan struct{}, 1)
	a.cfg.PowerOff = func(context.Context) error { off <- struct{}{}; return nil }
	a.wantSharings(sharing(client(true)))
	m := farMember(t, a)
	settleSharings(t, a)
	a.desired = sharing(client(true))
	a.desired.PowerOff = &agentstream.PowerOff{BootGeneration: a.cfg.Node.BootGeneration}
	delete(a.members, m.id)
	a.convergePower(t.Context(), a.cfg.Clock.Now())
	if a.power.busy {
		t.Fatal("it goes off while a volume of another node is attached")
	}
	settleSharings(t, a)
	a.convergePower(t.Context(), a.cfg.Clock.Now())
	if !a.power.busy {
		t.Fatal("it does not go off once the volume was given back")
	}
	<-off
}

// The network of a whole machine stays until its volumes are given back, which go by it. That of others does not: theirs go by another way.
func TestTheNetworkOfAWholeMachineStaysUntilItsVolumesAreGivenBack(t *testing.T) {
	for _, whole := range []bool{true, false} {
		crossing := fake.NewCrossing()
		a := withSharing(t, fake.NewDisk(1<<40), crossing)
		m := farMember(t, a)
		m.want.Assignment.Whole, m.want.Networks = whole, []api.Network{{UID: "u1", Index: 7}}
		a.desired = sharing(client(true))
		a.desired.Networks = []fabric.Network{{Network: m.want.Networks[0]}}
		a.wantSharings(a.desired)
		settleSharings(t, a)
		m.want.Release, m.cleaned = true, true
		if got := len(a.wantedNetworks()); got != map[bool]int{true: 1, false: 0}[whole] {
			t.Errorf("whole: %v: while its volume is attached, %d networks are wanted", whole, got)
		}
		settleSharings(t, a)
		if got := a.wantedNetworks(); len(got) > 0 {
			t.Errorf("whole: %v: once it is given back, %+v are wanted", whole, got)
		}
	}
}
