package state_test

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

func TestANodeIsOneInPartsAndGoneWithTheLast(t *testing.T) {
	w := newWorld(t, openMemory(t))
	ctx := t.Context()
	parts := func() (machine, agent, control bool) {
		n := w.cache.View().Node("n1")
		return n != nil && n.Machine != nil, n != nil && n.Agent != nil, n != nil && n.Control != nil
	}
	expect := func(what string, machine, agent, control bool) {
		t.Helper()
		if m, a, c := parts(); m != machine || a != agent || c != control {
			t.Errorf("%s: machine %t, agent %t, control %t", what, m, a, c)
		}
		if n := w.cache.View().Node("n1"); (n != nil) != (machine || agent || control) {
			t.Errorf("%s: the node is %+v", what, n)
		}
	}
	expect("nothing is stored", false, false, false)
	w.reach(w.repo.CreateMachine(ctx, machine("n1", mac1)))
	expect("enrolled", true, false, false)
	_, early, err := w.repo.SetDrain(ctx, "n1", "", "", now)
	w.reach(early, err)
	expect("drained before its agent called", true, false, true)
	w.reach(w.repo.Undrain(ctx, "n1"))
	w.reach(w.repo.PutNode(ctx, api.NodeRecord{Name: "n1", AgentVersion: "1"}))
	expect("its agent called", true, true, false)
	_, revision, err := w.repo.SetDrain(ctx, "n1", "", "", now)
	w.reach(revision, err)
	expect("drained", true, true, true)
	before := w.cache.View().Node("n1")
	w.reach(w.leader.CommitMachine(ctx, w.machine("n1"), state.MachineWrite{Record: record("n1", 0, api.MachineOff)}))
	after := w.cache.View().Node("n1")
	if after.Agent != before.Agent || after.Control != before.Control || after.Machine == before.Machine {
		t.Error("a decision about the machine is to replace that part, and no other")
	}
	if len(w.cache.View().Nodes) != 1 {
		t.Errorf("%d nodes are listed, want one", len(w.cache.View().Nodes))
	}
	w.reach(w.repo.Undrain(ctx, "n1"))
	expect("undrained", true, true, false)
	w.reach(w.leader.ForgetMachine(ctx, w.machine("n1")))
	expect("forgotten", false, false, false)
}

func TestOffersChangeWithAgentsHardwareAndDrainsButNotWithABoot(t *testing.T) {
	w := newWorld(t, openMemory(t))
	ctx := t.Context()
	offers := w.cache.View().Offers
	step := func(what string, changes bool) {
		t.Helper()
		if now := w.cache.View().Offers; (now != offers) != changes {
			t.Errorf("%s: the offers changed is %t, want %t", what, now != offers, changes)
		}
		offers = w.cache.View().Offers
	}
	w.reach(w.repo.CreateMachine(ctx, machine("n1", mac1)))
	step("a machine is enrolled", true)
	w.reach(w.leader.CommitMachine(ctx, w.machine("n1"), state.MachineWrite{Record: record("n1", 0, api.MachineBooting)}))
	step("it boots", false)
	w.reach(w.leader.CommitMachine(ctx, w.machine("n1"), state.MachineWrite{Record: record("n1", 0, api.MachineOff), Hardware: &api.Hardware{Serial: "S"}}))
	step("it is inspected", true)
	w.reach(w.repo.PutNode(ctx, api.NodeRecord{Name: "n1"}))
	step("its agent calls", true)
	_, revision, err := w.repo.SetDrain(ctx, "n1", "", "", now)
	w.reach(revision, err)
	step("it is drained", true)
	w.reach(w.repo.Undrain(ctx, "n1"))
	step("it is undrained", true)
	w.reach(w.leader.ForgetMachine(ctx, w.machine("n1")))
	step("it is forgotten", true)
}
