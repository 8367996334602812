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
	if b := m.record.Boot; b.RootBytes != 900 || b.PeerBytes != 400 {
		t.Errorf("the record has %d bytes of %d from other machines, want 400 of 900 as was heard", b.PeerBytes, b.RootBytes)
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
	m.in.InUse = "it runs 2 members of cluster c1"
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
	m.in.InUse = "it runs 2 members of cluster c1"
	m.inspect()
	m.want(api.MachineReady)
	m.in.InUse = ""
	m.settle()
	m.want(api.MachineStopping) // not every machine that is on can be reset
	m.goDark()
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
	ops := []lifecycle.MachineOperation{lifecycle.SetMachinePhase{To: api.MachineReady}}
	if change, err := decision.ApplyMachine(&api.MachineIntent{Name: "n1", UID: "u1"}, record, ops, time.Now()); err == nil {
		t.Errorf("from off to ready: %+v", change.Record)
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

func TestAnEnvironmentThatIsNotThereIsRefusedInWords(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "nonesuch", false)
	m.want(api.MachineEnrolled)
	if m.record.Message != `can't boot "nonesuch": there is no such environment` || m.record.DoneRequest != 1 {
		t.Errorf("message %q, done %d", m.record.Message, m.record.DoneRequest)
	}
}

// Whatever is asked, seen and missed in whatever order: the table holds, generations only grow, plans come to rest, nothing boots that is
// not meant to, no machine is off by an observation that is older than the order, or unknown, and no boot has lost its power while the machine
// was heard of.
func TestMachinesKeepTheirRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		generation := int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if m.gone {
				return
			}
			before := m.record.Phase
			switch rapid.IntRange(0, 13).Draw(t, "step") {
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
				m.reading(api.PowerUnknown)
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
					m.intent.RemoveRequestedAt, m.intent.RemoveForce = &at, rapid.Bool().Draw(t, "by force")
					m.settle()
				}
			case 12:
				m.reading(api.PowerOff) // right or wrong
				m.settle()
			case 13:
				if m.record.Boot != nil {
					m.heard()
				}
			}
			if m.gone {
				return
			}
			if m.record.Generation < generation {
				t.Fatalf("generation %d after %d", m.record.Generation, generation)
			}
			if before != api.MachineOff && m.record.Phase == api.MachineOff && m.in.Power.State != api.PowerOff {
				t.Fatalf("from %q to off while its power is %q", before, m.in.Power.State)
			}
			if m.record.Generation > generation && strings.Contains(m.record.Message, "power went off") && before != api.MachineReady &&
				(m.in.Agent.Connected || m.in.Power.State != api.PowerOff || m.in.Power.ObservedAt.Sub(m.in.Boot.LastHeard) < 15*time.Second) {
				t.Fatalf("it boots again for lost power, read as %q %s after its last word, its agent connected: %v",
					m.in.Power.State, m.in.Power.ObservedAt.Sub(m.in.Boot.LastHeard), m.in.Agent.Connected)
			}
			generation = m.record.Generation
			if lifecycle.MayBoot(m.record) && m.record.Boot == nil {
				t.Fatal("it may boot nothing")
			}
		}
	})
}
