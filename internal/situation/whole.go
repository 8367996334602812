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
	if m == nil || m.Record == nil || m.Intent.RemoveRequestedAt != nil && m.Record.Phase != api.MachineReady {
		return lifecycle.Observation{}, false
	}
	o, told := lifecycle.MemberOnMachine(m.Record, a.ID)
	if told {
		now := s.standing[a.Node]
		s.Nodes[a.Node] = lifecycle.NodeState{Phase: api.NodeReady, Reported: true, Drained: now.drained, DrainedAt: now.drainedAt}
	}
	return o, told
}
