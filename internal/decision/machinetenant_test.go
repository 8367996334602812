package decision_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// given is a machine that was inspected and is off, and then given to a member.
func given(t *testing.T) *machine {
	t.Helper()
	m := resting(t)
	m.in.Tenant = &lifecycle.TenantSeen{Assignment: "a.1", Cluster: "c1", Environment: "debian-mpi", Digest: "sha256:placed"}
	m.settle()
	return m
}

// released lets the member go.
func (m *machine) released() {
	released := *m.in.Tenant
	released.Released = true
	m.in.Tenant = &released
	m.settle()
}

func (m *machine) wantTenant(assignment string) {
	m.t.Helper()
	got := ""
	if m.record.Tenant != nil {
		got = m.record.Tenant.Assignment
	}
	if got != assignment {
		m.t.Fatalf("the machine's tenant is %q, want %q; it is %s: %s", got, assignment, m.record.Phase, m.record.Message)
	}
}

func TestAMachineBootsForTheMemberThatGetsAllOfIt(t *testing.T) {
	m := given(t)
	m.want(api.MachineBooting)
	b := m.record.Boot
	if b.Purpose != api.BootMember || b.Member != "a.1" || b.Environment != "debian-mpi" || b.Digest != "sha256:placed" {
		t.Errorf("it boots %+v, want the image that the member was placed with", b)
	}
	m.wantTenant("a.1")
	m.bootUp()
	m.want(api.MachineReady)
	m.request(api.PowerActionOn, "rescue", false)
	m.want(api.MachineReady)
	if m.record.Boot.Member != "a.1" {
		t.Errorf("an operator's request took the machine from its member: %+v", m.record.Boot)
	}
}

func TestAMachineGoesOffWhenItsMemberIsReleasedAndIsNobodysOnceItIsClean(t *testing.T) {
	m := given(t)
	m.bootUp()
	m.released()
	m.want(api.MachineStopping)
	m.wantTenant("a.1")
	m.goDark()
	m.wantCleaned()
}

func TestAMachineThatBootsForAMemberIsPoweredOffByForceOnly(t *testing.T) {
	for _, action := range []api.PowerAction{api.PowerActionOff, api.PowerActionCycle} {
		m := given(t)
		m.request(action, "", false)
		m.want(api.MachineBooting)
		if m.record.Boot.Member != "a.1" || !strings.Contains(m.record.Message, "use --force") {
			t.Errorf("%s: it boots %+v and says %q", action, m.record.Boot, m.record.Message)
		}
		m.request(action, "", true)
		m.want(api.MachineStopping)
	}
}

// It is a node when a member gets all of it, and does not go off for that.
func TestAMemberWhoseMachineCantBeStoppedForItIsReplaced(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "debian-mpi", false)
	m.bootUp()
	m.in.Tenant = &lifecycle.TenantSeen{Assignment: "a.1", Cluster: "c1", Environment: "debian-mpi", Digest: "sha256:placed"}
	m.settle()
	m.want(api.MachineStopping)
	if o, told := lifecycle.MemberOnMachine(m.record, "a.1"); !told || o.Phase != api.MemberPreparing {
		t.Errorf("while its machine stops the member is %+v", o)
	}
	m.after(m.in.Deadlines.Stop)
	m.settle()
	m.want(api.MachineFailed)
	if o, told := lifecycle.MemberOnMachine(m.record, "a.1"); !told || o.Phase != api.MemberFailed || !strings.Contains(o.Message, "still not off") {
		t.Errorf("when its machine can't be stopped the member is %+v", o)
	}
}

func TestAMachineThatIsToBeRemovedIsCleanedAfterItsMemberFirst(t *testing.T) {
	m := given(t)
	m.bootUp()
	m.in.InUse = "it runs a member of cluster c1" // until it is clean, which the provisioner must prove
	m.remove(false)
	m.want(api.MachineReady)
	m.released()
	m.want(api.MachineStopping)
	m.goDark()
	m.want(api.MachineCleaning)
	m.carryOut()
	m.settle()
	m.want(api.MachineCleaning)
	m.in.InUse = ""
	m.cleaned(lifecycle.CleanSeen{Done: true, Steps: []api.CleanStep{step(api.CleanDone)}})
	m.wantTenant("")
	m.goDark()
	m.goDark() // which is looked at once more before a machine is forgotten
	if !m.gone {
		t.Errorf("it is %s: %s", m.record.Phase, m.record.Message)
	}
}

func TestAMachineIsRemovedUncleanedByForceOnlyOrIfItCantBeCleaned(t *testing.T) {
	m := given(t)
	m.bootUp()
	m.remove(true)
	m.want(api.MachineRemoving)

	m = given(t)
	m.bootUp()
	m.released()
	m.goDark()
	m.remove(false)
	m.want(api.MachineCleaning)
	m.carryOut()
	m.cleaned(lifecycle.CleanSeen{Done: true, Steps: []api.CleanStep{step(api.CleanFailed)}})
	if m.record.Phase != api.MachineRemoving && !m.gone {
		t.Errorf("a machine that can't be cleaned is %s: %s", m.record.Phase, m.record.Message)
	}
}

// wantCleaned follows a machine that is off after its member: it is cleaned, and nobody's.
func (m *machine) wantCleaned() {
	m.t.Helper()
	m.want(api.MachineCleaning)
	m.wantTenant("a.1")
	if b := m.record.Boot; b.Purpose != api.BootClean || b.Member != "" {
		m.t.Errorf("it boots %+v", b)
	}
	m.carryOut()
	m.cleaned(lifecycle.CleanSeen{Done: true, Steps: []api.CleanStep{step(api.CleanDone)}})
	m.wantTenant("")
	m.goDark()
	m.want(api.MachineOff)
}

func TestAMachineThatCannotBeCleanedAfterItsMemberIsInQuarantineUntilSomebodyAnswersForIt(t *testing.T) {
	m := given(t)
	m.bootUp()
	m.released()
	m.goDark()
	m.want(api.MachineCleaning)
	m.carryOut()
	m.cleaned(lifecycle.CleanSeen{Done: true, Steps: []api.CleanStep{step(api.CleanFailed)}})
	m.want(api.MachineFailed)
	m.wantTenant("a.1")
	if m.record.Quarantine == nil {
		t.Error("it is in no quarantine")
	}
	m.after(time.Hour)
	m.settle()
	m.wantTenant("a.1")
	m.in.Tenant = nil // its cluster is forgotten
	m.hold(api.HoldRelease, "")
	m.wantTenant("")
	if m.record.Quarantine != nil {
		t.Errorf("released, it is in quarantine: %+v", m.record.Quarantine)
	}
}

// While nothing can clean machines, one waits, says why, and makes no work.
func TestAMachineWaitsForTheEnvironmentThatCleansIt(t *testing.T) {
	m := given(t)
	m.bootUp()
	m.released()
	delete(m.digests, lifecycle.CleanEnvironment)
	m.goDark()
	m.want(api.MachineOff)
	m.wantTenant("a.1")
	if !strings.Contains(m.record.Message, "can't be cleaned") {
		t.Errorf("it says %q", m.record.Message)
	}
	m.digests[lifecycle.CleanEnvironment] = "sha256:i"
	m.settle()
	m.wantCleaned()
}

func TestAMachineWhoseMemberIsReleasedAmidItsBootGoesOffAtOnce(t *testing.T) {
	m := given(t)
	m.carryOut()
	m.released()
	m.want(api.MachineStopping)
	m.wantOrder(lifecycle.OrderCut)
	m.carryOut()
	m.wantCleaned()
}

func TestAMemberWhoseMachineRestartsIsLostAndTheMachineIsNotBootedForItAgain(t *testing.T) {
	m := given(t)
	m.bootUp()
	generation := m.record.Boot.Generation
	m.after(time.Minute)
	m.in.Agent.Connected = false
	m.in.Boot.Restarted = m.in.Now
	m.after(time.Second)
	m.settle()
	m.want(api.MachineFailed)
	if o, told := lifecycle.MemberOnMachine(m.record, "a.1"); !told || o.Phase != api.MemberFailed || !strings.Contains(o.Message, "restarted") {
		t.Errorf("of its member is said: %+v, %v", o, told)
	}
	if m.record.Boot.Generation != generation {
		t.Error("it boots again")
	}
	m.released()
	m.want(api.MachineStopping)
	m.wantOrder(lifecycle.OrderCut)
	m.carryOut()
	m.wantCleaned()
}

func TestAMachineThatLostItsPowerUnderAMemberWaitsUntilTheMemberIsReleased(t *testing.T) {
	m := given(t)
	m.bootUp()
	m.in.Agent.Connected = false
	m.reads(time.Second, api.PowerOff)
	m.reads(time.Minute, api.PowerOff)
	m.want(api.MachineOff)
	m.wantTenant("a.1")
	if o, told := lifecycle.MemberOnMachine(m.record, "a.1"); !told || o.Phase != api.MemberFailed {
		t.Errorf("of its member is said: %+v, %v", o, told)
	}
	m.request(api.PowerActionOn, "rescue", true)
	m.want(api.MachineOff)
	m.wantTenant("a.1")
	m.released()
	m.wantCleaned()
}

// An operator who takes a machine off its member by force gets it once it is clean, and not before.
func TestAMachineThatIsNotCleanBootsNothingElse(t *testing.T) {
	m := given(t)
	m.bootUp()
	m.request(api.PowerActionOff, "", true)
	m.want(api.MachineStopping)
	m.carryOut()
	m.want(api.MachineOff)
	m.request(api.PowerActionOn, "rescue", true)
	m.want(api.MachineOff)
	if !slices.Contains(m.events, lifecycle.EventMachineRefused) {
		t.Errorf("no event says why: %v", m.events)
	}
	m.wantTenant("a.1")
}

func TestAMachineThatDoesNotBootForItsMemberIsTriedOnceMore(t *testing.T) {
	m := given(t)
	first := m.record.Boot.Generation
	m.carryOut()
	m.after(m.in.Deadlines.Boot)
	m.settle()
	m.want(api.MachineBooting)
	if b := m.record.Boot; b.Generation == first || b.Member != "a.1" || m.record.Attempt != 2 {
		t.Errorf("the second attempt is %+v, attempt %d", b, m.record.Attempt)
	}
	if o, told := lifecycle.MemberOnMachine(m.record, "a.1"); !told || o.Phase != api.MemberPreparing || !strings.Contains(o.Message, "attempt 2") {
		t.Errorf("of its member is said: %+v, %v", o, told)
	}
	m.carryOut()
	m.after(m.in.Deadlines.Boot)
	m.settle()
	m.want(api.MachineFailed)
	m.released()
	m.want(api.MachineStopping)
}

func TestANodeThatIsOnGoesOffForTheMemberThatGetsAllOfIt(t *testing.T) {
	m := newMachine(t)
	m.request(api.PowerActionOn, "rescue", false)
	m.bootUp()
	m.want(api.MachineReady)
	m.in.Tenant = &lifecycle.TenantSeen{Assignment: "a.1", Cluster: "c1", Environment: "debian-mpi", Digest: "sha256:placed"}
	m.settle()
	m.want(api.MachineStopping)
	m.goDark()
	m.want(api.MachineBooting)
	if m.record.Boot.Member != "a.1" {
		t.Errorf("it boots %+v", m.record.Boot)
	}
}

// An operator may quarantine a machine in the moment in which it is given to a member.
func TestAMachineInQuarantineDoesNotBootForAMember(t *testing.T) {
	m := resting(t)
	m.hold(api.HoldQuarantine, "its fan is loud")
	m.in.Tenant = &lifecycle.TenantSeen{Assignment: "a.1", Cluster: "c1", Environment: "debian-mpi", Digest: "sha256:placed"}
	m.settle()
	m.want(api.MachineOff)
	m.wantTenant("")
	if o, told := lifecycle.MemberOnMachine(m.record, "a.1"); !told || o.Phase != api.MemberFailed || !strings.Contains(o.Message, "its fan is loud") {
		t.Errorf("of its member is said: %+v, %v", o, told)
	}
}

// Nor does one that an operator cycles by force in the middle of its member's boot.
func TestAMachineThatIsCycledUnderItsMemberBootsNothingElse(t *testing.T) {
	m := given(t)
	m.carryOut()
	m.request(api.PowerActionCycle, "rescue", true)
	m.want(api.MachineStopping)
	m.carryOut()
	m.want(api.MachineOff)
	if m.record.Boot.Environment == "rescue" || !strings.Contains(m.record.Message, "has not been cleaned") {
		t.Errorf("it boots %+v, and says %q", m.record.Boot, m.record.Message)
	}
	m.wantTenant("a.1")
}
