package decision_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// reads lets time pass and the power be read.
func (m *machine) reads(after time.Duration, state api.PowerState) {
	m.t.Helper()
	m.after(after)
	m.reading(state)
	m.settle()
}

// heard is a word of the machine that boots.
func (m *machine) heard() {
	m.in.Boot.Generation, m.in.Boot.LastHeard = m.record.Boot.Generation, m.in.Now
	m.settle()
}

// booting is a machine that was woken and has asked for its kernel.
func booting(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.carryOut()
	m.after(10 * time.Second)
	m.heard()
	m.want(api.MachineBooting)
	return m
}

func (m *machine) wantAttempt(n int, message string) {
	m.t.Helper()
	m.want(api.MachineBooting)
	if m.record.Attempt != n || !strings.Contains(m.record.Message, message) {
		m.t.Fatalf("attempt %d, message %q; want %d, %q", m.record.Attempt, m.record.Message, n, message)
	}
}

func TestAPowerThatIsLostAmidABootIsBelievedWhenItIsReadAgainAndAgain(t *testing.T) {
	m := booting(t)
	m.reads(5*time.Second, api.PowerOff)
	m.wantAttempt(1, "")
	m.after(20 * time.Second)
	m.settle() // time alone is no second reading
	m.wantAttempt(1, "")
	m.reads(time.Second, api.PowerOff)
	m.wantAttempt(2, "lost power")
	if n := m.record.Boot.Generation; lifecycle.Reached(m.record.Boot, api.StagePower) {
		t.Errorf("boot %d was woken before anything was ordered", n)
	}
	m.wantOrder(lifecycle.OrderWake)
}

func TestAPowerThatIsLostIsBelievedByTheNextLeader(t *testing.T) {
	m := booting(t)
	m.reads(5*time.Second, api.PowerOff)
	m.after(30 * time.Second)
	// It has heard nothing, and its provisioner takes the order as carried out only now.
	m.in.Boot, m.in.Agent, m.in.Power.DoneAt = lifecycle.BootSeen{}, lifecycle.AgentSeen{}, m.in.Now
	m.reads(time.Second, api.PowerOff)
	m.wantAttempt(2, "lost power")
}

func TestANewLeaderListensBeforeItBelievesThatAMachineIsOff(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	m.reads(time.Minute, api.PowerOff) // wrongly: its agent is connected
	m.after(time.Hour)
	m.in.LeaderSince, m.in.Boot, m.in.Agent = m.in.Now, lifecycle.BootSeen{}, lifecycle.AgentSeen{}
	m.reads(time.Second, api.PowerOff)
	m.want(api.MachineReady) // its agent is about to connect
	m.reads(30*time.Second, api.PowerOff)
	m.want(api.MachineOff) // it did not
}

func TestABMCThatIsWrongPutsNoMachineInUseOutOfIt(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	m.reads(time.Minute, api.PowerOff)
	m.after(time.Minute)
	m.in.Agent.LastSeen = m.in.Now
	m.in.Agent.Connected = false // its connection broke
	for range 9 {
		m.reads(time.Minute, api.PowerOff)
	}
	m.want(api.MachineReady)
	m.reads(2*time.Minute, api.PowerOff)
	m.want(api.MachineOff) // who is silent for that long is not there
}

func TestAMachineThatItsBMCNeverConfirmedIsLostAllTheSame(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.in.Boot = lifecycle.BootSeen{Generation: m.record.Boot.Generation, Local: true, LastHeard: m.in.Now}
	m.in.Agent = lifecycle.AgentSeen{Connected: true, BootGeneration: m.record.Boot.Generation, LastSeen: m.in.Now}
	m.settle()
	m.want(api.MachineReady) // it came up before the order to wake it was known to be carried out
	m.reads(time.Second, api.PowerOn)
	m.in.Agent.Connected = false
	m.reads(time.Second, api.PowerOff)
	m.reads(30*time.Second, api.PowerOff)
	m.want(api.MachineOff)
}

func TestAMachineThatRestartsByItselfBootsTheSameAgain(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	g := m.record.Boot.Generation
	m.after(time.Minute)
	m.in.Agent.LastSeen = m.in.Now
	m.in.Boot.Restarted = m.in.Now.Add(-time.Second)
	m.settle()
	m.want(api.MachineReady)
	m.in.Agent.Connected = false
	m.settle()
	m.want(api.MachineReady) // its agent was heard later: that was another's word, or an old one
	m.in.Agent.Connected = true
	m.after(time.Second)
	m.in.Boot.Restarted = m.in.Now
	m.settle()
	m.want(api.MachineReady)
	m.in.Agent.Connected = false
	m.settle()
	m.want(api.MachineBooting)
	if b := m.record.Boot; b.Generation <= g || b.Environment != "debian-mpi" || b.Digest != "sha256:d" || !lifecycle.Reached(b, api.StagePower) {
		t.Errorf("it boots %+v", b)
	}
	m.bootUp()
	m.want(api.MachineReady)
}

func TestAMachineThatIsReadyAndHangsIsPoweredOnAnew(t *testing.T) {
	for _, environment := range []string{"debian-mpi", "rescue"} {
		m := newMachine(t)
		m.request(api.PowerActionOn, "debian-mpi", false)
		m.bootUp()
		m.in.Agent.LastSeen, m.in.Agent.Connected = m.in.Now, false
		m.after(10 * time.Second)
		m.request(api.PowerActionOn, "debian-mpi", false)
		m.want(api.MachineReady) // it may only have lost its connection
		m.after(20 * time.Second)
		m.in.InUse = "it runs 2 members of cluster c1"
		m.request(api.PowerActionOn, environment, false)
		m.want(api.MachineReady)
		m.in.InUse = ""
		m.request(api.PowerActionOn, environment, false)
		m.want(api.MachineBooting)
		if m.record.Boot.Environment != environment || lifecycle.Reached(m.record.Boot, api.StagePower) {
			t.Errorf("it boots %+v", m.record.Boot)
		}
		m.wantOrder(lifecycle.OrderWake)
	}
}

func TestABMCThatSaysOffForAMomentFailsNoBoot(t *testing.T) {
	m := booting(t)
	for range 10 {
		m.reads(5*time.Second, api.PowerOff)
		m.reads(5*time.Second, api.PowerOff)
		m.reads(5*time.Second, api.PowerOn)
		m.reads(5*time.Second, api.PowerOff)
		m.reads(5*time.Second, api.PowerUnknown)
	}
	m.wantAttempt(1, "")
}

func TestABMCThatIsWrongFailsNoBootOfAMachineThatIsHeardOf(t *testing.T) {
	for name, says := range map[string]func(m *machine){
		"it was off before, and never says on": func(m *machine) {
			m.record.Power, m.record.PowerObservedAt = api.PowerOff, m.record.Boot.DecidedAt.Add(-time.Hour)
		},
		"it begins amid the boot, and the machine speaks once more": func(m *machine) {
			m.reads(5*time.Second, api.PowerOff)
			m.after(time.Second)
			m.heard()
		},
		"what contradicted it was noted by another leader": func(m *machine) {
			m.reads(5*time.Second, api.PowerOff)
			m.after(time.Second)
			m.in.Boot.Stages = []api.StageTime{{Stage: api.StageKernel, At: m.in.Now}}
			m.settle()
			m.in.Boot = lifecycle.BootSeen{}
		},
		"its problem changes, not its state": func(m *machine) {
			m.reads(5*time.Second, api.PowerOff)
			m.after(time.Second)
			m.heard()
			m.in.Power.Problem = "the BMC accepted the order twice"
			m.reads(time.Second, api.PowerOff)
			m.in.Power.Problem = ""
		},
		"the agent is connected": func(m *machine) {
			m.in.Agent = lifecycle.AgentSeen{Connected: true, BootGeneration: m.record.Boot.Generation, LastSeen: m.in.Now}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := booting(t)
			says(m)
			for range 12 {
				m.reads(5*time.Second, api.PowerOff)
				m.wantAttempt(1, "")
			}
			if m.record.Power != api.PowerOff {
				t.Errorf("what it says is noted as %q", m.record.Power)
			}
		})
	}
}

func TestWhatIsReadOfAMachineThatWasNotWokenYetFailsNoBoot(t *testing.T) {
	m := newMachine(t)
	m.reads(time.Second, api.PowerUnknown)
	m.request(api.PowerActionOn, "debian-mpi", false)
	for range 12 {
		m.reads(5*time.Second, api.PowerOff)
		m.wantAttempt(1, "")
	}
}

// blind makes a machine one whose power nothing can read or cut.
func (m *machine) blind() {
	m.in.Power = lifecycle.PowerSeen{Known: true, State: api.PowerUnknown}
	m.settle()
}

func (m *machine) remove(force bool) {
	at := m.in.Now
	m.intent.RemoveRequestedAt, m.intent.RemoveForce = &at, force
	m.settle()
}

// cutOff is a machine whose power nothing can read or cut, that was up and is not heard of any more.
func cutOff(t *testing.T) *machine {
	t.Helper()
	m := unread(t)
	m.in.Agent.Connected = false
	m.after(time.Hour)
	return m
}

func TestTheRemovalOfAMachineBeyondControlTellsWhatItWaitsForAndForceEndsIt(t *testing.T) {
	m := cutOff(t)
	m.remove(false)
	m.want(api.MachineRemoving)
	until := m.in.Now.Add(m.in.Deadlines.Stop).Format("15:04:05 UTC")
	for _, part := range []string{"its power can't be read or cut", until, "node remove n1 --force"} {
		if !strings.Contains(m.record.Message, part) {
			t.Errorf("its message %q lacks %q", m.record.Message, part)
		}
	}
	m.after(2 * time.Minute)
	m.settle()
	m.want(api.MachineRemoving)
	m.remove(true)
	m.wantGoneUncut()
}

// wantGoneUncut wants a machine to be forgotten, and its last event to say that its power was not cut.
func (m *machine) wantGoneUncut() {
	m.t.Helper()
	if !m.gone {
		m.t.Fatalf("it is %q: %s", m.record.Phase, m.record.Message)
	}
	if last := m.told[len(m.told)-1]; !strings.Contains(last, "its power was not cut") {
		m.t.Errorf("its last event is %q", last)
	}
}

func TestForceRemovesAMachineBeyondControlAtOnceUnlessItIsOnForCertain(t *testing.T) {
	m := cutOff(t)
	m.remove(true)
	m.wantGoneUncut()

	m = newMachine(t)
	m.blind()
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.remove(true)
	m.wantGoneUncut()

	// It answers: it is told to go off, and forgotten once it is gone or its time is up.
	for _, goes := range []bool{true, false} {
		m = unread(t)
		m.remove(true)
		m.want(api.MachineRemoving)
		if goes {
			m.in.Agent.Connected = false
		} else {
			m.after(m.in.Deadlines.Soft)
		}
		m.settle()
		m.wantGoneUncut()
	}
}

func TestForceDoesNotSpareAMachineItsCutWhereItCanBeCut(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.carryOut()
	m.in.Power.State = api.PowerUnknown
	m.remove(true)
	m.want(api.MachineRemoving)
	m.wantOrder(lifecycle.OrderCut)
	m.carryOut()
	if last := m.told[len(m.told)-1]; !m.gone || strings.Contains(last, "its power was not cut") {
		t.Errorf("gone %v, last event %q", m.gone, last)
	}
}

func TestARemovalWithoutForceEndsAtItsDeadlineAndSaysThatNobodyCutThePower(t *testing.T) {
	m := cutOff(t)
	m.remove(false)
	m.after(m.in.Deadlines.Stop)
	m.settle()
	m.wantGoneUncut()
}
