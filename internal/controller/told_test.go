package controller

import (
	"net/netip"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

func TestASpareIsToldToNobodyAndMakesItsNodeNobodysPeer(t *testing.T) {
	s := newStored(t)
	for i, name := range []string{"n1", "n2"} {
		s.view(s.repo.PutNode(t.Context(), api.NodeRecord{Name: name, Underlay: "198.18.0." + string(rune('1'+i))}))
	}
	view := s.cluster("a", 1, "n1")
	record := cloned(view.Cluster("a").Record)
	record.Generation = 2
	spare := api.Assignment{ID: "ua.a-spare-0.2", ClusterUID: "ua", Cluster: "a", Generation: 2, Group: "a", Member: "a-spare-0", Rank: -1, Node: "n2", Spare: true}
	view = s.view(s.leader.Commit(t.Context(), view.Cluster("a"), state.Write{Record: record, Add: []state.Batch{{Assignments: []api.Assignment{spare}}}}))
	changed, failed := newDesired().update(1, someday, view)
	if len(failed) > 0 {
		t.Fatal(failed)
	}
	if d, told := changed["n2"]; told {
		t.Errorf("n2, which holds room for a spare, is told %+v; want nothing", d)
	}
	if d := whole(changed["n1"]); len(d.Members) != 1 || len(d.Networks) != 1 || len(d.Networks[0].Remotes) != 0 {
		t.Errorf("n1 is told %+v; want its member, and no peer", d)
	}
}

func TestANodeWithNothingButAPartIsNobodysPeer(t *testing.T) {
	s := newStored(t)
	view := s.cluster("a", 1, "n1")
	record := cloned(view.Cluster("a").Record)
	record.Generation = 2
	part := api.Assignment{ID: "ua.a-0.1-d0", Of: "ua.a-0.1", ClusterUID: "ua", Cluster: "a", Generation: 2, Group: "a", Member: "a-0", Rank: -1, Node: "n2"}
	view = s.view(s.leader.Commit(t.Context(), view.Cluster("a"), state.Write{Record: record, Add: []state.Batch{{Assignments: []api.Assignment{part}}}}))
	if w := whereaboutsOf(view.Cluster("a")); !w.nodes["n2"] || w.peers["n2"] || !w.peers["n1"] {
		t.Errorf("its nodes are %v and its peers %v; want both nodes, and the member's for a peer", w.nodes, w.peers)
	}
}

func TestAMemberThatIsLetGoLeavesTheHomeToTheOthers(t *testing.T) {
	s := newStored(t)
	c := s.cluster("a", 1, "n1").Cluster("a")
	record := cloned(c.Record)
	record.Phase, record.Chunks[0].Releasing = api.ClusterReady, true
	changed, _ := newDesired().update(1, someday, s.view(s.leader.Commit(t.Context(), c, state.Write{Record: record})))
	if m := changed["n1"].Members; len(m) != 1 || !m[0].Release || m[0].ReleaseHome {
		t.Errorf("members of n1: got %+v, want one to be released without its cluster's home", m)
	}
}

func TestAMemberThatIsLetGoIsNotReachedThoughItsNodeStaysAPeer(t *testing.T) {
	s := newStored(t)
	for _, name := range []string{"n1", "n2"} {
		s.view(s.repo.PutNode(t.Context(), api.NodeRecord{Name: name, Underlay: "198.18.0." + name[1:]}))
	}
	c := s.cluster("a", 1, "n1", "n2").Cluster("a")
	record := cloned(c.Record)
	record.Generation = 2
	beside := api.Assignment{
		ID: "ua.a-2.2", ClusterUID: "ua", Cluster: "a", Generation: 2, Group: "a", Member: "a-2", Rank: 2, Node: "n2", Stack: api.StackContainer, Environment: "local",
		Slots: []int{9}, CPUs: []int{0}, NUMANodes: []int{0},
		Ports: []api.PortClaim{{Network: "ua", Kind: api.PortVeth, Address: netip.MustParseAddr("10.64.16.9"), MAC: "02:6e:00:01:00:09"}},
	}
	view := s.view(s.leader.Commit(t.Context(), c, state.Write{Record: record, Add: []state.Batch{{Assignments: []api.Assignment{beside}}}}))
	d := newDesired()
	reached := func(view *state.View) int {
		changed, failed := d.update(1, someday, view)
		if len(failed) > 0 {
			t.Fatal(failed)
		}
		if here := whole(changed["n2"]).Networks[0].Ports; len(here) != 2 {
			t.Errorf("n2 has ports %+v, want those of both members, until they are stopped", here)
		}
		return len(whole(changed["n1"]).Networks[0].Remotes)
	}
	if n := reached(view); n != 2 {
		t.Errorf("n1 reaches %d members on n2, want 2", n)
	}
	record = cloned(view.Cluster("a").Record)
	record.Phase, record.Chunks[1].Releasing = api.ClusterReady, true
	if n := reached(s.view(s.leader.Commit(t.Context(), view.Cluster("a"), state.Write{Record: record}))); n != 1 {
		t.Errorf("n1 reaches %d members on n2 after one was let go, want 1", n)
	}
}

func TestMembersAreToldToStandStillWhileTheirClusterIsFrozen(t *testing.T) {
	s := newStored(t)
	d := newDesired()
	d.update(1, someday, s.cluster("a", 1, "n1"))
	for _, tc := range []struct {
		phase  api.ClusterPhase
		paused bool
	}{
		{api.ClusterPausing, true},
		{api.ClusterPaused, true},
		{api.ClusterResuming, false},
		{api.ClusterReady, false},
	} {
		view := s.turn("a", tc.phase)
		d.update(1, someday, view)
		if m := d.assemble("n1", 1, view.Revision).Members; len(m) != 1 || m[0].Paused != tc.paused {
			t.Errorf("%s: got %+v, want one member, paused %t", tc.phase, m, tc.paused)
		}
	}
}

func TestAJobIsToldToTheMemberThatIsStoredWithItAndToNobodyElse(t *testing.T) {
	s := newStored(t)
	s.cluster("a", 1, "n1", "n2")
	for id, member := range map[string]string{"j0": "", "j1": "ua.a-1.1"} {
		s.view(s.repo.CreateJob(t.Context(), api.Job{ID: id, Cluster: "a", ClusterUID: "ua", Phase: api.JobPending, MemberID: member}))
	}
	view := s.cache.View()
	d := newDesired()
	d.update(1, someday, view)
	if jobs := d.assemble("n1", 1, view.Revision).Jobs; len(jobs) != 0 {
		t.Errorf("the node of rank 0 is told of %+v, want nothing: no job is stored as its member's", jobs)
	}
	if jobs := d.assemble("n2", 1, view.Revision).Jobs; len(jobs) != 1 || jobs[0].ID != "j1" || jobs[0].MemberID != "ua.a-1.1" || jobs[0].CancelRequested {
		t.Errorf("the node of rank 1 is told of %+v, want j1", jobs)
	}
	_, revision, err := s.repo.UpdateJob(t.Context(), "j1", func(j *api.Job) error {
		j.Requeueing = true
		return nil
	})
	view = s.view(revision, err)
	d.update(1, someday, view)
	if jobs := d.assemble("n2", 1, view.Revision).Jobs; len(jobs) != 1 || !jobs[0].CancelRequested {
		t.Errorf("of a job that is to run again n2 is told %+v, want it to be ended", jobs)
	}
}
