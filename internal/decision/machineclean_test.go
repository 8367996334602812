package decision_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// cleanIt asks for a cleaning, and lets its machine go off first if it is on.
func (m *machine) cleanIt(dryRun bool) {
	m.t.Helper()
	m.intent.Clean = api.CleanRequest{Number: m.intent.Clean.Number + 1, DryRun: dryRun, By: "ann"}
	m.settle()
	if m.record.Phase == api.MachineStopping {
		m.goDark()
	}
	m.carryOut()
}

func (m *machine) hold(action api.HoldAction, reason string) {
	m.intent.Hold = api.HoldRequest{Number: m.intent.Hold.Number + 1, Action: action, Reason: reason, By: "ann"}
	m.settle()
}

func step(state api.CleanState) api.CleanStep {
	return api.CleanStep{Kind: api.CleanDisk, Target: "sda", State: state, Message: "input/output error"}
}

// cleaned lets the machine report its cleaning.
func (m *machine) cleaned(seen lifecycle.CleanSeen) {
	m.t.Helper()
	seen.ProgressAt = m.in.Now
	m.in.Boot = lifecycle.BootSeen{Generation: m.record.Boot.Generation, Clean: &seen, LastHeard: m.in.Now}
	m.settle()
}

func TestAMachineIsCleanedAndThatIsProved(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	tenant := m.record.Boot.Generation
	m.cleanIt(false)
	m.want(api.MachineCleaning)
	m.wantOrder(lifecycle.OrderWake)
	if b := m.record.Boot; b.Purpose != api.BootClean || b.Environment != lifecycle.CleanEnvironment || !lifecycle.MayBoot(m.record) || !m.record.Cleaning.WasOff {
		t.Errorf("it boots %+v, cleaning %+v", b, m.record.Cleaning)
	}
	m.cleaned(lifecycle.CleanSeen{Steps: []api.CleanStep{step(api.CleanRunning)}, Bytes: 1, TotalBytes: 10})
	m.want(api.MachineCleaning)
	if c := m.record.Cleaning; c == nil || c.Bytes != 1 || len(c.Steps) != 1 || m.record.Clean != nil {
		t.Errorf("while it goes on: cleaning %+v, clean %+v", c, m.record.Clean)
	}
	m.cleaned(lifecycle.CleanSeen{Done: true, Steps: []api.CleanStep{step(api.CleanDone), step(api.CleanSkipped)}, Bytes: 10, TotalBytes: 10})
	m.want(api.MachineStopping)
	m.goDark()
	m.want(api.MachineOff)
	r := m.record
	if r.Clean == nil || r.Clean.Generation <= tenant || r.Cleaning != nil || r.Quarantine != nil || r.DoneClean != 1 || !slices.Contains(m.events, lifecycle.EventMachineCleaned) {
		t.Errorf("clean %+v after the boot %d, cleaning %+v, events %q", r.Clean, tenant, r.Cleaning, m.events)
	}
}

func TestAMachineThatIsOnGoesOffBeforeItIsCleaned(t *testing.T) {
	m := newMachine(t)
	m.in.Power.State = api.PowerOn
	m.intent.Clean = api.CleanRequest{Number: 1}
	m.settle()
	m.want(api.MachineStopping)
	m.wantOrder(lifecycle.OrderCut)
}

func TestAFailedCleaningQuarantinesTheMachine(t *testing.T) {
	for name, c := range map[string]struct {
		seen  lifecycle.CleanSeen
		words string
	}{
		"a step has failed":                      {lifecycle.CleanSeen{Steps: []api.CleanStep{step(api.CleanDone), step(api.CleanFailed)}}, "input/output error"},
		"a step has not ended":                   {lifecycle.CleanSeen{Steps: []api.CleanStep{step(api.CleanRunning)}}, "running"},
		"a step was only planned":                {lifecycle.CleanSeen{Steps: []api.CleanStep{step(api.CleanPlanned)}}, "planned"},
		"there was no step":                      {lifecycle.CleanSeen{}, "no step"},
		"it was a dry run, though told to do it": {lifecycle.CleanSeen{DryRun: true, Steps: []api.CleanStep{step(api.CleanDone)}}, "only planned"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.cleanIt(false)
			c.seen.Done = true
			m.cleaned(c.seen)
			m.want(api.MachineFailed)
			if r := m.record; r.Quarantine == nil || r.Quarantine.By != "" || !strings.Contains(r.Message, c.words) || r.Clean != nil {
				t.Fatalf("quarantine %+v, message %q, clean %+v", r.Quarantine, r.Message, r.Clean)
			}
			m.request(api.PowerActionOn, "debian-mpi", true)
			m.want(api.MachineFailed)
			if !strings.Contains(m.record.Message, "quarantine") || m.record.DoneRequest != 1 {
				t.Errorf("message %q", m.record.Message)
			}
			m.request(api.PowerActionCycle, "debian-mpi", true)
			m.want(api.MachineFailed)
			// A cleaning that succeeds ends it.
			m.in.Power.State = api.PowerOff
			m.cleanIt(false)
			m.cleaned(lifecycle.CleanSeen{Done: true, Steps: []api.CleanStep{step(api.CleanDone)}})
			if m.record.Quarantine != nil || m.record.Clean == nil {
				t.Errorf("after a success: quarantine %+v, clean %+v", m.record.Quarantine, m.record.Clean)
			}
		})
	}
}

func TestADryRunProvesNothingAndQuarantinesNobody(t *testing.T) {
	for _, state := range []api.CleanState{api.CleanPlanned, api.CleanDone, api.CleanFailed} {
		m := newMachine(t)
		m.cleanIt(true)
		if !m.record.Cleaning.DryRun {
			t.Fatal("the boot is no dry run")
		}
		m.cleaned(lifecycle.CleanSeen{Done: true, Steps: []api.CleanStep{step(state)}})
		m.want(api.MachineStopping)
		if r := m.record; r.Clean != nil || r.Quarantine != nil || r.Cleaning == nil || !r.Cleaning.Done {
			t.Errorf("%s: clean %+v, quarantine %+v, cleaning %+v", state, r.Clean, r.Quarantine, r.Cleaning)
		}
	}
	m := newMachine(t)
	m.cleanIt(true)
	m.after(m.in.Deadlines.Boot)
	m.settle()
	if !m.record.Cleaning.DryRun || m.record.Attempt != 2 {
		t.Errorf("the second attempt: %+v", m.record.Cleaning)
	}
}

// Disks are large: a cleaning may take days, and is given up only when nothing moves.
func TestTheDeadlineOfACleaningMovesWithItsProgress(t *testing.T) {
	m := newMachine(t)
	m.cleanIt(false)
	seen := lifecycle.CleanSeen{Steps: []api.CleanStep{step(api.CleanRunning)}, TotalBytes: 1 << 40}
	for range 200 {
		m.after(m.in.Deadlines.Progress - time.Second)
		seen.Bytes++
		m.cleaned(seen)
		m.want(api.MachineCleaning)
	}
	if m.record.Attempt != 1 {
		t.Fatalf("attempt %d", m.record.Attempt)
	}
	// A disk that erases itself says how long it has nothing to report.
	seen.Expect = 3 * time.Hour
	m.cleaned(seen)
	m.after(3 * time.Hour)
	m.settle()
	if m.record.Attempt != 1 {
		t.Fatal("it was given up before the time that the disk said")
	}
	m.after(m.in.Deadlines.Progress)
	m.settle()
	if m.record.Attempt != 2 || !strings.Contains(m.record.Message, "no progress for 3h10m") {
		t.Fatalf("attempt %d, message %q", m.record.Attempt, m.record.Message)
	}
	m.after(m.in.Deadlines.Boot)
	m.settle()
	m.want(api.MachineFailed)
	if m.record.Quarantine == nil {
		t.Error("a machine that did not finish its cleaning is in no quarantine")
	}
}

func TestANewLeaderWaitsForTheProgressOfACleaning(t *testing.T) {
	m := newMachine(t)
	m.cleanIt(false)
	m.cleaned(lifecycle.CleanSeen{Steps: []api.CleanStep{step(api.CleanRunning)}})
	m.after(24 * time.Hour)
	m.in.LeaderSince, m.in.Boot = m.in.Now, lifecycle.BootSeen{}
	m.settle()
	m.want(api.MachineCleaning)
	if m.record.Attempt != 1 {
		t.Error("a new leader has given up a cleaning that it has not heard of yet")
	}
}

func TestTheReportOfAnEarlierCleaningProvesNothing(t *testing.T) {
	m := newMachine(t)
	m.cleanIt(false)
	m.in.Boot = lifecycle.BootSeen{Generation: m.record.Boot.Generation - 1, Clean: &lifecycle.CleanSeen{Done: true, Steps: []api.CleanStep{step(api.CleanDone)}}}
	m.settle()
	m.want(api.MachineCleaning)
	if m.record.Clean != nil {
		t.Error("an earlier report counts as a proof")
	}
}

func TestAMachineInUseIsNotCleaned(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	m.in.InUse = "it runs 2 members of cluster c1"
	m.intent.Clean = api.CleanRequest{Number: 1}
	m.settle()
	m.want(api.MachineReady)
	if !strings.Contains(m.record.Message, "c1") || m.record.DoneClean != 1 {
		t.Errorf("message %q, done %d", m.record.Message, m.record.DoneClean)
	}
	m.hold(api.HoldQuarantine, "noise")
	m.want(api.MachineReady)
	if m.record.Quarantine != nil || !strings.Contains(m.record.Message, "c1") {
		t.Errorf("quarantine %+v, message %q", m.record.Quarantine, m.record.Message)
	}
}

func TestAMachineThatCannotBeStoppedIsNotCleaned(t *testing.T) {
	m := newMachine(t)
	m.in.Power.State = api.PowerOn
	m.intent.Clean = api.CleanRequest{Number: 1}
	m.settle()
	m.after(m.in.Deadlines.Stop)
	m.in.Power.ObservedAt = m.in.Now
	m.settle()
	m.want(api.MachineFailed)
	if m.record.DoneClean != 1 {
		t.Error("it would be stopped for its cleaning again and again")
	}
}

func TestAnOperatorQuarantinesAndReleasesAMachine(t *testing.T) {
	m := newMachine(t)
	m.hold(api.HoldQuarantine, "memory errors")
	if q := m.record.Quarantine; q == nil || q.Reason != "memory errors" || q.By != "ann" || !strings.Contains(m.record.Message, "memory errors") {
		t.Fatalf("quarantine %+v, message %q", q, m.record.Message)
	}
	m.request(api.PowerActionOn, "debian-mpi", false)
	if m.record.Phase == api.MachineBooting {
		t.Fatal("a machine in quarantine boots")
	}
	// A cleaning does not mend what an operator saw.
	m.cleanIt(false)
	m.cleaned(lifecycle.CleanSeen{Done: true, Steps: []api.CleanStep{step(api.CleanDone)}})
	m.goDark()
	m.want(api.MachineOff)
	if m.record.Quarantine == nil || m.record.Clean == nil || !strings.Contains(m.record.Message, "memory errors") {
		t.Errorf("after its cleaning: quarantine %+v, clean %+v, message %q", m.record.Quarantine, m.record.Clean, m.record.Message)
	}
	m.hold(api.HoldRelease, "")
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.want(api.MachineBooting)
}

func TestAMachineThatIsOnGoesOffIntoQuarantine(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	m.request(api.PowerActionCycle, "rescue", false)
	m.want(api.MachineStopping)
	m.hold(api.HoldQuarantine, "noise")
	m.goDark()
	m.want(api.MachineOff) // and does not boot what it was to boot then
	m.hold(api.HoldRelease, "")
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	m.want(api.MachineReady)
	m.hold(api.HoldQuarantine, "noise")
	m.want(api.MachineStopping)
}

func TestAReleasedMachineIsOffOnlyIfItsPowerIs(t *testing.T) {
	for _, power := range []api.PowerState{api.PowerOff, api.PowerOn, api.PowerUnknown} {
		m := newMachine(t)
		m.cleanIt(false)
		m.cleaned(lifecycle.CleanSeen{Done: true, Steps: []api.CleanStep{step(api.CleanFailed)}})
		m.in.Power.State = power
		m.hold(api.HoldRelease, "")
		want := api.MachineFailed
		if power == api.PowerOff {
			want = api.MachineOff
		}
		m.want(want)
		if m.record.Quarantine != nil {
			t.Errorf("power %s: quarantine %+v", power, m.record.Quarantine)
		}
	}
}
