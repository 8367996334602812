package placement

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// under is a node with an underlay of this MTU; 0: its agent does not report it.
func under(rec api.NodeRecord, mtu int) api.NodeRecord {
	rec.Underlay, rec.UnderlayMTU = "198.18.0.1", mtu
	return rec
}

// jumbo is a group on a network with an MTU of 8950 bytes.
func jumbo(size int) api.Group {
	g := group("compute", size, 1, 1)
	g.PortMTU = api.PortMTU{Network: "project/lab", Bytes: 8950, UnderlayBytes: 9000}
	return g
}

func TestMembersGoToNodesWhoseUnderlayHasRoomForTheirNetwork(t *testing.T) {
	v := viewOf(t, under(testNode("n1", 4, 1, 64), 1500), under(testNode("n2", 4, 1, 64), 9000), under(testNode("n3", 4, 1, 64), 0), under(testNode("n4", 4, 1, 64), 8999))
	placed, refusal := Place(v, Request{Cluster: "c1", Groups: []api.Group{jumbo(4)}})
	if refusal != nil {
		t.Fatal(refusal.Message)
	}
	for _, p := range placed {
		if p.Node != "n2" {
			t.Errorf("member %s is on %s, want n2 alone", p.Member, p.Node)
		}
	}
	if _, refusal := Place(v, Request{Cluster: "c1", Groups: []api.Group{group("compute", 16, 1, 1)}}); refusal != nil {
		t.Errorf("members of other networks are kept from nodes, too: %s", refusal.Message)
	}
	_, refusal = Place(v, Request{Cluster: "c1", Groups: []api.Group{jumbo(5)}})
	const want = "too few nodes can carry the MTU of network project/lab, 8950 bytes (n1: its underlay has an MTU of 1500 bytes, and 9000 are needed for " +
		"8950 in a tunnel; n3: its agent does not report the MTU of its underlay; n4: its underlay has an MTU of 8999 bytes, and 9000 are needed for 8950 in a tunnel)"
	if refusal == nil || refusal.Constraint != ConstraintMTU || !refusal.Never || !strings.Contains(refusal.Message, want) {
		t.Errorf("a fifth member: got %+v", refusal)
	}
	reason, undecided := v.Sketch().WhyNot("n1", jumbo(1))
	if want := "node n1 can't carry network project/lab: its underlay has an MTU of 1500 bytes, and 9000 are needed for 8950 in a tunnel"; reason != want || undecided {
		t.Errorf("why not n1: %q, undecided %t", reason, undecided)
	}
	v.SetNode(under(testNode("n2", 4, 1, 64), 1500), Schedulable)
	_, refusal = Place(v, Request{Cluster: "c1", Groups: []api.Group{jumbo(1)}})
	if refusal == nil || refusal.Constraint != ConstraintMTU || !strings.Contains(refusal.Message, "no node can carry the MTU of network project/lab") {
		t.Errorf("after the underlay of the only node shrank: got %+v", refusal)
	}
}

func TestANodeWithoutAnUnderlayCarriesEachNetworkToItself(t *testing.T) {
	if _, refusal := Place(viewOf(t, testNode("n1", 4, 1, 64)), Request{Cluster: "c1", Groups: []api.Group{jumbo(2)}}); refusal != nil {
		t.Error(refusal.Message)
	}
}

// uplink is a node whose uplink carries so many bits per second; 0: nobody knows.
func uplink(rec api.NodeRecord, bits int64) api.NodeRecord {
	rec.Capacity.UplinkBitsPerSecond = bits
	return rec
}

// rated is a group whose members have two ports with minimum rates that come to this.
func rated(size int, rate api.Rate) api.Group {
	g := group("compute", size, 1, 1)
	half := api.Quality{MinRate: rate / 2}
	g.Networks = []api.GroupNetwork{{Name: "project/lab", Quality: half}, {Name: "data", Quality: half}}
	return g
}

// promise lets a member hold a core and a minimum rate on a node.
func promise(t *testing.T, v *View, id, node string, slot int, rate api.Rate) api.Assignment {
	t.Helper()
	a := api.Assignment{ID: id, Node: node, Slots: []int{slot}, Ports: []api.PortClaim{{Network: "uid"}, {Network: "lab", Quality: api.Quality{MinRate: rate}}}}
	if err := v.Take(a); err != nil {
		t.Fatal(err)
	}
	return a
}

func TestMinimumRatesArePromisedUpToWhatTheUplinkCarries(t *testing.T) {
	const gbit = 1e9
	for _, tt := range []struct {
		name  string
		group api.Group
		held  api.Rate // on n1
		never bool
		fits  int
		says  string
	}{
		{"ten members fill both uplinks", rated(10, 2*gbit), 0, false, 10, ""},
		{
			"an eleventh has no room on any node", rated(11, 2*gbit), 0, true, 10,
			"11 members with 1 core and 1GiB each (whose ports have minimum rates of 2Gbit); more than this site has: 10 members fit even if every node were up and empty",
		},
		{"one that is promised more than any uplink carries", rated(1, 12*gbit), 0, true, 0, "more than any node of this site has: n1 has most, 10Gbit of the uplink"},
		{
			"one beside those of others", rated(2, 10*gbit), 4 * gbit, false, 1,
			"1 member fits now (n2); n1 has 6Gbit of 10Gbit of the uplink free",
		},
		{"one without a minimum", rated(14, 0), 10 * gbit, false, 15, ""},
	} {
		v := viewOf(t, uplink(testNode("n1", 8, 1, 64), 10*gbit), uplink(testNode("n2", 8, 1, 64), 10*gbit))
		if tt.held > 0 {
			promise(t, v, "other", "n1", 0, tt.held)
		}
		_, refusal := Place(v, Request{Cluster: "c1", Groups: []api.Group{tt.group}})
		if tt.says == "" {
			if refusal != nil {
				t.Errorf("%s: %s", tt.name, refusal.Message)
			}
			continue
		}
		if refusal == nil || refusal.Constraint != ConstraintUplink || refusal.Never != tt.never || refusal.Fits != tt.fits || !strings.Contains(refusal.Message, tt.says) {
			t.Errorf("%s: got %+v", tt.name, refusal)
			continue
		}
		if got := v.Sketch().Capacity(tt.group).Refuse(tt.group.Size); !tt.never && got.Constraint != ConstraintUplink || got.Never != tt.never {
			t.Errorf("%s: counted, it is %s, never %t", tt.name, got.Constraint, got.Never)
		}
	}
}

func TestAnUplinkOfUnknownRatePromisesEverything(t *testing.T) {
	v := viewOf(t, uplink(testNode("n1", 8, 1, 64), 0))
	promise(t, v, "other", "n1", 0, api.MaxRate)
	if _, refusal := Place(v, Request{Cluster: "c1", Groups: []api.Group{rated(7, api.MaxRate)}}); refusal != nil {
		t.Error(refusal.Message)
	}
}

func TestWhoIsSavedOrGoneIsPromisedNothing(t *testing.T) {
	const gbit = 1e9
	v := viewOf(t, uplink(testNode("n1", 8, 1, 64), 10*gbit))
	free := func() int64 { u, _ := v.Usage("n1"); return u.Besides[resource.Uplink] }
	a := promise(t, v, "a", "n1", 0, 4*gbit)
	if got := free(); got != 6*gbit {
		t.Errorf("beside a member with 4Gbit, %d are free", got)
	}
	a.ID, a.Slots, a.Saved = "saved", nil, true
	if err := v.Take(a); err != nil || free() != 6*gbit {
		t.Errorf("beside a saved one: %d are free, %v", free(), err)
	}
	a.ID, a.Slots, a.Saved, a.Ports = "more", []int{1}, false, []api.PortClaim{{Quality: api.Quality{MinRate: 7 * gbit}}}
	if err := v.Take(a); err == nil || !strings.Contains(err.Error(), "node n1 has 6Gbit of the uplink free, not 7Gbit") {
		t.Errorf("more than is left was taken: %v", err)
	}
	if err := v.Release("a"); err != nil {
		t.Fatal(err)
	}
	if err := v.Free("a"); err != nil || free() != 10*gbit {
		t.Errorf("after the member ended: %d are free, %v", free(), err)
	}
}
