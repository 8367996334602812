package decision_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

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

// A machine that was woken a moment ago reads as off; whoever read it before it was told of the stop would let it come on afterwards.
func TestWhatIsReadByOneThatDoesNotKnowOfTheStopIsNoProofThatItIsOff(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.reads(time.Second, api.PowerOff)
	m.request(api.PowerActionOff, "", false)
	m.after(time.Millisecond)
	m.in.Power.ObservedAt = m.in.Now
	m.settle()
	m.want(api.MachineStopping)
	m.wantOrder(lifecycle.OrderCut)
	m.carryOut()
	m.want(api.MachineOff)
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
	if m.record.Power != api.PowerUnknown || !strings.Contains(m.record.Message, "its power is unreadable") {
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
			if !strings.Contains(m.record.Message, "press the machine's power button") {
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

func TestAMachineWhoseCableWasOutWhenItWasToGoOffIsFoundAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		found func(*machine)
		want  api.MachinePhase
	}{
		"its agent is back":           {func(m *machine) { m.in.Agent.Connected, m.in.Agent.LastSeen = true, m.in.Now }, api.MachineStopping},
		"its agent was there briefly": {func(m *machine) { m.in.Agent.LastSeen = m.in.Now }, api.MachineStopping},
		"its boot agent asks":         {func(m *machine) { m.in.Boot.LastHeard = m.in.Now }, api.MachineStopping},
		"nothing is heard of it":      {func(*machine) {}, api.MachineFailed},
	} {
		t.Run(name, func(t *testing.T) {
			m := unread(t)
			m.in.Agent.Connected = false
			m.after(time.Hour)
			m.request(api.PowerActionOff, "", false)
			m.after(m.in.Deadlines.Stop)
			m.settle()
			m.want(api.MachineFailed)
			m.after(time.Hour)
			tc.found(m)
			m.settle()
			m.want(tc.want)
			if tc.want == api.MachineFailed {
				return
			}
			m.in.Agent.Connected = false
			m.after(m.in.Deadlines.Silence)
			m.settle()
			if tc.found(m); name == "its agent is back" {
				m.want(api.MachineOff)
			}
		})
	}
}

// One that was told and is still on is for an operator: it would be told again and again.
func TestAMachineThatWasToldToGoOffAndStaysOnIsNotToldAgain(t *testing.T) {
	m := unread(t)
	m.request(api.PowerActionOff, "", false)
	m.after(m.in.Deadlines.Stop)
	m.settle()
	m.want(api.MachineFailed)
	m.after(time.Hour)
	m.in.Agent.LastSeen = m.in.Now
	m.settle()
	m.want(api.MachineFailed)
}

func TestAMachineThatBootsAndCannotBeReadIsOffOnceItsBootAgentWasTold(t *testing.T) {
	m := newMachine(t)
	m.in.Power = lifecycle.PowerSeen{Known: true, State: api.PowerUnknown}
	m.inspect()
	m.in.Boot = lifecycle.BootSeen{Generation: m.record.Boot.Generation, Reported: true, LastHeard: m.in.Now}
	m.settle()
	m.want(api.MachineStopping)
	m.after(time.Second)
	m.in.Boot.LastHeard = m.in.Now // what its firmware or loader asks for tells it nothing
	m.after(m.in.Deadlines.Silence)
	m.settle()
	m.want(api.MachineStopping)
	m.in.Boot.ToldOff = m.in.Now
	m.after(m.in.Deadlines.Silence - time.Second)
	m.settle()
	m.want(api.MachineStopping)
	m.after(time.Second)
	m.settle()
	m.want(api.MachineOff)
}

func TestABMCThatIsWrongMakesNoMachineOffThatAnswers(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	m.request(api.PowerActionOff, "", true)
	m.after(time.Second)
	m.reading(api.PowerOff)
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

func TestPowerLostInUseIsNoticed(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	m.goDark()
	m.want(api.MachineReady)
	m.reads(30*time.Second, api.PowerOff)
	m.want(api.MachineOff)
	if m.events[len(m.events)-1] != lifecycle.EventMachineLostPower {
		t.Errorf("events %v", m.events)
	}
}

func TestPowerLostWhileItsRemovalWaitsIsNoticed(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	at := m.in.Now
	m.in.InUse = "it runs 2 members of cluster c1"
	m.intent.RemoveRequestedAt = &at
	m.settle()
	m.want(api.MachineReady)
	m.goDark()
	m.reads(30*time.Second, api.PowerOff)
	if !slices.Contains(m.events, lifecycle.EventMachineLostPower) {
		t.Errorf("it is %s, events %v", m.record.Phase, m.events)
	}
}

func TestRemovalWaitsForMembersThatCameMeanwhileUnlessForced(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	at := m.in.Now
	m.in.InUse = "it runs 2 members of cluster c1"
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
	m.in.InUse = "it runs 2 members of cluster c1"
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

// A leader that has just taken over has not read the power of any machine: the time that the one before had is no reason to give a machine up.
func TestANewLeaderThatHasNotReadThePowerDoesNotGiveAMachineUp(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	m.request(api.PowerActionOff, "", true)
	m.in.Agent.Connected = false
	m.settle()
	m.want(api.MachineStopping)
	m.after(m.in.Deadlines.Stop - time.Second)
	m.in.LeaderSince, m.in.Power = m.in.Now, lifecycle.PowerSeen{}
	m.after(2 * time.Second)
	m.settle()
	m.want(api.MachineStopping)
	m.after(m.in.Deadlines.Stop)
	m.settle()
	m.want(api.MachineFailed)
}
