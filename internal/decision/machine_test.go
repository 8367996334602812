package decision_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/decision"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// fataler is what testing.T and rapid.T have in common here.
type fataler interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// machine is one machine with what is seen of it, planned until nothing is left to do.
type machine struct {
	t       fataler
	in      lifecycle.MachineInput
	intent  api.MachineIntent
	record  *api.MachineRecord
	gone    bool
	events  []string
	digests map[string]string
}

func newMachine(t fataler) *machine {
	m := &machine{
		t: t, digests: map[string]string{"inspect": "sha256:i", "debian-mpi": "sha256:d", "rescue": "sha256:r"},
		intent: api.MachineIntent{Name: "n1", UID: "u1"},
	}
	m.in.Now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	m.in.Deadlines = lifecycle.DefaultMachineDeadlines()
	m.in.Power = lifecycle.PowerSeen{Known: true, State: api.PowerOff, Observes: true, ForcesOff: true, ObservedAt: m.in.Now}
	m.in.Environment = func(name string) (string, string) {
		if d := m.digests[name]; d != "" {
			return d, ""
		}
		return "", "there is no such environment"
	}
	m.settle()
	return m
}

// settle plans until nothing changes.
func (m *machine) settle() {
	m.t.Helper()
	for range 20 {
		if m.gone {
			return
		}
		m.in.Intent, m.in.Record = &m.intent, m.record
		change, err := decision.ApplyMachine(&m.intent, m.record, lifecycle.PlanMachine(m.in), m.in.Now)
		if err != nil {
			m.t.Fatal(err)
		}
		for _, e := range change.Events {
			m.events = append(m.events, e.Reason)
		}
		if !change.Dirty {
			return
		}
		m.gone = change.Forget
		r := change.Record
		m.record = &r
	}
	m.t.Fatalf("the plan for the machine never comes to rest: %+v", m.record)
}

func (m *machine) after(d time.Duration) { m.in.Now = m.in.Now.Add(d) }

// carryOut does what is ordered of its power, as a good BMC would.
func (m *machine) carryOut() {
	order, generation := lifecycle.Order(m.record, m.in.Now)
	if order == lifecycle.OrderLeave {
		return
	}
	m.after(time.Second)
	m.in.Power.Generation, m.in.Power.Order, m.in.Power.Done, m.in.Power.DoneAt = generation, order, true, m.in.Now
	m.in.Power.State = map[lifecycle.PowerOrder]api.PowerState{lifecycle.OrderWake: api.PowerOn, lifecycle.OrderCut: api.PowerOff}[order]
	m.in.Power.ObservedAt = m.in.Now.Add(time.Millisecond)
	if order == lifecycle.OrderCut {
		m.in.Agent.Connected = false
	}
	m.after(10 * time.Millisecond)
	m.settle()
}

func (m *machine) request(action api.PowerAction, environment string, force bool) {
	m.intent.Request = api.PowerRequest{Number: m.intent.Request.Number + 1, Action: action, Environment: environment, Force: force}
	m.settle()
}

func (m *machine) inspect() { m.intent.Inspect++; m.settle() }

// bootUp lets the agent of the boot that goes on come up.
func (m *machine) bootUp() {
	m.carryOut()
	g := m.record.Boot.Generation
	m.in.Boot = lifecycle.BootSeen{Generation: g, Stages: []api.StageTime{{Stage: api.StageDHCP, At: m.in.Now}}, LastHeard: m.in.Now}
	m.after(time.Second)
	m.in.Boot.Local = true
	m.in.Agent = lifecycle.AgentSeen{Connected: true, BootGeneration: g, LastSeen: m.in.Now}
	m.settle()
}

func (m *machine) report(blocking ...api.HealthResult) {
	m.carryOut()
	m.in.Boot = lifecycle.BootSeen{Generation: m.record.Boot.Generation, Reported: true, Health: blocking, Blocking: blocking, LastHeard: m.in.Now}
	m.settle()
}

// goDark is the machine going off by itself.
func (m *machine) goDark() {
	m.after(time.Second)
	m.in.Agent.Connected = false
	m.in.Power.State, m.in.Power.ObservedAt = api.PowerOff, m.in.Now
	m.after(time.Millisecond)
	m.settle()
}

func (m *machine) want(phase api.MachinePhase) {
	m.t.Helper()
	if m.gone || m.record.Phase != phase {
		m.t.Fatalf("the machine is %q (gone %v, message %q), want %q; events %v", m.record.Phase, m.gone, m.record.Message, phase, m.events)
	}
}

func (m *machine) wantOrder(order lifecycle.PowerOrder) {
	m.t.Helper()
	if got, _ := lifecycle.Order(m.record, m.in.Now); got != order {
		m.t.Fatalf("the power is ordered to %q, want %q", got, order)
	}
}

func TestAMachineIsInspectedAndRests(t *testing.T) {
	m := newMachine(t)
	m.want(api.MachineEnrolled)
	m.inspect()
	m.want(api.MachineInspecting)
	m.wantOrder(lifecycle.OrderWake)
	m.report()
	m.want(api.MachineStopping)
	m.wantOrder(lifecycle.OrderLeave) // it goes off by itself first
	m.goDark()
	m.want(api.MachineOff)
	if m.record.InspectedAt == nil || m.record.LastVerifiedAt == nil || lifecycle.MayBoot(m.record) {
		t.Errorf("inspected %v, verified %v, may boot %v", m.record.InspectedAt, m.record.LastVerifiedAt, lifecycle.MayBoot(m.record))
	}
}

func TestAMachineThatFailsAHealthCheckIsNotFree(t *testing.T) {
	m := newMachine(t)
	m.inspect()
	m.report(api.HealthResult{Check: "memory", Message: "60 GiB of 64 GiB are there"})
	m.want(api.MachineFailed)
	if !strings.Contains(m.record.Message, "60 GiB") {
		t.Errorf("message %q", m.record.Message)
	}
}

func TestAMachineBootsRunsAndGoesOff(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.want(api.MachineBooting)
	m.bootUp()
	m.want(api.MachineReady)
	if lifecycle.MayBoot(m.record) {
		t.Error("a machine that is up must get nothing more to boot")
	}
	first := m.record.Generation
	m.request(api.PowerActionOff, "", false)
	m.want(api.MachineStopping)
	m.wantOrder(lifecycle.OrderLeave)
	m.after(m.in.Deadlines.Soft)
	m.wantOrder(lifecycle.OrderCut)
	m.carryOut()
	m.want(api.MachineOff)
	if m.record.Generation <= first {
		t.Errorf("stopping is generation %d, as was the boot", m.record.Generation)
	}
	if m.record.Stop != nil {
		t.Error("a machine that is off still stops")
	}
}

func TestPowerOnTwiceIsOneBoot(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	g := m.record.Generation
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.want(api.MachineReady)
	if m.record.Generation != g || m.record.DoneRequest != 2 {
		t.Errorf("generation %d, was %d; request %d is done", m.record.Generation, g, m.record.DoneRequest)
	}
}

func TestAnotherEnvironmentMeansOffAndOn(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	m.request(api.PowerActionOn, "rescue", false)
	m.want(api.MachineStopping)
	m.goDark()
	m.want(api.MachineBooting)
	if m.record.Boot.Environment != "rescue" {
		t.Errorf("boots %q", m.record.Boot.Environment)
	}
}

func TestAMachineInUseIsNotPoweredOffWithoutForce(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	m.in.InUse = "it carries 2 members of cluster c1"
	m.request(api.PowerActionOff, "", false)
	m.want(api.MachineReady)
	if !strings.Contains(m.record.Message, "c1") || m.record.DoneRequest != 2 {
		t.Errorf("message %q, done %d", m.record.Message, m.record.DoneRequest)
	}
	m.request(api.PowerActionOff, "", true)
	m.want(api.MachineStopping)
	m.wantOrder(lifecycle.OrderCut)
}

func TestABootThatFailsIsTriedAgainInANewGenerationThenGivenUp(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.carryOut()
	g := m.record.Boot.Generation
	m.after(m.in.Deadlines.Boot)
	m.settle()
	m.want(api.MachineBooting)
	if m.record.Boot.Generation <= g || m.record.Attempt != 2 {
		t.Fatalf("generation %d after %d, attempt %d", m.record.Boot.Generation, g, m.record.Attempt)
	}
	m.after(m.in.Deadlines.Boot)
	m.settle()
	m.want(api.MachineFailed)
	if !strings.Contains(m.record.Message, "not ready within 15m") {
		t.Errorf("message %q", m.record.Message)
	}
}

func TestTheAgentOfAnEarlierBootMakesNothingReady(t *testing.T) {
	for name, earlier := range map[string]struct{ heard, agent int64 }{"both": {1, 1}, "only what was heard": {1, 0}, "only the agent": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.request(api.PowerActionOn, "debian-mpi", false)
			m.carryOut()
			m.in.Boot = lifecycle.BootSeen{Generation: m.record.Boot.Generation - earlier.heard, Local: true}
			m.in.Agent = lifecycle.AgentSeen{Connected: true, BootGeneration: m.record.Boot.Generation - earlier.agent}
			m.settle()
			m.want(api.MachineBooting)
			if earlier.heard > 0 && m.record.Boot.Local {
				t.Error("what was heard of an earlier boot is noted as this one's")
			}
		})
	}
}

func TestTheReportOfAnEarlierBootIsNoInspection(t *testing.T) {
	m := newMachine(t)
	m.inspect()
	m.carryOut()
	m.in.Boot = lifecycle.BootSeen{Generation: m.record.Boot.Generation - 1, Reported: true}
	m.settle()
	m.want(api.MachineInspecting)
}

func TestWhatBecameOfAnEarlierOrderIsNotHeldAgainstABoot(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	_, g := lifecycle.Order(m.record, m.in.Now)
	m.in.Power.Generation, m.in.Power.Order, m.in.Power.Final, m.in.Power.Problem = g-1, lifecycle.OrderWake, true, "wrong password"
	m.settle()
	m.want(api.MachineBooting)
	m.in.Power.Generation, m.in.Power.Final, m.in.Power.Problem = g, false, ""
	m.in.Power.Done, m.in.Power.DoneAt, m.in.Power.ObservedAt = true, m.in.Now, m.in.Now.Add(-time.Second) // read as off before it was woken
	m.settle()
	if m.record.Boot.Generation != g {
		t.Errorf("it boots again: %s", m.record.Message)
	}
}

func TestAMachineInUseIsNotInspected(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	m.in.InUse = "it carries 2 members of cluster c1"
	m.inspect()
	m.want(api.MachineReady)
	m.in.InUse = ""
	m.settle()
	m.want(api.MachineInspecting)
}

func TestNobodysWordCountsWhereThePowerCanBeRead(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	m.request(api.PowerActionOff, "", true)
	m.in.Agent.Connected = false
	m.after(m.in.Deadlines.Stop) // its BMC goes on saying that it is on
	m.settle()
	m.want(api.MachineFailed)
	m.request(api.PowerActionOff, "", false)
	m.want(api.MachineStopping)
}

func TestNoPhaseOfAMachineFollowsThatTheTableHasNot(t *testing.T) {
	record := &api.MachineRecord{Name: "n1", UID: "u1", Phase: api.MachineOff}
	ops := []lifecycle.Operation{lifecycle.SetMachinePhase{To: api.MachineReady}}
	if change, err := decision.ApplyMachine(&api.MachineIntent{Name: "n1", UID: "u1"}, record, ops, time.Now()); err == nil {
		t.Errorf("from off to ready: %+v", change.Record)
	}
}

func TestUnknownIsNotOff(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	m.request(api.PowerActionOff, "", true)
	m.in.Power.State, m.in.Power.ObservedAt = api.PowerUnknown, m.in.Now.Add(time.Second)
	m.in.Agent.Connected = false
	m.after(time.Minute)
	m.settle()
	m.want(api.MachineStopping)
	m.after(m.in.Deadlines.Stop)
	m.settle()
	m.want(api.MachineFailed)
}

func TestWhatWasReadBeforeTheStopIsNoProofThatItIsOff(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	m.in.Power.State, m.in.Power.ObservedAt = api.PowerOff, m.in.Now.Add(-time.Hour)
	m.in.Agent = lifecycle.AgentSeen{} // the server was started anew
	m.request(api.PowerActionOff, "", true)
	m.want(api.MachineStopping)
	m.settle()
	m.want(api.MachineStopping)
}

func TestAMachineWhosePowerCannotBeReadIsOffWhenItWasToldToAndIsSilent(t *testing.T) {
	m := newMachine(t)
	m.in.Power = lifecycle.PowerSeen{Known: true, State: api.PowerUnknown}
	m.request(api.PowerActionOn, "debian-mpi", false)
	order, g := lifecycle.Order(m.record, m.in.Now)
	if order != lifecycle.OrderWake {
		t.Fatalf("ordered %q", order)
	}
	m.in.Power.Generation, m.in.Power.Order, m.in.Power.Done, m.in.Power.DoneAt = g, order, true, m.in.Now
	m.in.Boot = lifecycle.BootSeen{Generation: g, Local: true, LastHeard: m.in.Now}
	m.in.Agent = lifecycle.AgentSeen{Connected: true, BootGeneration: g, LastSeen: m.in.Now}
	m.settle()
	m.want(api.MachineReady)
	m.request(api.PowerActionOff, "", false)
	m.in.Agent.Connected = false
	m.settle()
	m.want(api.MachineStopping)
	m.after(m.in.Deadlines.Silence)
	m.settle()
	m.want(api.MachineOff)
	if m.record.Power != api.PowerUnknown || !strings.Contains(m.record.Message, "nothing can read its power") {
		t.Errorf("power %q, message %q", m.record.Power, m.record.Message)
	}
}

// unread is a machine whose power can't be read, up with its agent.
func unread(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t)
	m.in.Power = lifecycle.PowerSeen{Known: true, State: api.PowerUnknown}
	m.request(api.PowerActionOn, "debian-mpi", false)
	g := m.record.Boot.Generation
	m.in.Boot = lifecycle.BootSeen{Generation: g, Local: true, LastHeard: m.in.Now}
	m.in.Agent = lifecycle.AgentSeen{Connected: true, BootGeneration: g, LastSeen: m.in.Now}
	m.settle()
	m.want(api.MachineReady)
	return m
}

func TestTheSilenceOfAMachineThatWasNotToldToGoOffMeansNothing(t *testing.T) {
	for name, seen := range map[string]time.Duration{"cut off for an hour": time.Hour, "the server was started anew": -1} {
		t.Run(name, func(t *testing.T) {
			m := unread(t)
			m.in.Agent.Connected = false
			m.after(time.Hour)
			if seen < 0 {
				m.in.Agent.LastSeen, m.in.Boot = time.Time{}, lifecycle.BootSeen{}
			}
			m.request(api.PowerActionOff, "", true)
			m.after(time.Minute)
			m.settle()
			m.want(api.MachineStopping)
			m.after(m.in.Deadlines.Stop)
			m.settle()
			m.want(api.MachineFailed)
			if !strings.Contains(m.record.Message, "press its button") {
				t.Errorf("message %q", m.record.Message)
			}
			m.wantOrder(lifecycle.OrderLeave)
			// Who pressed it says so as they were told to.
			m.request(api.PowerActionOff, "", false)
			m.want(api.MachineOff)
			if m.record.Power != api.PowerUnknown || m.record.Stop != nil {
				t.Errorf("power %q, stop %+v", m.record.Power, m.record.Stop)
			}
		})
	}
}

func TestAMachineThatBootsAndCannotBeReadIsOffOnceItsBootAgentWasTold(t *testing.T) {
	m := newMachine(t)
	m.in.Power = lifecycle.PowerSeen{Known: true, State: api.PowerUnknown}
	m.inspect()
	m.in.Boot = lifecycle.BootSeen{Generation: m.record.Boot.Generation, Reported: true, LastHeard: m.in.Now}
	m.settle()
	m.want(api.MachineStopping)
	m.after(time.Second)
	m.in.Boot.LastHeard = m.in.Now // it asked what to do next
	m.after(m.in.Deadlines.Silence)
	m.settle()
	m.want(api.MachineOff)
}

func TestABMCThatIsWrongMakesNoMachineOffThatAnswers(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	m.request(api.PowerActionOff, "", true)
	m.after(time.Second)
	m.in.Power.State, m.in.Power.ObservedAt = api.PowerOff, m.in.Now
	m.settle()
	m.want(api.MachineStopping)
	m.after(time.Second)
	m.in.Agent.LastSeen = m.in.Now // it answered after that was read, and then its connection broke
	m.in.Agent.Connected = false
	m.settle()
	m.want(api.MachineStopping)
	m.after(time.Second)
	m.in.Power.ObservedAt = m.in.Now
	m.settle()
	m.want(api.MachineOff)
}

func TestAMachineThatCannotBeCutIsRemovedAllTheSame(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.carryOut()
	at := m.in.Now
	m.intent.RemoveRequestedAt = &at
	m.settle()
	m.want(api.MachineRemoving)
	m.after(m.in.Deadlines.Stop) // its BMC goes on saying that it is on
	m.settle()
	if !m.gone {
		t.Errorf("it is %q: %s", m.record.Phase, m.record.Message)
	}
}

func TestARequestForAnotherEnvironmentHoldsNobodyUpWhileAMachineBoots(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.carryOut()
	g := m.record.Boot.Generation
	m.request(api.PowerActionOn, "debian-mpi", false)
	if m.record.DoneRequest != 2 || m.record.Boot.Generation != g {
		t.Errorf("request %d is done, generation %d after %d", m.record.DoneRequest, m.record.Boot.Generation, g)
	}
	m.request(api.PowerActionOn, "rescue", false)
	m.want(api.MachineBooting)
	if m.record.DoneRequest != 3 || m.record.Boot.Generation <= g || m.record.Boot.Environment != "rescue" || m.record.Attempt != 1 {
		t.Errorf("request %d is done; it boots %+v, attempt %d", m.record.DoneRequest, m.record.Boot, m.record.Attempt)
	}
	g = m.record.Boot.Generation
	m.request(api.PowerActionOn, "nonesuch", false)
	if m.record.DoneRequest != 4 || m.record.Boot.Generation != g || !strings.Contains(m.record.Message, "nonesuch") {
		t.Errorf("request %d is done; it boots %+v; message %q", m.record.DoneRequest, m.record.Boot, m.record.Message)
	}
	m.bootUp()
	m.want(api.MachineReady)
}

func TestARefusedBMCFailsAtOnce(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	_, g := lifecycle.Order(m.record, m.in.Now)
	m.in.Power.Generation, m.in.Power.Order, m.in.Power.Final, m.in.Power.Problem = g, lifecycle.OrderWake, true, "the BMC refused the user or the password"
	m.settle()
	m.want(api.MachineFailed)
	if m.record.Message != "the BMC refused the user or the password" {
		t.Errorf("message %q", m.record.Message)
	}
}

func TestPowerLostInUseIsNoticed(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	m.goDark()
	m.want(api.MachineOff)
	if m.events[len(m.events)-1] != lifecycle.EventMachineLostPower {
		t.Errorf("events %v", m.events)
	}
}

func TestRemovalWaitsForMembersThatCameMeanwhileUnlessForced(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	at := m.in.Now
	m.in.InUse = "it carries 2 members of cluster c1"
	m.intent.RemoveRequestedAt = &at
	m.settle()
	m.want(api.MachineReady)
	if !strings.Contains(m.record.Message, "c1") {
		t.Errorf("message %q", m.record.Message)
	}
	m.in.InUse = ""
	m.settle()
	m.want(api.MachineRemoving)

	m = newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	m.in.InUse = "it carries 2 members of cluster c1"
	m.intent.RemoveRequestedAt, m.intent.RemoveForce = &at, true
	m.settle()
	m.want(api.MachineRemoving)
}

func TestRemovalPowersOffFirst(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	at := m.in.Now
	m.intent.RemoveRequestedAt = &at
	m.settle()
	m.want(api.MachineRemoving)
	m.goDark()
	if !m.gone {
		t.Errorf("it is %q", m.record.Phase)
	}
}

func TestAMachineAtRestIsReadAsOffBeforeItIsForgotten(t *testing.T) {
	for state, waits := range map[api.PowerState]bool{
		api.PowerOn:      true, // somebody pressed its button
		api.PowerOff:     true, // that may be a while ago
		api.PowerUnknown: false,
	} {
		m := newMachine(t)
		m.in.Power.State = state
		m.settle()
		m.want(api.MachineEnrolled)
		now := m.in.Now
		m.intent.RemoveRequestedAt = &now
		m.settle()
		if waits {
			m.want(api.MachineRemoving)
			m.wantOrder(lifecycle.OrderCut)
			m.carryOut()
		}
		if !m.gone {
			t.Errorf("power %s: it is not forgotten: %+v", state, m.record)
		}
	}
}

func TestAnEnvironmentThatIsNotThereIsRefusedInWords(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "nonesuch", false)
	m.want(api.MachineEnrolled)
	if m.record.Message != `can't boot "nonesuch": there is no such environment` || m.record.DoneRequest != 1 {
		t.Errorf("message %q, done %d", m.record.Message, m.record.DoneRequest)
	}
}

// Whatever is asked, seen and missed in whatever order: the table holds, generations only grow, plans come to rest, nothing boots that is
// not meant to, and no machine is off by an observation that is older than the order, or unknown.
func TestMachinesKeepTheirRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		generation := int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if m.gone {
				return
			}
			before := m.record.Phase
			switch rapid.IntRange(0, 11).Draw(t, "step") {
			case 0:
				m.request(api.PowerActionOn, rapid.SampledFrom([]string{"debian-mpi", "rescue", "nonesuch"}).Draw(t, "environment"), false)
			case 1:
				m.request(api.PowerActionOff, "", rapid.Bool().Draw(t, "force"))
			case 2:
				m.request(api.PowerActionCycle, "", rapid.Bool().Draw(t, "force"))
			case 3:
				m.inspect()
			case 4:
				m.carryOut()
			case 5:
				if m.record.Boot != nil {
					m.bootUp()
				}
			case 6:
				if m.record.Boot != nil {
					m.report()
				}
			case 7:
				m.goDark()
			case 8:
				m.in.Power.State = api.PowerUnknown
				m.in.Power.ObservedAt = m.in.Now
				m.settle()
			case 9:
				m.after(rapid.SampledFrom([]time.Duration{time.Second, time.Minute, 20 * time.Minute}).Draw(t, "pause"))
				m.settle()
			case 10:
				m.in.InUse = rapid.SampledFrom([]string{"", "it carries members"}).Draw(t, "use")
				m.settle()
			case 11:
				if rapid.IntRange(0, 5).Draw(t, "remove") == 0 {
					at := m.in.Now
					m.intent.RemoveRequestedAt = &at
					m.settle()
				}
			}
			if m.gone {
				return
			}
			if m.record.Generation < generation {
				t.Fatalf("generation %d after %d", m.record.Generation, generation)
			}
			generation = m.record.Generation
			if before != api.MachineOff && m.record.Phase == api.MachineOff && m.in.Power.State != api.PowerOff {
				t.Fatalf("from %q to off while its power is %q", before, m.in.Power.State)
			}
			if lifecycle.MayBoot(m.record) && m.record.Boot == nil {
				t.Fatal("it may boot nothing")
			}
		}
	})
}
