package decision_test

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/decision"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// fataler is what testing.T and rapid.T have in common here.
type fataler interface {
	Helper()
	Errorf(format string, args ...any)
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
	events  []string // their reasons
	told    []string // their messages
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
			m.events, m.told = append(m.events, e.Reason), append(m.told, e.Message)
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
	m.in.Boot.Local, m.in.Boot.RootBytes, m.in.Boot.PeerBytes = true, 900, 400
	m.in.Agent = lifecycle.AgentSeen{Connected: true, BootGeneration: g, LastSeen: m.in.Now}
	m.settle()
}

func (m *machine) report(blocking ...api.HealthResult) {
	m.carryOut()
	m.in.Boot = lifecycle.BootSeen{Generation: m.record.Boot.Generation, Reported: true, Health: blocking, Blocking: blocking, LastHeard: m.in.Now}
	m.settle()
}

// reading is what the provisioner reads now; it knows what was decided last.
func (m *machine) reading(state api.PowerState) {
	if order, generation := lifecycle.Order(m.record, m.in.Now); generation != m.in.Power.Generation || order != m.in.Power.Order {
		m.in.Power.Generation, m.in.Power.Order, m.in.Power.Done = generation, order, false
	}
	m.in.Power.State, m.in.Power.ObservedAt = state, m.in.Now
}

// goDark is the machine going off by itself.
func (m *machine) goDark() {
	m.after(time.Second)
	m.in.Agent.Connected = false
	m.reading(api.PowerOff)
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
