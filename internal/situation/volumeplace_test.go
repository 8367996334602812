package situation

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestAClusterGoesWhereItsVolumesLie(t *testing.T) {
	on := func(name, node string) *state.Volume {
		v := &state.Volume{Intent: api.VolumeIntent{UID: "uid-" + name, Name: name}}
		if node != "" {
			v.Record = &api.VolumeRecord{UID: "uid-" + name, Node: node}
		}
		return v
	}
	deleted, purging := on("deleted", "n1"), on("purging", "n1")
	deleted.Intent.DeleteRequestedAt, purging.Record.Purging = &noon, true
	disk, farDisk := on("lab.disk", "n1"), on("lab.disk-far", "n2")
	disk.Intent.Kind, farDisk.Intent.Kind = api.VolumeBlock, api.VolumeBlock
	stored := map[string]*state.Volume{
		"lab.home-ada": on("lab.home-ada", "n1"), "lab.a": on("lab.a", "n1"), "lab.far": on("lab.far", "n2"), "lab.farther": on("lab.farther", "n3"),
		"lab.served": on("served", "served"), "lab.served-too": on("served-too", "served-too"), "lab.away": on("away", "away"),
		"lab.disk": disk, "lab.disk-far": farDisk,
		"lab.new": on("lab.new", ""), "lab.deleted": deleted, "lab.purging": purging, "foreign": on("foreign", "n1"),
	}
	const alone = "its kernel has no NFS server"
	nodes := func(node string, block bool) (api.NodePhase, string) {
		if block {
			return api.NodeReady, ""
		}
		switch node {
		case "served", "served-too":
			return api.NodeReady, ""
		case "away":
			return api.NodeDown, ""
		default:
			return api.NodeReady, alone
		}
	}
	for name, tc := range map[string]struct {
		home    string
		volumes []string
		want    api.VolumePlace
	}{
		"no volumes":               {"", nil, api.VolumePlace{}},
		"a home":                   {api.HomeOfUser, nil, api.VolumePlace{Volume: "home-ada", Node: "n1", Problem: alone}},
		"a volume beside the home": {api.HomeOfUser, []string{"a"}, api.VolumePlace{Volume: "home-ada", Node: "n1", Problem: alone}},
		"volumes on three nodes":   {api.HomeOfUser, []string{"far", "farther"}, api.VolumePlace{Volume: "home-ada", Node: "n1", Problem: alone, Other: "far", OtherNode: "n2", OtherProblem: alone}},
		"a volume that is served":  {"", []string{"served"}, api.VolumePlace{Volume: "served", Node: "served"}},
		"a node that serves nothing goes before two that do": {
			"",
			[]string{"served", "served-too", "a"},
			api.VolumePlace{Volume: "a", Node: "n1", Problem: alone, Other: "served-too", OtherNode: "served-too"},
		},
		"two that serve nothing go before one that does": {
			"",
			[]string{"served", "a", "far"},
			api.VolumePlace{Volume: "far", Node: "n2", Problem: alone, Other: "a", OtherNode: "n1", OtherProblem: alone},
		},
		"a node that serves, and is away": {
			"", []string{"away"}, api.VolumePlace{Volume: "away", Node: "away", Unplaced: "away", Why: "lies on node away, which is down", Away: true},
		},
		"a block volume": {"", []string{"disk"}, api.VolumePlace{Volume: "disk", Node: "n1", Block: true}},
		"a block volume beside the home on one node": {
			api.HomeOfUser, []string{"disk"}, api.VolumePlace{Volume: "home-ada", Node: "n1", Problem: alone},
		},
		"a block volume before another volume on its node": {
			"", []string{"disk", "a"}, api.VolumePlace{Volume: "a", Node: "n1", Problem: alone},
		},
		"a block volume elsewhere": {
			api.HomeOfUser, []string{"disk-far"}, api.VolumePlace{Volume: "home-ada", Node: "n1", Problem: alone, Other: "disk-far", OtherNode: "n2", OtherBlock: true},
		},
		"another volume beside that": {
			api.HomeOfUser, []string{"disk-far", "far"}, api.VolumePlace{Volume: "home-ada", Node: "n1", Problem: alone, Other: "far", OtherNode: "n2", OtherProblem: alone},
		},
		"a volume without a node":     {"", []string{"a", "new"}, api.VolumePlace{Volume: "a", Node: "n1", Problem: alone, Unplaced: "new", Why: "has no node yet"}},
		"a deleted volume":            {"", []string{"deleted"}, api.VolumePlace{Unplaced: "deleted", Why: "is being deleted"}},
		"a volume that is purged":     {"", []string{"purging"}, api.VolumePlace{Unplaced: "purging", Why: "is being deleted"}},
		"a volume of another project": {"", []string{"foreign"}, api.VolumePlace{Unplaced: "foreign", Why: "does not exist"}},
	} {
		intent := api.ClusterIntent{Project: "lab", User: "ada", Spec: api.ClusterSpec{Home: api.ClusterHome{Kind: tc.home}}}
		for _, v := range tc.volumes {
			intent.Spec.Volumes = append(intent.Spec.Volumes, api.VolumeAttachment{Name: v})
		}
		if got := volumePlace(func(name string) *state.Volume { return stored[name] }, nodes, &intent); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
}

func TestVolumesAreServedByNodesThatCanAndSay(t *testing.T) {
	view := stored(t, api.NodeRecord{Name: "n1", VolumeSharing: &api.VolumeSharing{}}, api.NodeRecord{Name: "n2", VolumeSharing: &api.VolumeSharing{ServeProblem: "no"}}, api.NodeRecord{Name: "n3"},
		api.NodeRecord{Name: "older", WireGuardKey: "key", VolumeSharing: &api.VolumeSharing{}}, api.NodeRecord{Name: "sealed", WireGuardKey: "key", VolumeSharing: &api.VolumeSharing{Encrypts: true}})
	for name, tc := range map[string]struct {
		encrypted bool
		node      string
		want      string
	}{
		"a node that serves":                             {false, "n1", ""},
		"a node that can't":                              {false, "n2", "no"},
		"a node whose agent is older":                    {false, "n3", "its agent serves no volumes to other nodes"},
		"a node that is not there":                       {false, "n9", "its agent serves no volumes to other nodes"},
		"no WireGuard where the underlay is encrypted":   {true, "n1", noWireGuard},
		"an older agent where the underlay is encrypted": {true, "older", clearOnly},
		"WireGuard where the underlay is encrypted":      {true, "sealed", ""},
		"no agent where the underlay is encrypted":       {true, "n9", "its agent serves no volumes to other nodes"},
	} {
		if got := unserved(view, tc.encrypted, tc.node, false); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

const (
	noWireGuard = "the site encrypts its underlay, and its kernel has no WireGuard"
	clearOnly   = "the site encrypts its underlay, and its agent has volumes cross in clear text only: upgrade it"
)

// Placement and the attachment of a volume to members that run ask the same.
func TestMembersReachVolumesThroughWireGuardOnlyWhereTheUnderlayIsEncrypted(t *testing.T) {
	able := &api.VolumeSharing{Encrypts: true, Blocks: true}
	view := stored(t, api.NodeRecord{Name: "n1", WireGuardKey: "key", VolumeSharing: able}, api.NodeRecord{Name: "n2", WireGuardKey: "key", VolumeSharing: able},
		api.NodeRecord{Name: "older", WireGuardKey: "key", VolumeSharing: &api.VolumeSharing{Blocks: true}}, api.NodeRecord{Name: "plain", VolumeSharing: able}, api.NodeRecord{Name: "none"})
	for node, want := range map[string]string{"n2": "", "older": clearOnly, "plain": noWireGuard, "none": "its agent reaches no volumes of other nodes"} {
		if want != "" {
			want = `volume "v" lies on node n1, and node ` + node + " can't reach it (" + want + ")"
		}
		if got := VolumeReach(view, true, "v", "n1", node); got != want {
			t.Errorf("%s: %q, want %q", node, got, want)
		}
		if node != "none" && VolumeReach(view, false, "v", "n1", node) != "" {
			t.Errorf("%s has no volumes of n1 in clear", node)
		}
	}
	for _, encrypted := range []bool{false, true} {
		room := Room{Encrypted: encrypted}
		for node, why := range map[string]string{"n2": "", "older": clearOnly, "plain": noWireGuard} {
			s := room.record(view, view.Node(node)).VolumeSharing
			if closed := *s == (api.VolumeSharing{ServeProblem: why, ReachProblem: why}); closed != (encrypted && why != "") {
				t.Errorf("encrypted %t: placement takes node %s for %+v", encrypted, node, *s)
			}
		}
		if s := room.record(view, view.Node("none")).VolumeSharing; s != nil {
			t.Errorf("encrypted %t: placement takes an agent that has no volumes cross for %+v", encrypted, *s)
		}
	}
}

func TestBlockVolumesAreServedWithoutAnNFSServer(t *testing.T) {
	view := stored(t, api.NodeRecord{Name: "n1", VolumeSharing: &api.VolumeSharing{ServeProblem: "no server", Blocks: true}},
		api.NodeRecord{Name: "n2", VolumeSharing: &api.VolumeSharing{ServeProblem: "no underlay"}}, api.NodeRecord{Name: "n3", VolumeSharing: &api.VolumeSharing{}})
	for node, want := range map[string]string{
		"n1": "", "n2": "no underlay", "n3": "its agent serves no block volumes to other nodes", "n9": "its agent serves no volumes to other nodes",
	} {
		if got := unserved(view, false, node, true); got != want {
			t.Errorf("%s: %q, want %q", node, got, want)
		}
	}
}

func TestMembersReachVolumesOfNodesThatServeFromNodesThatCan(t *testing.T) {
	view := stored(t, api.NodeRecord{Name: "n1", VolumeSharing: &api.VolumeSharing{}}, api.NodeRecord{Name: "n2", VolumeSharing: &api.VolumeSharing{ServeProblem: "no server", ReachProblem: "no client"}},
		api.NodeRecord{Name: "n3"})
	for _, tc := range []struct{ lies, member, want string }{
		{"n1", "n1", ""},
		{"n2", "n2", ""},
		{"n2", "n1", `volume "v" lies on node n2, which does not serve it to others (no server)`},
		{"n1", "n2", `volume "v" lies on node n1, and node n2 can't reach it (no client)`},
		{"n1", "n3", `volume "v" lies on node n1, and node n3 can't reach it (its agent reaches no volumes of other nodes)`},
	} {
		if got := VolumeReach(view, false, "v", tc.lies, tc.member); got != tc.want {
			t.Errorf("from %s to %s: %q, want %q", tc.member, tc.lies, got, tc.want)
		}
	}
}

// stored is a view of a site with these nodes.
func stored(t *testing.T, nodes ...api.NodeRecord) *state.View {
	t.Helper()
	repo := state.New(memory.New())
	cache, err := repo.OpenCache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		revision, err := repo.PutNode(t.Context(), n)
		if err == nil {
			_, err = cache.WaitRevision(t.Context(), revision)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return cache.View()
}

func TestVolumesAreServedToWholeMachinesOverVLANs(t *testing.T) {
	able, trunk := &api.VolumeSharing{Machines: true}, &api.Trunk{Interface: "eth1", MTU: 1500}
	view := stored(t, api.NodeRecord{Name: "able", VolumeSharing: able, Trunk: trunk}, api.NodeRecord{Name: "no-trunk", VolumeSharing: able},
		api.NodeRecord{Name: "down", VolumeSharing: able, Trunk: &api.Trunk{Interface: "eth1", Problem: "it has no carrier"}},
		api.NodeRecord{Name: "older", VolumeSharing: &api.VolumeSharing{}, Trunk: trunk},
		api.NodeRecord{Name: "no-nfs", VolumeSharing: &api.VolumeSharing{Machines: true, ServeProblem: "its kernel has no NFS server"}, Trunk: trunk})
	for _, tt := range []struct {
		node      string
		encrypted bool
		want      string
	}{
		{"able", false, ""},
		{"able", true, "whole machines have volumes over VLANs, which this site's encrypted underlay does not carry"},
		{"no-trunk", false, "whole machines have volumes over VLANs, and it has no trunk: start its agent with --trunk-interface"},
		{"down", false, "whole machines have volumes over VLANs, and its trunk can't be used: it has no carrier"},
		{"older", false, "its agent serves no volumes to whole machines: upgrade it"},
		{"no-nfs", false, "its kernel has no NFS server"},
		{"n9", false, "its agent serves no volumes to other nodes"},
	} {
		if got := UnservedToMachines(view, tt.encrypted, tt.node); got != tt.want {
			t.Errorf("%s (encrypted: %v): %q, want %q", tt.node, tt.encrypted, got, tt.want)
		}
	}
}
