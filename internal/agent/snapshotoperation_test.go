package agent

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
)

func TestTheStateOfAMemberThatIsNotPausedIsNotWritten(t *testing.T) {
	a, of, _ := planned(t)
	want := *of.want
	want.Assignment.ID, want.Assignment.Snapshot = "u1.a.snapshot.2", &api.SnapshotClaim{Name: "s", Of: of.id}
	m := &memberState{id: want.Assignment.ID, state: driver.StateAbsent, want: &want, driver: fake.NewVM(fake.NewHost(), nil)}
	a.members[m.id] = m
	a.takeSnapshot(t.Context(), m)
	if m.busy || of.busy || !strings.Contains(m.attempts.LastError, "running, not paused") {
		t.Errorf("the state is written: %t, its member is held: %t, the failure is %q", m.busy, of.busy, m.attempts.LastError)
	}
	of.state, of.busy = driver.StatePaused, true
	before := m.attempts.Count
	a.takeSnapshot(t.Context(), m)
	if m.busy || m.attempts.Count != before {
		t.Error("the state of a member that is being worked on is not waited for")
	}
}
