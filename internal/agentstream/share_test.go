package agentstream

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// spread is the desired state of the node n of a cluster with one member on each of 1,000 nodes; moved has the nodes that some members are
// on instead of their own.
func spread(t *testing.T, n int, moved map[int]int) *Desired {
	t.Helper()
	var hosts, ids strings.Builder
	var peers []fabric.Remote
	for i := range 1000 {
		at, generation := i, 1
		if to, ok := moved[i]; ok {
			at, generation = to, 2
		}
		fmt.Fprintf(&hosts, "10.64.%d.%d\tc1-%d\n", at/256, at%256, i)
		fmt.Fprintf(&ids, "u1.c1-%d.%d\n", i, generation)
		peers = append(peers, memberOn(at))
	}
	shared, err := NewPeers(3, peers)
	if err != nil {
		t.Fatal(err)
	}
	files, err := NewFiles("u1", []driver.File{
		{Path: "/etc/ssh/principals", Content: []byte(ids.String()), Mode: 0o644}, {Path: "/etc/hosts", Content: []byte(hosts.String()), Mode: 0o644},
	})
	if err != nil {
		t.Fatal(err)
	}
	network := api.Network{Index: 3}
	own := []driver.File{{Path: "/etc/hostname", Content: fmt.Appendf(nil, "c1-%d\n", n), Mode: 0o644}}
	return &Desired{
		Peers: []NodePeers{{shared, underlayOf(n)}}, Files: []*Share{files}, Networks: []fabric.Network{{Network: network}},
		Members: []Member{
			{
				Member:      driver.Member{Assignment: api.Assignment{ID: fmt.Sprintf("u1.c1-%d.1", n), ClusterUID: "u1"}, Networks: []api.Network{network}, Files: own},
				FilesDigest: FilesDigest(own),
			},
			{Member: driver.Member{Assignment: api.Assignment{ID: "u1.old.1", ClusterUID: "u1"}, Networks: []api.Network{network}}, Release: true},
		},
	}
}

// memberOn is a member on a node, with the address of the node's number.
func memberOn(node int) fabric.Remote {
	return fabric.Remote{
		Peer: underlayOf(node), Address: netip.AddrFrom4([4]byte{10, 64, byte(node / 256), byte(node)}), MAC: fmt.Sprintf("02:6e:00:03:%02x:%02x", node/256, node%256),
	}
}

func underlayOf(node int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18, byte(node / 256), byte(node)})
}

func TestWhatAClustersNodesShareArrivesInNetworksAndMembers(t *testing.T) {
	server, client, down := ends()
	sent := spread(t, 7, nil)
	got, _ := exchange(t, server, client, down, sent)
	if n := len(got.Networks[0].Remotes); n != 999 || slices.Contains(got.Networks[0].Peers(), underlayOf(7)) || !slices.Contains(got.Networks[0].Remotes, memberOn(8)) {
		t.Errorf("the network has %d members on other nodes, want those of all nodes but itself", n)
	}
	stays, goes := got.Members[0], got.Members[1]
	var paths []string
	for _, f := range stays.Files {
		paths = append(paths, f.Path)
	}
	if want := []string{"/etc/hostname", "/etc/hosts", "/etc/ssh/principals"}; !slices.Equal(paths, want) {
		t.Errorf("the member has files %v, want %v", paths, want)
	}
	if want := sent.FilesDigests()[stays.Assignment.ID]; stays.FilesDigest != want || want == "" || want == sent.Members[0].FilesDigest {
		t.Errorf("the member's files are called %q, and its leader waits for %q", stays.FilesDigest, want)
	}
	if len(goes.Files) > 0 || goes.FilesDigest != "" || sent.FilesDigests()[goes.Assignment.ID] != "" {
		t.Errorf("the member that is released has files: %+v", goes)
	}
	whole, err := sent.Whole()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(whole, got, alike()); diff != "" {
		t.Errorf("what arrives is not the whole of what was sent (-sent +arrived):\n%.2000s", diff)
	}
}

func TestAHealOfOneMemberOfAThousandSendsWhatChanged(t *testing.T) {
	server, client, down := ends()
	_, messages := exchange(t, server, client, down, spread(t, 7, nil))
	all := len(strings.Join(messages, "\n"))
	healed := spread(t, 7, map[int]int{500: 1500})
	got, messages := exchange(t, server, client, down, healed)
	if n := len(strings.Join(messages, "\n")); n > 500 {
		t.Errorf("%d bytes are sent, want 500 at most of the %d of everything", n, all)
	}
	whole, err := healed.Whole()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(whole, got, alike()); diff != "" {
		t.Errorf("what arrives differs (-sent +arrived):\n%.2000s", diff)
	}
}

func TestSharesAreTheSameWhenAllTheySayIs(t *testing.T) {
	made := func(s *Share, err error) *Share {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	peers := func(index, node int) *Share { return made(NewPeers(index, []fabric.Remote{memberOn(node)})) }
	files := func(cluster, text string, mode uint32) *Share {
		return made(NewFiles(cluster, []driver.File{{Path: "/a", Content: []byte(text), Mode: mode}}))
	}
	for name, pair := range map[string]struct {
		one, other *Share
		same       bool
	}{
		"equal peers":                {peers(1, 1), peers(1, 1), true},
		"peers of another network":   {peers(1, 1), peers(2, 1), false},
		"another peer":               {peers(1, 1), peers(1, 2), false},
		"a member at another peer":   {peers(1, 1), made(NewPeers(1, []fabric.Remote{{Peer: underlayOf(2), Address: memberOn(1).Address, MAC: memberOn(1).MAC}})), false},
		"equal files":                {files("u1", "a", 0o644), files("u1", "a", 0o644), true},
		"files of another cluster":   {files("u1", "a", 0o644), files("u2", "a", 0o644), false},
		"a file with another text":   {files("u1", "a", 0o644), files("u1", "b", 0o644), false},
		"a file with another mode":   {files("u1", "a", 0o644), files("u1", "a", 0o600), false},
		"peers and no share":         {peers(1, 1), nil, false},
		"no share on either side":    {nil, nil, true},
		"peers and a cluster's file": {peers(1, 1), files("u1", "198.18.0.1\n", 0), false},
	} {
		if same := pair.one.Same(pair.other); same != pair.same {
			t.Errorf("%s: the same: %v, want %v", name, same, pair.same)
		}
	}
	if _, err := NewFiles("u1", []driver.File{{Path: "/a", Content: []byte{0xff}}}); err == nil {
		t.Error("a file that is no text is shared, and would arrive as another")
	}
}

func TestAMemberHasTheFilesOfItsClusterAndThePeersOfAllItsNetworks(t *testing.T) {
	server, client, down := ends()
	sent := &Desired{}
	for i, cluster := range []string{"u1", "u10"} {
		files, err := NewFiles(cluster, []driver.File{{Path: "/etc/hosts", Content: []byte(cluster + "\n"), Mode: 0o644}})
		if err != nil {
			t.Fatal(err)
		}
		sent.Files = append(sent.Files, files)
		sent.Members = append(sent.Members, Member{Member: driver.Member{
			Assignment: api.Assignment{ID: cluster + ".m.1", ClusterUID: cluster}, Networks: []api.Network{{Index: 1 + i}, {Index: 3}},
		}})
	}
	for index := 1; index <= 3; index++ { // the clusters' own, and one that both are on
		peers, err := NewPeers(index, []fabric.Remote{memberOn(7), memberOn(index)})
		if err != nil {
			t.Fatal(err)
		}
		sent.Peers = append(sent.Peers, NodePeers{peers, underlayOf(7)})
		sent.Networks = append(sent.Networks, fabric.Network{Network: api.Network{Index: index}})
	}
	got, _ := exchange(t, server, client, down, sent)
	for i, n := range got.Networks {
		if !slices.Equal(n.Remotes, []fabric.Remote{memberOn(1 + i)}) {
			t.Errorf("network %d has remotes %v, want the member on node %d", n.Index, n.Remotes, 1+i)
		}
	}
	for _, m := range got.Members {
		if len(m.Files) != 1 || string(m.Files[0].Content) != m.Assignment.ClusterUID+"\n" {
			t.Errorf("the member of cluster %s has files %v", m.Assignment.ClusterUID, m.Files)
		}
	}
}

func TestAFileThatChangesItsModeIsSentWhole(t *testing.T) {
	server, client, down := ends()
	state := func(mode uint32) *Desired {
		d := spread(t, 7, nil)
		files := d.Files[0].content()
		for i := range files {
			files[i].Mode = mode
		}
		share, err := NewFiles("u1", files)
		if err != nil {
			t.Fatal(err)
		}
		d.Files[0] = share
		return d
	}
	exchange(t, server, client, down, state(0o644))
	got, _ := exchange(t, server, client, down, state(0o600))
	for _, f := range got.Members[0].Files[1:] {
		if f.Mode != 0o600 {
			t.Errorf("%s has mode %o, want 600", f.Path, f.Mode)
		}
	}
}

func TestAChangeOfWhatWasNeverSentIsRefused(t *testing.T) {
	for _, list := range []string{"text", "member"} {
		in := newIncoming(desiredLists())
		if err := in.take(piece{Items: []item{{List: list, Key: "k", Edit: []byte(`[]`)}}}); err == nil {
			t.Errorf("a change of a %s that is not there is taken", list)
		}
	}
}
