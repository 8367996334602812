package decision_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

var baseline = api.BMCBaseline{Kind: api.PowerIPMI, Address: "bmc", Accounts: []api.BMCAccount{{ID: "2", Name: "site", Enabled: true}}}

// toLock is a machine with a BMC that a member gets.
func toLock(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t)
	m.intent.Spec.Power = api.PowerControl{Kind: api.PowerIPMI, Address: "bmc", User: "site"}
	m.intent.Sealed = []byte("sealed by an operator")
	m.in.NewPassword = func() []byte { return []byte("sealed by the site") }
	m.inspect()
	m.report()
	m.goDark()
	m.in.Tenant = &lifecycle.TenantSeen{Assignment: "a.1", Cluster: "c1", Environment: "debian-mpi", Digest: "sha256:placed"}
	m.settle()
	return m
}

// does is the provisioner that has done the duty.
func (m *machine) does(seen lifecycle.BMCSeen) {
	m.t.Helper()
	if m.record.BMC == nil || m.record.BMC.Duty == nil {
		m.t.Fatalf("there is no duty: %+v", m.record.BMC)
	}
	seen.Number = m.record.BMC.Duty.Number
	m.in.BMC = seen
	m.settle()
}

// locked is a machine whose BMC was closed, as far as it could be, and that a member has.
func locked(t *testing.T, host api.HostInterface) *machine {
	t.Helper()
	m := toLock(t)
	m.does(lifecycle.BMCSeen{Done: true, Host: host, HostReason: "reason", Baseline: &baseline})
	m.want(api.MachineBooting)
	m.bootUp()
	m.want(api.MachineReady)
	return m
}

// toRenew is one whose member is gone, and that has been cleaned but for its BMC.
func toRenew(t *testing.T, host api.HostInterface) *machine {
	t.Helper()
	m := locked(t, host)
	m.released()
	m.goDark()
	m.carryOut()
	m.cleaned(lifecycle.CleanSeen{Done: true, Steps: []api.CleanStep{step(api.CleanDone)}})
	m.want(api.MachineCleaning)
	m.wantTenant("a.1")
	return m
}

func TestAMachineBootsForAMemberOnceItsBMCIsClosed(t *testing.T) {
	m := toLock(t)
	m.want(api.MachineOff)
	if d := m.record.BMC.Duty; d == nil || d.Kind != api.BMCLock || d.For != "a.1" {
		t.Fatalf("its duty is %+v", d)
	}
	if o, told := lifecycle.MemberOnMachine(m.record, "a.1"); !told || o.Phase != api.MemberPreparing {
		t.Errorf("meanwhile the member is %+v", o)
	}
	m.does(lifecycle.BMCSeen{Problem: "busy"})
	m.want(api.MachineOff)
	m.does(lifecycle.BMCSeen{Done: true, Host: api.HostClosed, Baseline: &baseline})
	m.want(api.MachineBooting)
	if b := m.record.BMC; b.Host != api.HostClosed || b.Baseline == nil || b.LockedFor != "a.1" || b.Duty != nil {
		t.Errorf("its BMC is %+v", b)
	}
}

func TestADutyThatWasDoneBeforeIsNotTakenForThisOne(t *testing.T) {
	m := toLock(t)
	m.in.BMC = lifecycle.BMCSeen{Number: m.record.BMC.Duty.Number - 1, Done: true, Host: api.HostClosed}
	m.settle()
	m.want(api.MachineOff)
}

func TestAMachineWhoseBMCCanNotBeReachedIsGivenToNobody(t *testing.T) {
	m := toLock(t)
	m.does(lifecycle.BMCSeen{Problem: "the BMC does not answer"})
	m.after(m.in.Deadlines.Boot)
	m.settle()
	m.want(api.MachineOff)
	if o, told := lifecycle.MemberOnMachine(m.record, "a.1"); !told || o.Phase != api.MemberFailed || !strings.Contains(o.Message, "does not answer") {
		t.Errorf("the member is %+v", o)
	}
}

func TestAnInterfaceThatCanNotBeClosedIsAnEventAndIsWatched(t *testing.T) {
	m := locked(t, api.HostFixed)
	if !slices.Contains(m.events, lifecycle.EventMachineBMCOpen) || !lifecycle.WatchesBMC(m.record) {
		t.Errorf("events %v, watched %v", m.events, lifecycle.WatchesBMC(m.record))
	}
	seen := lifecycle.BMCSeen{Number: m.record.BMC.Duties, Drift: "user 3 was added", WatchedAt: m.in.Now}
	m.in.BMC = seen
	m.settle()
	if m.record.BMC.Drift != seen.Drift || !strings.Contains(m.told[len(m.told)-1], "user 3 was added") {
		t.Errorf("its drift is %q, the last event %q", m.record.BMC.Drift, m.told[len(m.told)-1])
	}
	events := len(m.events)
	m.settle()
	if len(m.events) != events {
		t.Errorf("the same change has another event: %v", m.events)
	}
}

func TestAMachineIsFreeOnceItsBMCWasRenewed(t *testing.T) {
	m := toRenew(t, api.HostFixed)
	if d := m.record.BMC.Duty; d == nil || d.Kind != api.BMCRenew || string(m.record.BMC.Next) != "sealed by the site" {
		t.Fatalf("its BMC is %+v", m.record.BMC)
	}
	m.does(lifecycle.BMCSeen{Done: true, Host: api.HostFixed, Baseline: &baseline, Rotated: true, Restored: "user 3 was added"})
	m.want(api.MachineStopping)
	m.wantTenant("")
	b := m.record.BMC
	if sealed, next := lifecycle.BMCPassword(&m.intent, m.record); string(sealed) != "sealed by the site" || next != nil || b.RotatedAt == nil {
		t.Errorf("its password is %q, or %q; its BMC is %+v", sealed, next, b)
	}
	if !slices.Contains(m.events, lifecycle.EventMachineBMCRestored) {
		t.Errorf("events %v", m.events)
	}
	m.intent.Sealed = []byte("entered by an operator")
	if sealed, _ := lifecycle.BMCPassword(&m.intent, m.record); !bytes.Equal(sealed, m.intent.Sealed) {
		t.Errorf("after an operator entered another one it is %q", sealed)
	}
}

func TestAMachineWhoseBMCCanNotBeSetRightIsQuarantinedUntilItCan(t *testing.T) {
	m := toRenew(t, api.HostFixed)
	m.does(lifecycle.BMCSeen{Problem: "user 2 is now disabled", Final: true})
	m.want(api.MachineFailed)
	m.wantTenant("a.1")
	if q := m.record.Quarantine; q == nil || !strings.Contains(q.Reason, "user 2 is now disabled") {
		t.Fatalf("its quarantine is %+v", q)
	}
	if _, next := lifecycle.BMCPassword(&m.intent, m.record); string(next) != "sealed by the site" {
		t.Errorf("the password that was being set is %q", next)
	}
	m.in.NewPassword = func() []byte { t.Error("another password is made while one is being set"); return nil }
	m.cleanIt(false)
	m.cleaned(lifecycle.CleanSeen{Done: true, Steps: []api.CleanStep{step(api.CleanDone)}})
	m.does(lifecycle.BMCSeen{Done: true, Host: api.HostFixed, Baseline: &baseline, Rotated: true})
	m.wantTenant("")
	if m.record.Quarantine != nil {
		t.Errorf("it is still in quarantine: %+v", m.record.Quarantine)
	}
}

func TestASiteThatLeavesPasswordsAloneSetsNone(t *testing.T) {
	m := locked(t, api.HostClosed)
	m.in.NewPassword = nil
	m.released()
	m.goDark()
	m.carryOut()
	m.cleaned(lifecycle.CleanSeen{Done: true, Steps: []api.CleanStep{step(api.CleanDone)}})
	if m.record.BMC.Next != nil {
		t.Errorf("a password is being set: %q", m.record.BMC.Next)
	}
	m.does(lifecycle.BMCSeen{Done: true, Host: api.HostClosed, Baseline: &baseline})
	m.wantTenant("")
	if sealed, _ := lifecycle.BMCPassword(&m.intent, m.record); !bytes.Equal(sealed, m.intent.Sealed) {
		t.Errorf("its password is %q", sealed)
	}
}

func TestAMachineThatNobodyHadKeepsItsPasswordWhenItIsCleaned(t *testing.T) {
	m := newMachine(t)
	m.intent.Spec.Power = api.PowerControl{Kind: api.PowerIPMI, Address: "bmc"}
	m.cleanIt(false)
	m.cleaned(lifecycle.CleanSeen{Done: true, Steps: []api.CleanStep{step(api.CleanDone)}})
	m.want(api.MachineStopping)
	if m.record.BMC != nil {
		t.Errorf("its BMC is %+v", m.record.BMC)
	}
}
