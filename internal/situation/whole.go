package situation

import (
	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
)

// cleanMachine reports whether a machine, nil when it was removed, holds nothing of an assignment: it was never booted for the assignment, or cleaned since.
func cleanMachine(m *state.Machine, assignment string) bool {
	return m == nil || m.Record == nil || m.Record.Tenant == nil || m.Record.Tenant.Assignment != assignment
}

// onMachine is what a machine's record tells of the member that has all of it, and whether it tells more than the machine's agent does: until that is
// there, and once the machine is gone. A machine that is being booted is a node that is well, whatever was heard of it before.
func (s *Site) onMachine(a *api.Assignment) (lifecycle.Observation, bool) {
	if !a.ByProvisioner() {
		return lifecycle.Observation{}, false
	}
	m := s.View.Machine(a.Node)
	if m == nil || m.Record == nil {
		return lifecycle.Observation{}, false
	}
	waits := !m.Intent.RemoveForce && lifecycle.HeldInPause(m.Record, a.ID) // its removal does
	if m.Intent.RemoveRequestedAt != nil && m.Record.Phase != api.MachineReady && !waits {
		return lifecycle.Observation{}, false
	}
	o, told := lifecycle.MemberOnMachine(m.Record, a.ID)
	if told {
		now := s.standing[a.Node]
		s.Nodes[a.Node] = lifecycle.NodeState{Phase: api.NodeReady, Reported: true, Drained: now.drained, DrainedAt: now.drainedAt}
	}
	return o, told
}

// returning reports whether a machine that nobody is to have now is off or warm, and clean, after what is done with it, unless something fails: it is
// stopped, cleaned or inspected, or rests and is about to be. One that its operators hold, remove, or asked to boot something does not come back by itself, nor
// one that is off for a paused cluster.
func returning(m *state.Machine) bool {
	r, pending := m.Record, m.PowerPending()
	if r == nil || r.Quarantine != nil || m.Intent.RemoveRequestedAt != nil || m.Intent.Hold.Number > r.DoneHold || pending != nil && pending.Action != api.PowerActionOff ||
		r.Tenant != nil && r.Tenant.Paused {
		return false
	}
	switch r.Phase {
	case api.MachineCleaning, api.MachineStopping, api.MachineInspecting:
		return true
	default:
		return Rests(m)
	}
}

// Rests reports whether a machine without an agent may be given away now, or will be after what is done with it.
func (s *Site) Rests(node string) bool {
	now := s.standing[node]
	return (now.asleep || now.returning) && !now.drained
}
