package controller

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// crossed is a cluster, c1, with volume data on n1, at a site of nodes n1 to n3.
type crossed struct {
	*led
	t *testing.T
	// told is what nodes were told last, down are the nodes that are, said is what nodes say; nil: they are not heard of.
	told      map[string][]volume.Sharing
	down      map[string]bool
	said      map[string][]volume.SharingState
	claimants claimants
	encrypted bool
	// released is since when members are let go of.
	released time.Time
}

var (
	addr1 = netip.MustParseAddr("198.18.0.1")
	addr2 = netip.MustParseAddr("198.18.0.2")
	addr3 = netip.MustParseAddr("198.18.0.3")
)

func newCrossed(t *testing.T) *crossed {
	t.Helper()
	l := newLed(t, memory.New())
	for i, addr := range []netip.Addr{addr1, addr2, addr3} {
		name := []string{"n1", "n2", "n3"}[i]
		l.view(l.repo.PutNode(t.Context(), api.NodeRecord{Name: name, Underlay: addr.String()}))
	}
	l.wantVolume("data", 4)
	l.view(l.repo.CreateCluster(t.Context(), api.ClusterIntent{
		Name: "c1", UID: "uid-c1", CreatedAt: l.now, Spec: api.ClusterSpec{Volumes: []api.VolumeAttachment{{Name: "data"}}},
	}))
	return &crossed{led: l, t: t, down: map[string]bool{}, said: map[string][]volume.SharingState{"n1": {}, "n2": {}, "n3": {}}}
}

// on is a member with the volume.
func (x *crossed) on(node, member string, generation string) api.Assignment {
	return api.Assignment{
		ID: "uid-c1." + member + "." + generation, ClusterUID: "uid-c1", Member: member, Node: node, TakenAt: x.now, CleanBy: api.ByAgents(node),
		Volumes: []api.VolumeClaim{{UID: "uid-data", Name: "data", Path: "/data", Node: "n1"}},
	}
}

// is makes the cluster's record, with these members and those that are let go of, and returns what nodes are told.
func (x *crossed) is(held, released []api.Assignment, lost ...api.LostMember) map[string][]volume.Sharing {
	x.t.Helper()
	c := x.cache.Cluster("c1")
	record := api.ClusterRecord{
		Name: "c1", UID: "uid-c1", Phase: api.ClusterReady, UserIDs: api.IDRange{First: 300_000, Count: 65_536}, ChangedAt: x.now, Lost: lost,
	}
	if c.Record != nil {
		record.Generation = c.Record.Generation + 1
	}
	var add []state.Batch
	if len(held) > 0 {
		add = append(add, state.Batch{Assignments: held})
	}
	if len(released) > 0 {
		add = append(add, state.Batch{Assignments: released, Releasing: true, ReleasedAt: &x.released})
	}
	x.view(x.leader.Commit(x.t.Context(), c, state.Write{Record: record, Add: add}))
	return x.look()
}

func (x *crossed) look() map[string][]volume.Sharing {
	x.told = sharings(sharingsInput{
		view: x.cache.View(), claiming: x.claimants.of(x.cache.View()), before: x.told, encrypted: x.encrypted,
		phase: func(node string) api.NodePhase {
			if x.down[node] {
				return api.NodeDown
			}
			return api.NodeReady
		},
		heard: func(node string) ([]volume.SharingState, bool) { return x.said[node], x.said[node] != nil },
	})
	return x.told
}

// serves is what the volume's node says once it has let clients in.
func (x *crossed) serves(clients ...netip.Addr) {
	x.said["n1"] = []volume.SharingState{{ClusterUID: "uid-c1", Serves: []string{"uid-data"}, Clients: clients}}
}

// want compares what a node is told.
func (x *crossed) want(when, node string, want volume.Sharing) {
	x.t.Helper()
	want.ClusterUID, want.UserIDs = "uid-c1", api.IDRange{First: 300_000, Count: 65_536}
	if got := x.told[node]; len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		x.t.Errorf("%s: %s is told %+v, want %+v", when, node, got, want)
	}
}

var (
	data   = []volume.Share{{UID: "uid-data"}}
	remote = []volume.Remote{{UID: "uid-data", Server: addr1}}
)

func TestANodeIsToldOfAVolumeOnceItsNodeHasLetItIn(t *testing.T) {
	x := newCrossed(t)
	x.is([]api.Assignment{x.on("n1", "c1-0", "1"), x.on("n2", "c1-1", "1")}, nil)
	x.want("at first", "n1", volume.Sharing{Peers: []netip.Addr{addr2}, Serves: data, Clients: []netip.Addr{addr2}, Settled: true})
	x.want("at first", "n2", volume.Sharing{Peers: []netip.Addr{addr1}, Client: true, Settled: true})
	x.serves(addr2)
	x.look()
	x.want("once it is let in", "n2", volume.Sharing{Peers: []netip.Addr{addr1}, Client: true, Reaches: remote, Settled: true})
	x.said["n1"] = nil // and it is not heard of
	x.look()
	x.want("while the volume's node is away", "n2", volume.Sharing{Peers: []netip.Addr{addr1}, Client: true, Reaches: remote})
	x.told = nil // another leader
	x.look()
	x.want("by another leader, while the volume's node is away", "n2", volume.Sharing{Peers: []netip.Addr{addr1}, Client: true})
}

// able makes nodes of an encrypted site of these; the key of a node is its name.
func (x *crossed) able(nodes ...api.NodeRecord) {
	x.t.Helper()
	x.encrypted = true
	for _, n := range nodes {
		n.Underlay, n.VolumeSharing = x.cache.View().Agent(n.Name).Underlay, &api.VolumeSharing{Encrypts: n.AgentVersion == ""}
		x.view(x.repo.PutNode(x.t.Context(), n))
	}
}

func TestOnAnEncryptedSiteNodesAreToldOfPeersByTheirKeysAlone(t *testing.T) {
	x := newCrossed(t)
	x.able(api.NodeRecord{Name: "n1", WireGuardKey: "k1"}, api.NodeRecord{Name: "n2", WireGuardKey: "k2"}, api.NodeRecord{Name: "n3", WireGuardKey: "k3"})
	members := []api.Assignment{x.on("n1", "c1-0", "1"), x.on("n2", "c1-1", "1"), x.on("n3", "c1-2", "1")}
	x.is(members, nil)
	x.serves(addr2, addr3)
	x.look()
	p1, p2, p3 := volume.SealedPeer{Peer: addr1, Key: "k1"}, volume.SealedPeer{Peer: addr2, Key: "k2"}, volume.SealedPeer{Peer: addr3, Key: "k3"}
	x.want("three nodes", "n1", volume.Sharing{Encrypted: true, Sealed: []volume.SealedPeer{p2, p3}, Serves: data, Clients: []netip.Addr{addr2, addr3}, Settled: true})
	x.want("three nodes", "n2", volume.Sharing{Encrypted: true, Sealed: []volume.SealedPeer{p1}, Clients: []netip.Addr{addr3}, Client: true, Reaches: remote, Settled: true})
	// Two nodes change: one gets an older agent, and one has no WireGuard any more. Both are shut out, and told nothing.
	x.able(api.NodeRecord{Name: "n2", WireGuardKey: "k2", AgentVersion: "older"}, api.NodeRecord{Name: "n3"})
	x.look()
	if len(x.told["n2"])+len(x.told["n3"]) > 0 {
		t.Errorf("nodes that can't encrypt receive %+v and %+v", x.told["n2"], x.told["n3"])
	}
	x.want("while two are let in that can't encrypt", "n1", volume.Sharing{Encrypted: true})
	x.able(api.NodeRecord{Name: "n1", AgentVersion: "older"}, api.NodeRecord{Name: "n2", WireGuardKey: "other"})
	x.look()
	if len(x.told["n1"]) > 0 {
		t.Errorf("a node that can't encrypt receives %+v", x.told["n1"])
	}
	x.want("while the volume's node can't encrypt", "n2", volume.Sharing{Encrypted: true, Client: true})
	x.able(api.NodeRecord{Name: "n1", WireGuardKey: "k1"})
	x.look()
	x.want("once both can", "n1", volume.Sharing{Encrypted: true, Sealed: []volume.SealedPeer{{Peer: addr2, Key: "other"}}, Serves: data, Clients: []netip.Addr{addr2}})
}

func TestOfVolumesThatAllMembersHaveAtHandNothingIsTold(t *testing.T) {
	x := newCrossed(t)
	if told := x.is([]api.Assignment{x.on("n1", "c1-0", "1")}, nil); len(told) > 0 {
		t.Errorf("told %+v", told)
	}
	x.serves(addr3) // somebody whom nobody knows any more
	x.look()
	x.want("while another is let in", "n1", volume.Sharing{})
	x.said["n1"] = nil
	x.look()
	x.want("while it is not heard of", "n1", volume.Sharing{})
}

func TestANodeThatWasLostIsShutOutBeforeAnotherMemberBegins(t *testing.T) {
	x := newCrossed(t)
	before, gone := x.on("n1", "c1-0", "1"), x.on("n2", "c1-1", "1")
	x.is([]api.Assignment{before, gone}, nil)
	x.serves(addr2)
	x.look()
	x.now = x.now.Add(time.Minute)
	x.released = x.now
	x.down["n2"], x.said["n2"] = true, nil
	x.is([]api.Assignment{before}, []api.Assignment{gone}, api.LostMember{Member: "c1-1", Assignment: gone.ID, Node: "n2"})
	x.want("once it is lost", "n1", volume.Sharing{Peers: []netip.Addr{addr2}})
	next := x.on("n3", "c1-1", "2")
	next.Replaces = gone.ID
	x.is([]api.Assignment{before, next}, []api.Assignment{gone})
	x.want("while it is let in", "n1", volume.Sharing{Peers: []netip.Addr{addr2, addr3}, Serves: data, Clients: []netip.Addr{addr3}})
	x.want("while it is let in", "n3", volume.Sharing{Peers: []netip.Addr{addr1}, Client: true})
	x.serves(addr2, addr3)
	x.look()
	if told := x.told["n3"]; len(told) != 1 || told[0].Settled {
		t.Errorf("while the node that was lost is let in, the other is told %+v", told)
	}
	x.serves(addr3)
	x.look()
	x.want("once it is shut out", "n3", volume.Sharing{Peers: []netip.Addr{addr1}, Client: true, Reaches: remote, Settled: true})
	x.down["n2"], x.said["n2"] = false, []volume.SharingState{}
	x.look()
	if len(x.told["n2"]) > 0 || slices.Contains(x.told["n1"][0].Clients, addr2) {
		t.Errorf("back again, with something left of its member, the node is told %+v, the volume's node %+v", x.told["n2"], x.told["n1"])
	}
	// A member that is placed there is no reason to let in what is left of the other.
	x.now = x.now.Add(time.Minute)
	more := x.on("n2", "c1-2", "3")
	x.is([]api.Assignment{before, next, more}, []api.Assignment{gone})
	if slices.Contains(x.told["n1"][0].Clients, addr2) {
		t.Errorf("with another member, and something left of the lost one, the volume's node is told %+v", x.told["n1"])
	}
	x.is([]api.Assignment{before, next, more}, nil)
	if !slices.Contains(x.told["n1"][0].Clients, addr2) {
		t.Errorf("once nothing is left of the lost one, the volume's node is told %+v", x.told["n1"])
	}
}

func TestANodeStaysAClientUntilNothingIsLeftOfItsMembers(t *testing.T) {
	x := newCrossed(t)
	before, moved, stays := x.on("n1", "c1-0", "1"), x.on("n2", "c1-1", "1"), x.on("n2", "c1-2", "1")
	x.is([]api.Assignment{before, moved, stays}, nil)
	x.serves(addr2)
	x.look()
	x.released = x.now
	for what, test := range map[string]struct {
		next  func() api.Assignment
		stays bool
		want  bool
	}{
		"a member that was scaled away":                              {nil, false, true},
		"a member that moved":                                        {func() api.Assignment { n := x.on("n3", "c1-1", "2"); n.From = moved.ID; return n }, false, true},
		"a member that was replaced, on a node where another stayed": {func() api.Assignment { n := x.on("n3", "c1-1", "2"); n.Replaces = moved.ID; return n }, true, true},
		"a member that was replaced, on a node where nobody stayed":  {func() api.Assignment { n := x.on("n3", "c1-1", "2"); n.Replaces = moved.ID; return n }, false, false},
		"a member whose replacement moved":                           {func() api.Assignment { n := x.on("n3", "c1-1", "3"); n.From = "uid-c1.c1-1.2"; return n }, false, false},
		"a member of a name that was used again":                     {func() api.Assignment { return x.on("n3", "c1-1", "2") }, false, true},
	} {
		held := []api.Assignment{before}
		if test.next != nil {
			held = append(held, test.next())
		}
		if test.stays {
			held = append(held, stays)
		}
		x.is(held, []api.Assignment{moved})
		if got := slices.Contains(x.told["n1"][0].Clients, addr2); got != test.want {
			t.Errorf("%s: its node is a client: %t, want %t", what, got, test.want)
		}
	}
}

func TestAVolumeThatAllMembersOnlyReadIsServedReadOnly(t *testing.T) {
	x := newCrossed(t)
	reads, writes := x.on("n2", "c1-0", "1"), x.on("n3", "c1-1", "1")
	reads.Volumes[0].ReadOnly = true
	x.is([]api.Assignment{reads}, nil)
	if got := x.told["n1"][0].Serves; !slices.Equal(got, []volume.Share{{UID: "uid-data", ReadOnly: true}}) {
		t.Errorf("served as %+v", got)
	}
	x.is([]api.Assignment{reads, writes}, nil)
	if got := x.told["n1"][0].Serves; !slices.Equal(got, data) {
		t.Errorf("with one who writes, served as %+v", got)
	}
}

func TestADownNodeIsShutOutThoughNobodyTookAPlace(t *testing.T) {
	x := newCrossed(t)
	before, gone, saved := x.on("n1", "c1-0", "1"), x.on("n2", "c1-1", "1"), x.on("n2", "c1-2", "1")
	x.released = x.now
	x.is([]api.Assignment{before, saved}, []api.Assignment{gone})
	if !slices.Contains(x.told["n1"][0].Clients, addr2) {
		t.Fatalf("the node that is up is no client: %+v", x.told["n1"])
	}
	x.down["n2"] = true
	x.look()
	if len(x.told["n1"]) > 0 && slices.Contains(x.told["n1"][0].Clients, addr2) {
		t.Errorf("a node that is down, with a member that was let go of, is a client: %+v", x.told["n1"])
	}
}

func TestNodesAreToldOfRatesWhereAllVolumesThatCrossHaveALimit(t *testing.T) {
	const mib = 1 << 20
	x := newCrossed(t)
	x.wantVolume("more", 4)
	limit := func(name string, bytes int64) {
		t.Helper()
		_, revision, err := x.repo.ChangeVolume(t.Context(), name, "uid-"+name, func(v *api.VolumeIntent, _ []api.VolumeIntent) error {
			v.IOBytesPerSecond = bytes
			return nil
		})
		x.view(revision, err)
	}
	told := func(when string, want map[string][]volume.PeerRate) {
		t.Helper()
		x.look()
		for _, node := range []string{"n1", "n2", "n3"} {
			var got []volume.PeerRate
			for _, s := range x.told[node] {
				got = append(got, s.Rates...)
			}
			if !slices.Equal(got, want[node]) {
				t.Errorf("%s: %s receives the rates %v, want %v", when, node, got, want[node])
			}
		}
	}
	with := func(a api.Assignment, uid, node string) api.Assignment {
		a.Volumes = append(a.Volumes, api.VolumeClaim{UID: uid, Name: uid, Path: "/more", Node: node})
		return a
	}
	members := []api.Assignment{x.on("n1", "c1-0", "1"), x.on("n2", "c1-1", "1"), x.on("n2", "c1-2", "1"), x.on("n3", "c1-3", "1")}
	x.is(members, nil)
	told("without a limit", nil)
	limit("data", 5*mib)
	told("with a limit", map[string][]volume.PeerRate{
		"n1": {{Peer: addr2, BytesPerSecond: 10 * mib}, {Peer: addr3, BytesPerSecond: 5 * mib}}, "n2": {{Peer: addr1, BytesPerSecond: 10 * mib}}, "n3": {{Peer: addr1, BytesPerSecond: 5 * mib}},
	})
	// One has another volume of the same node, which has no limit, and then one.
	members = append(members, with(x.on("n2", "c1-4", "1"), "uid-more", "n1"))
	x.is(members, nil)
	told("beside a volume without a limit", map[string][]volume.PeerRate{
		"n1": {{Peer: addr3, BytesPerSecond: 5 * mib}}, "n3": {{Peer: addr1, BytesPerSecond: 5 * mib}},
	})
	limit("more", mib)
	told("beside a volume with another limit", map[string][]volume.PeerRate{
		"n1": {{Peer: addr2, BytesPerSecond: 16 * mib}, {Peer: addr3, BytesPerSecond: 5 * mib}}, "n2": {{Peer: addr1, BytesPerSecond: 16 * mib}}, "n3": {{Peer: addr1, BytesPerSecond: 5 * mib}},
	})
	members = append(members, with(x.on("n1", "c1-5", "1"), "uid-more", "n3"))
	x.is(members, nil)
	told("with volumes in both directions", map[string][]volume.PeerRate{
		"n1": {{Peer: addr2, BytesPerSecond: 16 * mib}, {Peer: addr3, BytesPerSecond: 6 * mib}}, "n2": {{Peer: addr1, BytesPerSecond: 16 * mib}}, "n3": {{Peer: addr1, BytesPerSecond: 6 * mib}},
	})
	limit("data", 0)
	told("lifted", nil)
}

func TestNoMachineBeginsWhileOneItReplacesMayRunBesideTheirBlockVolume(t *testing.T) {
	for _, block := range []bool{true, false} {
		x := newCrossed(t)
		x.serves(addr2)
		old, next := x.on("n1", "c1-0", "1"), x.on("n2", "c1-0", "2")
		old.Volumes[0].Block, next.Volumes[0].Block, next.Replaces = block, block, old.ID
		settled := func(when string, want bool) {
			t.Helper()
			for node, told := range x.told {
				if len(told) != 1 || told[0].Settled != want {
					t.Errorf("%s, block volume %t: %s is told %+v, want settled %t", when, block, node, told, want)
				}
			}
			if len(x.told) == 0 {
				t.Errorf("%s: nobody is told anything", when)
			}
		}
		x.is([]api.Assignment{next}, []api.Assignment{old})
		settled("while it is being cleaned", !block)
	}
	x := newCrossed(t)
	x.serves(addr2)
	old, next := x.on("n1", "c1-0", "1"), x.on("n2", "c1-0", "2")
	old.Volumes[0].Block, next.Volumes[0].Block, next.From = true, true, old.ID
	x.is([]api.Assignment{next}, []api.Assignment{old})
	if told := x.told["n2"]; len(told) != 1 || !told[0].Settled {
		t.Errorf("one that took over from it does not go on: %+v", told)
	}
}
