package decision_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// resting is a machine that was inspected, and is off.
func resting(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t)
	m.inspect()
	m.report()
	m.carryOut()
	m.after(time.Minute)
	m.settle()
	m.carryOut()
	m.want(api.MachineOff)
	return m
}

func TestAMachineThatHasBeenOffForLongProvesThatItStillBoots(t *testing.T) {
	m := resting(t)
	m.in.MayVerify = true
	verified := *m.record.LastVerifiedAt
	m.after(m.in.Deadlines.Verify - time.Hour)
	m.settle()
	m.want(api.MachineOff)
	m.after(2 * time.Hour)
	m.in.MayVerify = false // another one is at it
	m.settle()
	m.want(api.MachineOff)
	m.in.MayVerify = true
	m.settle()
	m.want(api.MachineInspecting)
	m.wantOrder(lifecycle.OrderWake)
	if !slices.Contains(m.events, lifecycle.EventMachineVerifying) {
		t.Errorf("no event says why: %v", m.events)
	}
	m.report()
	m.want(api.MachineStopping)
	m.after(time.Minute)
	m.settle()
	m.carryOut()
	m.want(api.MachineOff)
	if !m.record.LastVerifiedAt.After(verified) {
		t.Errorf("it was verified at %s, before it was woken", m.record.LastVerifiedAt)
	}
	m.after(time.Hour)
	m.settle()
	m.want(api.MachineOff)
}

func TestAMachineThatNoLongerBootsIsGivenToNobody(t *testing.T) {
	m := resting(t)
	m.in.MayVerify = true
	m.after(m.in.Deadlines.Verify)
	m.settle()
	for range m.in.Deadlines.Attempts {
		m.want(api.MachineInspecting)
		m.carryOut()
		m.after(m.in.Deadlines.Boot)
		m.settle()
	}
	m.want(api.MachineFailed)
}

func TestAMachineThatSomebodyHasOrThatIsKeptBackIsNotWoken(t *testing.T) {
	for name, change := range map[string]func(*machine){
		"in quarantine":  func(m *machine) { m.hold(api.HoldQuarantine, "its fan is loud") },
		"never":          func(m *machine) { m.in.Deadlines.Verify = 0 },
		"of a member":    func(m *machine) { m.record.Tenant = &api.MachineTenant{Assignment: "a"}; delete(m.digests, "inspect") },
		"off by a guess": func(m *machine) { m.record.Power, m.in.Power.State = api.PowerUnknown, api.PowerUnknown },
	} {
		m := resting(t)
		m.in.MayVerify = true
		change(m)
		m.after(10 * 7 * 24 * time.Hour)
		m.settle()
		if m.record.Phase != api.MachineOff {
			t.Errorf("%s: it is %s: %s", name, m.record.Phase, m.record.Message)
		}
	}
}
