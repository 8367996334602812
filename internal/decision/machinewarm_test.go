package decision_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// waiting is a machine that was inspected, and waits in its boot agent.
func waiting(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t)
	m.in.Deadlines.IdleOff = time.Hour
	m.inspect()
	m.carryOut()
	m.report()
	m.want(api.MachineWarm)
	m.asks()
	return m
}

// asks lets the boot agent ask once more.
func (m *machine) asks() {
	m.in.Boot.Generation, m.in.Boot.LastHeard = m.record.Boot.Generation, m.in.Now
	m.settle()
}

func TestAMachineThatNobodyHasStaysOnForAWhile(t *testing.T) {
	m := waiting(t)
	m.wantOrder(lifecycle.OrderLeave)
	if lifecycle.MayBoot(m.record) {
		t.Error("its firmware is given something to boot")
	}
	m.after(m.in.Deadlines.IdleOff - time.Minute)
	m.asks()
	m.want(api.MachineWarm)
	m.after(time.Minute)
	m.asks()
	m.want(api.MachineStopping)
	m.wantOrder(lifecycle.OrderLeave) // its boot agent powers it off
	m.after(m.in.Deadlines.Soft)
	m.settle()
	m.carryOut()
	m.want(api.MachineOff)
}

func TestSomeMachinesStayOnForGood(t *testing.T) {
	for name, tc := range map[string]struct {
		others int
		want   api.MachinePhase
	}{
		"it is the only one":     {0, api.MachineWarm},
		"enough others are warm": {1, api.MachineStopping},
	} {
		m := waiting(t)
		m.in.Deadlines.Warm, m.in.WarmOthers = 1, tc.others
		m.after(m.in.Deadlines.IdleOff)
		m.asks()
		if m.record.Phase != tc.want {
			t.Errorf("%s: it is %s, want %s", name, m.record.Phase, tc.want)
		}
	}
}

func TestAMachineThatWaitsBootsForItsMemberFromItsBootAgent(t *testing.T) {
	m := waiting(t)
	m.in.Tenant = &lifecycle.TenantSeen{Assignment: "a.1", Cluster: "c1", Environment: "debian-mpi", Digest: "sha256:placed"}
	m.settle()
	m.want(api.MachineBooting)
	m.wantTenant("a.1")
	if b := m.record.Boot; !b.Warm || b.Purpose != api.BootMember || !lifecycle.Reached(b, api.StagePower) {
		t.Errorf("it boots %+v, and its power would be cycled", b)
	}
	// A boot agent that can't do it leaves it to the firmware; if nothing comes of that, its power is cycled.
	m.after(m.in.Deadlines.Boot)
	m.settle()
	m.want(api.MachineBooting)
	if m.record.Boot.Warm || lifecycle.Reached(m.record.Boot, api.StagePower) {
		t.Errorf("its second attempt is %+v, which nothing wakes", m.record.Boot)
	}
}

func TestAMachineThatFallsSilentWhileItWaitsGoesOff(t *testing.T) {
	m := waiting(t)
	m.after(29 * time.Second)
	m.settle()
	m.want(api.MachineWarm)
	m.after(time.Second)
	m.settle()
	m.want(api.MachineStopping)
	m.wantOrder(lifecycle.OrderCut)
}

func TestANewLeaderDoesNotTakeAMachineThatWaitsForSilent(t *testing.T) {
	m := waiting(t)
	m.after(10 * time.Minute)
	m.in.Boot, m.in.LeaderSince = lifecycle.BootSeen{}, m.in.Now
	m.settle()
	m.want(api.MachineWarm)
}

func TestWhatIsAskedOfAMachineThatWaits(t *testing.T) {
	for name, tc := range map[string]struct {
		ask  func(*machine)
		want api.MachinePhase
		warm bool
	}{
		"to be a node":        {func(m *machine) { m.request(api.PowerActionOn, "debian-mpi", false) }, api.MachineBooting, true},
		"to go off":           {func(m *machine) { m.request(api.PowerActionOff, "", false) }, api.MachineStopping, false},
		"to be inspected":     {func(m *machine) { m.inspect() }, api.MachineStopping, false},
		"to be in quarantine": {func(m *machine) { m.hold(api.HoldQuarantine, "its fan is loud") }, api.MachineStopping, false},
		"to be drained":       {func(m *machine) { m.in.Drained = true; m.settle() }, api.MachineStopping, false},
		"to be removed":       {func(m *machine) { at := m.in.Now; m.intent.RemoveRequestedAt = &at; m.settle() }, api.MachineRemoving, false},
	} {
		m := waiting(t)
		m.in.Deadlines.Warm = 1
		tc.ask(m)
		if m.record.Phase != tc.want || tc.warm != m.record.Boot.Warm {
			t.Errorf("%s: it is %s (%s) and booted %+v, want %s", name, m.record.Phase, m.record.Message, m.record.Boot, tc.want)
		}
	}
}

func TestAMachineIsWokenWhileTooFewWait(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*machine)
		woken  bool
	}{
		"too few wait":                      {func(*machine) {}, true},
		"enough wait":                       {func(m *machine) { m.in.WarmOthers = 1 }, false},
		"another one will":                  {func(m *machine) { m.in.WarmSoon = 1 }, false},
		"it is drained":                     {func(m *machine) { m.in.Drained = true }, false},
		"in quarantine":                     {func(m *machine) { m.hold(api.HoldQuarantine, "its fan is loud") }, false},
		"an operator has switched it off":   {func(m *machine) { m.request(api.PowerActionOff, "", false) }, false},
		"a member holds it still":           {func(m *machine) { m.in.Tenant = &lifecycle.TenantSeen{Assignment: "a.1", Released: true} }, false},
		"nothing is known of its power":     {func(m *machine) { m.reading(api.PowerUnknown); m.settle() }, false},
		"the site keeps no machine warm":    {func(m *machine) { m.in.Deadlines.Warm = 0 }, false},
		"there is nothing to inspect it by": {func(m *machine) { delete(m.digests, lifecycle.InspectEnvironment) }, false},
		"somebody had it since the operator": {func(m *machine) {
			m.request(api.PowerActionOff, "", false)
			m.record.Clean = &api.MachineClean{StartedAt: m.in.Now.Add(time.Second)}
		}, true},
	} {
		m := resting(t)
		tc.change(m)
		if m.in.Deadlines.Warm = 1; name == "the site keeps no machine warm" {
			m.in.Deadlines.Warm = 0
		}
		m.settle()
		if got := m.record.Phase == api.MachineInspecting; got != tc.woken {
			t.Errorf("%s: it is %s", name, m.record.Phase)
		}
	}
}

func TestAMachineThatWasCleanedWaitsAndHasProvedThatItBoots(t *testing.T) {
	m := given(t)
	m.bootUp()
	m.released()
	m.goDark()
	m.want(api.MachineCleaning)
	m.in.Deadlines.Warm = 1
	m.carryOut()
	verified := *m.record.LastVerifiedAt
	m.cleaned(lifecycle.CleanSeen{Done: true, Steps: []api.CleanStep{step(api.CleanDone)}})
	m.want(api.MachineWarm)
	m.wantTenant("")
	if !m.record.LastVerifiedAt.After(verified) {
		t.Errorf("it was verified at %s, before it was cleaned", m.record.LastVerifiedAt)
	}
}

func TestAMachineThatIsOnThoughNobodyAskedGoesOff(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*machine)
		off    bool
	}{
		"nobody has it":               {func(*machine) {}, true},
		"its agent is there":          {func(m *machine) { m.in.Agent.Connected = true }, false},
		"members run on it":           {func(m *machine) { m.in.InUse = "it runs 1 member" }, false},
		"machines may be idle":        {func(m *machine) { m.in.Deadlines.IdleOff = 0 }, false},
		"it can't be switched off":    {func(m *machine) { m.in.Power.ForcesOff = false }, false},
		"it has not been on for long": {func(m *machine) { m.in.Deadlines.IdleOff = 24 * time.Hour }, false},
	} {
		m := resting(t)
		m.in.Deadlines.IdleOff = time.Hour
		m.after(time.Minute)
		m.reading(api.PowerOn)
		m.settle()
		m.want(api.MachineOff)
		tc.change(m)
		m.after(time.Hour)
		m.settle()
		if got := m.record.Phase == api.MachineStopping; got != tc.off {
			t.Errorf("%s: it is %s: %v", name, m.record.Phase, m.told)
		}
	}
}

func TestAMachineThatWaitsSaysSo(t *testing.T) {
	if m := waiting(t); !slices.Contains(m.events, lifecycle.EventMachineWarm) {
		t.Errorf("no event says that it waits: %v", m.events)
	}
}
