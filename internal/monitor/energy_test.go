package monitor

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestEnergyIsTakenFromTheNodesOwnStreamAloneAndForgottenWithIt(t *testing.T) {
	m, _ := clocked(t)
	s := connected(t, m, "first")
	good := &api.EnergySample{Run: "r", ElapsedNanoseconds: 5, CPUs: 2}
	m.takeEnergy("n1", &stream{}, good) // another's stream
	if got, _ := m.EnergySample("n1"); got != nil {
		t.Error("a stream that is not the node's was believed")
	}
	m.takeEnergy("n1", s, &api.EnergySample{Run: "r", CPUs: -1})
	if got, _ := m.EnergySample("n1"); got != nil {
		t.Error("a sample that nothing can have read was taken")
	}
	m.takeEnergy("n1", s, good)
	if got, at := m.EnergySample("n1"); got != good || at.IsZero() {
		t.Errorf("got %+v at %s", got, at)
	}
	if got, _ := m.EnergySample("n2"); got != nil {
		t.Errorf("of another node: %+v", got)
	}
	m.disconnect("n1", s)
	if got, _ := m.EnergySample("n1"); got != nil {
		t.Error("the sample of an agent that is not connected is still shown")
	}
}

func TestAMachineThatAMemberHasWholeIsNotBelievedAboutItsEnergy(t *testing.T) {
	m, _ := clocked(t)
	m.cfg.IsMember = func(node string) bool { return node == "n1" }
	s := connected(t, m, "first")
	m.takeEnergy("n1", s, &api.EnergySample{Run: "r", ElapsedNanoseconds: 5, CPUs: 2})
	if got, _ := m.EnergySample("n1"); got != nil {
		t.Error("its users could report any energy")
	}
}
