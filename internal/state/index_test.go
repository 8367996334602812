package state_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// found is what each index finds in a view under every key that the test knows.
func found(v *state.View) []string {
	var lines []string
	machine := func(by string, m *state.Machine) {
		if m != nil {
			lines = append(lines, by+" is machine "+m.Name())
		}
	}
	for _, mac := range []string{mac1, mac2, "52:54:00:00:00:03"} {
		machine(mac, v.MachineByMAC(mac))
	}
	for _, name := range []string{"n1", "n2", "n3"} {
		machine("uid-"+name, v.MachineByUID("uid-"+name))
	}
	for _, address := range []string{"10.0.0.1", "10.0.0.2"} {
		machine("BMC "+address, v.MachineByBMC(api.PowerControl{Kind: api.PowerIPMI, Address: address}))
	}
	for _, uid := range []string{"uid-c1", "uid-c2", ""} {
		if c := v.ClusterByUID(uid); c != nil {
			lines = append(lines, uid+" is cluster "+c.Name())
		}
	}
	for n := range 4 {
		node := fmt.Sprintf("node-%d", n)
		for _, id := range v.OnNode(node) {
			lines = append(lines, id+" is on "+node)
		}
	}
	return lines
}

// walked is what is found in a view that no cache made: all values are looked at.
func walked(v *state.View) []string {
	return found(&state.View{Clusters: v.Clusters, Nodes: v.Nodes})
}

func TestIndexesFindWhatAWalkFinds(t *testing.T) {
	w := newWorld(t, openMemory(t))
	ctx := t.Context()
	var views []*state.View
	var then [][]string
	// step is one change; have must be found after it, lack no longer.
	step := func(what string, have, lack []string) {
		t.Helper()
		v := w.cache.View()
		got := found(v)
		if want := walked(v); !slices.Equal(got, want) {
			t.Errorf("%s: the indexes find\n %q, a walk\n %q", what, got, want)
		}
		for _, line := range have {
			if !slices.Contains(got, line) {
				t.Errorf("%s: %q is not found, only %q", what, line, got)
			}
		}
		for _, line := range lack {
			if slices.Contains(got, line) {
				t.Errorf("%s: %q is still found", what, line)
			}
		}
		views, then = append(views, v), append(then, got)
	}
	step("a cluster without members", []string{"uid-c1 is cluster c1"}, nil)
	as := w.first(3)
	step("members", []string{as[0].ID + " is on node-0", as[2].ID + " is on node-2"}, nil)
	w.reach(w.repo.CreateCluster(ctx, intent("c2")))
	other := assignments("c2", 2, 1)
	w.reach(w.leader.Commit(ctx, w.cache.Cluster("c2"), state.Write{
		Record: api.ClusterRecord{Name: "c2", UID: "uid-c2", Generation: 1, Phase: api.ClusterReady}, Add: []state.Batch{{Assignments: other}},
	}))
	step("two clusters on a node", []string{as[0].ID + " is on node-0", other[0].ID + " is on node-0"}, nil)
	moved := slices.Clone(as[:1])
	moved[0].Node = "node-3"
	w.reach(w.leader.Commit(ctx, w.c1(), state.Write{Record: w.generation(2, api.ClusterReady), Add: []state.Batch{{Assignments: moved}}}))
	step("members that moved", []string{as[0].ID + " is on node-3", other[0].ID + " is on node-0"}, []string{as[0].ID + " is on node-0"})

	candidate := api.Hardware{Architecture: "x86_64"}
	w.reach(w.repo.UpsertCandidate(ctx, mac2, func(c *api.Candidate) { c.Hardware, c.LastSeenAt = &candidate, now }))
	in := machine("n1", mac2, mac1)
	in.Spec.Power = api.PowerControl{Kind: api.PowerIPMI, Address: "10.0.0.1"}
	w.reach(w.repo.CreateMachine(ctx, in))
	step("a machine with its hardware", []string{mac1 + " is machine n1", mac2 + " is machine n1", "uid-n1 is machine n1", "BMC 10.0.0.1 is machine n1"}, nil)
	_, rev, err := w.repo.UpdateMachineIntent(ctx, "n1", "uid-n1", func(in *api.MachineIntent) error { in.Spec.Power.Address = "10.0.0.2"; return nil })
	w.reach(rev, err)
	step("a BMC that moved", []string{"BMC 10.0.0.2 is machine n1"}, []string{"BMC 10.0.0.1 is machine n1"})
	w.reach(w.leader.ForgetMachine(ctx, w.machine("n1")))
	step("a machine that went", nil, []string{mac1 + " is machine n1", "uid-n1 is machine n1", "BMC 10.0.0.2 is machine n1"})

	released := now.Add(time.Minute)
	gone := api.ClusterRecord{Name: "c2", UID: "uid-c2", Generation: 2, Phase: api.ClusterDeleting, Clean: idsOf(other)}
	w.reach(w.leader.Commit(ctx, w.cache.Cluster("c2"), state.Write{Record: gone, Add: []state.Batch{{Assignments: other, Releasing: true, ReleasedAt: &released}}}))
	step("members confirmed clean", nil, []string{other[0].ID + " is on node-0"})
	w.reach(w.leader.Commit(ctx, w.cache.Cluster("c2"), state.Write{Forget: true}))
	step("a cluster that went", []string{"uid-c1 is cluster c1"}, []string{"uid-c2 is cluster c2"})
	for i, v := range views {
		if got := found(v); !slices.Equal(got, then[i]) {
			t.Errorf("view %d finds\n %q, and before later changes\n %q", i, got, then[i])
		}
	}
}
