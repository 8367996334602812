package decision

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// then is the cluster after a change.
func then(c Cluster, change Change) Cluster {
	c.store(change)
	return c
}

// saved is a cluster that is being restored: c-1 is saved and was cut down at 1 h.
func saved(t *testing.T) Cluster {
	t.Helper()
	c := running()
	c.Record.Phase, c.Intent.SaveAskedAt = api.ClusterSaving, at(0)
	c = then(c, apply(t, c, time.Hour, lifecycle.Shelve{IDs: []string{"u1.c-1.1"}}))
	c.Record.Phase = api.ClusterRestoring
	return c
}

// successor is where a member is to go on.
func successor(c Cluster, of string) api.Assignment {
	for _, a := range c.Assignments() {
		if a.ID == of {
			n := *a.Assignment
			n.Generation = c.Record.Generation + 1
			n.ID, n.From, n.Of, n.Rank, n.Saved = fmt.Sprintf("u1.%s.%d", n.Member, n.Generation), of, of, lifecycle.NoRank, false
			n.Slots, n.Memory = []int{4, 5}, []api.MemoryClaim{{Bytes: 1000}}
			return n
		}
	}
	return api.Assignment{}
}

// spansOf writes the use that ended down.
func spansOf(change Change) []string {
	var lines []string
	if change.Usage == nil {
		return nil
	}
	for _, s := range change.Usage.Spans {
		lines = append(lines, fmt.Sprintf("%s on %s: %d members, %d cores, %d bytes for %s", s.Kind, s.Node, s.Members, s.Cores, s.MemoryBytes, s.To.Sub(s.From)))
	}
	return lines
}

func TestAMemberIsSavedAndGoesOnWithoutEverBeingTwo(t *testing.T) {
	t.Parallel()
	c := running()
	c.Record.Phase = api.ClusterSaving
	change := apply(t, c, time.Hour, lifecycle.Shelve{IDs: []string{"u1.c-1.1"}})
	if diff := cmp.Diff([]string{"allocated on n1: 1 members, 2 cores, 1000 bytes for 1h0m0s"}, spansOf(change)); diff != "" {
		t.Errorf("use that ends with a save (-want +got):\n%s", diff)
	}
	c = saved(t)
	next := successor(c, "u1.c-1.1")
	change = apply(t, c, 2*time.Hour, lifecycle.Hold{Assignments: []api.Assignment{next}})
	if len(spansOf(change)) > 0 {
		t.Errorf("a place to go on ends the use %q", spansOf(change))
	}
	c = then(c, change)
	change = apply(t, c, 3*time.Hour, lifecycle.TakeOver{IDs: []string{next.ID}})
	if diff := cmp.Diff([]string{
		"allocated on n1: 1 members, 0 cores, 0 bytes for 2h0m0s", "allocated on n1: 0 members, 2 cores, 1000 bytes for 1h0m0s",
	}, spansOf(change)); diff != "" {
		t.Errorf("use that ends when it takes over (-want +got):\n%s", diff)
	}
	members := 0
	for _, a := range then(c, change).Assignments() {
		switch {
		case a.ID == next.ID && (a.Rank != 1 || a.IsPart() || a.From != "u1.c-1.1" || !a.TakenAt.Equal(t0.Add(3*time.Hour))):
			t.Errorf("who took over is %+v", a.Assignment)
		case a.ID == "u1.c-1.1" && !a.Releasing:
			t.Error("who was succeeded is still held")
		case !a.Releasing && a.Member == "c-1" && a.IsMember():
			members++
		}
	}
	if members != 1 {
		t.Errorf("there are %d members called c-1", members)
	}
}

func TestASuccessorThatIsWithdrawnLeavesTheMemberSaved(t *testing.T) {
	t.Parallel()
	c := saved(t)
	next := successor(c, "u1.c-1.1")
	c = then(c, apply(t, c, 2*time.Hour, lifecycle.Hold{Assignments: []api.Assignment{next}}))
	c = then(c, apply(t, c, 3*time.Hour, lifecycle.Withdraw{IDs: []string{next.ID}}))
	for _, a := range c.Assignments() {
		if a.ID == "u1.c-1.1" && (a.Releasing || !a.Saved) || a.ID == next.ID && !a.Releasing {
			t.Errorf("%s: releasing %t, saved %t", a.ID, a.Releasing, a.Saved)
		}
	}
	if diff := cmp.Diff([]string{"allocated on n1: 1 members, 0 cores, 0 bytes for 3h0m0s"},
		spansOf(apply(t, c, 4*time.Hour, lifecycle.Release{IDs: []string{"u1.c-1.1"}, Lost: true, Reason: "gone"}))); diff != "" {
		t.Errorf("use that ends when the member is lost after that (-want +got):\n%s", diff)
	}
	again := successor(c, "u1.c-1.1")
	if _, err := Apply(c, []lifecycle.ClusterOperation{lifecycle.Hold{Assignments: []api.Assignment{again}}}, t0.Add(4*time.Hour)); err == nil ||
		!strings.Contains(err.Error(), "which is not clean") {
		t.Errorf("a second successor beside one that is not clean: %v", err)
	}
	c = then(c, apply(t, c, 4*time.Hour, lifecycle.ConfirmClean{IDs: []string{next.ID}}))
	apply(t, c, 5*time.Hour, lifecycle.Hold{Assignments: []api.Assignment{successor(c, "u1.c-1.1")}})
}

func TestAMemberThatIsReleasedTakesItsSuccessorAlong(t *testing.T) {
	t.Parallel()
	c := saved(t)
	next := successor(c, "u1.c-1.1")
	c = then(c, apply(t, c, 2*time.Hour, lifecycle.Hold{Assignments: []api.Assignment{next}}))
	for _, ops := range [][]lifecycle.ClusterOperation{
		{lifecycle.Release{IDs: []string{"u1.c-1.1"}, Lost: true, Reason: "gone"}},
		{lifecycle.Withdraw{IDs: []string{next.ID}}, lifecycle.Release{IDs: []string{"u1.c-1.1"}, Lost: true, Reason: "gone"}},
	} {
		change := apply(t, c, 3*time.Hour, ops...)
		for _, a := range then(c, change).Assignments() {
			if a.Member == "c-1" && !a.Releasing {
				t.Errorf("%s is held", a.ID)
			}
		}
		if diff := cmp.Diff([]string{
			"allocated on n1: 1 members, 0 cores, 0 bytes for 2h0m0s", "allocated on n1: 0 members, 2 cores, 1000 bytes for 1h0m0s",
		}, spansOf(change)); diff != "" {
			t.Errorf("%T: use that ends (-want +got):\n%s", ops[0], diff)
		}
	}
}

func TestWhatCantSucceedAMemberIsRefused(t *testing.T) {
	t.Parallel()
	c := saved(t)
	tests := []struct {
		name   string
		change func(*api.Assignment)
		want   string
	}{
		{"another member", func(a *api.Assignment) { a.Member = "c-0" }, "is not the same member"},
		{"another image", func(a *api.Assignment) { a.EnvironmentDigest = "other" }, "is not the same member"},
		{"another address", func(a *api.Assignment) { a.Ports = nil }, "is not the same member"},
		{"another security group", func(a *api.Assignment) {
			a.Ports = slices.Clone(a.Ports)
			a.Ports[0].SecurityGroups = []string{"other"}
		}, "is not the same member"},
		{"another rate", func(a *api.Assignment) {
			a.Ports = slices.Clone(a.Ports)
			a.Ports[0].MaxRate = 1e9
		}, "is not the same member"},
		{"who runs at once", func(a *api.Assignment) { a.Of = "" }, "nothing takes over before it runs"},
		{"one with a rank", func(a *api.Assignment) { a.Rank = 1 }, "has a rank"},
		{"nobody", func(a *api.Assignment) { a.From, a.Of = "u1.c-7.1", "u1.c-7.1" }, "does not belong to the cluster"},
		{"who is released", func(a *api.Assignment) { a.From, a.Of = "u1.c-9.1", "u1.c-9.1" }, "was already released"},
	}
	for _, tt := range tests {
		a := successor(c, "u1.c-1.1")
		tt.change(&a)
		_, err := Apply(c, []lifecycle.ClusterOperation{lifecycle.Hold{Assignments: []api.Assignment{a}}}, t0.Add(2*time.Hour))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	first := successor(c, "u1.c-1.1")
	second := first
	second.ID += "x"
	if _, err := Apply(c, []lifecycle.ClusterOperation{lifecycle.Hold{Assignments: []api.Assignment{first, second}}}, t0.Add(2*time.Hour)); err == nil ||
		!strings.Contains(err.Error(), "which another one is to succeed already") {
		t.Errorf("two successors of one member: %v", err)
	}
	for name, op := range map[string]lifecycle.ClusterOperation{
		"a member that is saved already": lifecycle.Shelve{IDs: []string{"u1.c-1.1"}}, "a spare": lifecycle.Shelve{IDs: []string{spare(2).ID}},
		"who succeeds nobody": lifecycle.TakeOver{IDs: []string{"u1.c-0.1"}},
		"a member":            lifecycle.Withdraw{IDs: []string{"u1.c-0.1"}},
	} {
		if _, err := Apply(c, []lifecycle.ClusterOperation{op}, t0.Add(2*time.Hour)); err == nil {
			t.Errorf("%T of %s is not refused", op, name)
		}
	}
}

func TestALostMemberIsNotedAsSavedIfItWas(t *testing.T) {
	t.Parallel()
	c := saved(t)
	lost := then(c, apply(t, c, 2*time.Hour, lifecycle.Release{IDs: []string{"u1.c-0.1", "u1.c-1.1"}, Lost: true, Reason: "its disk is gone"})).Record.Lost
	if len(lost) != 2 || lost[0].Saved || !lost[1].Saved {
		t.Errorf("got %+v, want c-1 alone noted as saved", lost)
	}
}

// onFunctions lets c-1 have a virtual function on a VLAN, one on InfiniBand, and a whole port there.
func onFunctions(c Cluster) {
	m := &c.Chunks[0].Assignments[1]
	m.CleanBy = append(m.CleanBy, api.Prover{By: api.ExecutorFabric, At: "ib0"})
	for _, p := range []api.PortClaim{
		{Network: "wire", Kind: api.PortVF, Device: "nic0", Part: "vf3"},
		{Network: "ib", Kind: api.PortVF, Device: "hca0", Part: "vf0", GUID: "own", At: "own", Fabric: "ib0"},
		{Network: "whole", Kind: api.PortPF, Device: "hca1", GUID: "adapters", At: "adapters", Fabric: "ib0"},
	} {
		p.Address = netip.AddrFrom4([4]byte{10, 9, byte(len(m.Ports)), 2})
		m.Ports = append(m.Ports, p)
		m.Devices = append(m.Devices, api.DeviceClaim{Class: "x", Device: p.Device, Way: string(p.Kind), Part: p.Part, Takes: map[string]int64{"vf": 1}})
	}
}

func TestASavedMemberHoldsNoFunctionAndItsWholePortIsFreeOnceTheFabricProvesIt(t *testing.T) {
	t.Parallel()
	c := running()
	onFunctions(c)
	c.Record.Phase = api.ClusterSaving
	c = then(c, apply(t, c, time.Hour, lifecycle.Shelve{IDs: []string{"u1.c-1.1"}}))
	var member, left *api.Assignment
	for _, a := range c.Assignments() {
		switch {
		case a.ID == "u1.c-1.1":
			member = a.Assignment
		case a.Member == "c-1" && a.Releasing:
			left = a.Assignment
		}
	}
	if len(member.Devices) > 0 || len(member.Ports) != 4 {
		t.Errorf("the saved member holds %+v, with ports %+v", member.Devices, member.Ports)
	}
	for _, p := range member.Ports[1:] {
		own := p.Network == "ib" && p.GUID == "own" && p.At == "own" && p.Fabric == "ib0"
		if p.Device != "" || p.Part != "" || !p.Address.IsValid() || !own && (p.GUID != "" || p.At != "" || p.Fabric != "") {
			t.Errorf("the saved member has port %+v", p)
		}
	}
	if left == nil {
		t.Fatal("nothing is left of the whole port, which its fabric has not proved clean")
	}
	if len(left.Devices) != 1 || left.Devices[0].Device != "hca1" || left.Of != member.ID || left.IsMember() || left.IsSuccessor() ||
		len(left.Ports) != 1 || left.Ports[0].At != "adapters" || left.Ports[0].Address.IsValid() || len(left.CleanBy) != 2 {
		t.Errorf("what is left until the fabric's proof is %+v", left)
	}
	next := successor(c, member.ID) // its address is nobody else's
	next.Ports = slices.Clone(next.Ports)
	c.Record.Phase = api.ClusterRestoring
	c = then(c, apply(t, c, 2*time.Hour, lifecycle.Hold{Assignments: []api.Assignment{next}}))
	change := apply(t, c, 3*time.Hour, lifecycle.ConfirmClean{IDs: []string{left.ID}})
	if !slices.Contains(change.Record.Clean, left.ID) && slices.ContainsFunc(then(c, change).Assignments(), func(a lifecycle.ClusterAssignment) bool { return a.ID == left.ID && !a.Clean }) {
		t.Error("what was left does not end with the proofs")
	}
}
