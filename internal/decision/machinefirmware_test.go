package decision_test

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

const oldFirmware = "its firmware is 1.0, which is not on the firmware list (2.*)"

func TestAMachineWhoseFirmwareIsNotOnTheListIsQuarantinedUntilItIs(t *testing.T) {
	m := resting(t)
	m.in.Deadlines.IdleOff = time.Hour // it does not wait for anybody either
	m.inspect()
	m.in.FirmwareProblem = oldFirmware
	m.carryOut()
	m.report()
	m.want(api.MachineStopping)
	if q := m.record.Quarantine; q == nil || q.Reason != oldFirmware || !q.Firmware || q.By != "" {
		t.Fatalf("its quarantine is %+v", q)
	}
	m.after(time.Minute)
	m.settle()
	m.carryOut()
	m.want(api.MachineOff)
	m.in.Tenant = &lifecycle.TenantSeen{Assignment: "a.1", Cluster: "c1", Environment: "debian-mpi", Digest: "sha256:placed"}
	m.settle()
	m.want(api.MachineOff)
	m.in.Tenant = nil
	m.inspect()
	m.carryOut()
	m.in.FirmwareProblem = ""
	m.report()
	if m.record.Quarantine != nil {
		t.Errorf("with other firmware, it is in quarantine: %+v", m.record.Quarantine)
	}
}

func TestACleaningFindsFirmwareThatATenantHasChanged(t *testing.T) {
	m := given(t)
	m.bootUp()
	m.released()
	m.goDark()
	m.want(api.MachineCleaning)
	m.carryOut()
	m.in.FirmwareProblem = oldFirmware
	m.cleaned(lifecycle.CleanSeen{Done: true, Steps: []api.CleanStep{step(api.CleanDone)}})
	m.wantTenant("")
	m.want(api.MachineStopping)
	if m.record.Quarantine == nil || m.record.Quarantine.Reason != oldFirmware {
		t.Errorf("its quarantine is %+v", m.record.Quarantine)
	}
}

func TestWhatAnOperatorHasQuarantinedStaysSoWhateverItsFirmware(t *testing.T) {
	for _, problem := range []string{"", oldFirmware} {
		m := resting(t)
		m.hold(api.HoldQuarantine, "its fan is loud")
		m.inspect()
		m.in.FirmwareProblem = problem
		m.carryOut()
		m.report()
		if q := m.record.Quarantine; q == nil || q.By == "" || q.Reason != "its fan is loud" {
			t.Errorf("its quarantine is %+v", q)
		}
	}
}
