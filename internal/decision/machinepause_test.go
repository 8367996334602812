package decision_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// pause pauses the member's cluster, with its files saved; resume ends that.
func (m *machine) pause() {
	paused := *m.in.Tenant
	paused.Paused, paused.Files = true, &api.SavedFiles{Digest: "sha256:files", Bytes: 7}
	m.in.Tenant = &paused
	m.settle()
}

func (m *machine) resume() {
	resumed := *m.in.Tenant
	resumed.Paused = false
	m.in.Tenant = &resumed
	m.settle()
}

// paused is a machine that is off because the cluster of its member is paused.
func paused(t *testing.T) *machine {
	t.Helper()
	m := given(t)
	m.bootUp()
	m.pause()
	m.want(api.MachineStopping)
	m.goDark()
	m.want(api.MachineOff)
	return m
}

// wantMember checks what a machine's record tells of its member.
func (m *machine) wantMember(phase api.MemberPhase, words string) {
	m.t.Helper()
	o, told := lifecycle.MemberOnMachine(m.record, "a.1")
	if !told || o.Phase != phase || !strings.Contains(o.Message, words) {
		m.t.Errorf("of the member is said: %+v, %v; want %s and %q", o, told, phase, words)
	}
}

func TestAMachineGoesOffInAPauseAndBootsForTheSameMemberAgain(t *testing.T) {
	m := given(t)
	m.bootUp()
	m.pause()
	m.want(api.MachineStopping)
	if cut := m.record.Stop.CutAt; !cut.After(m.in.Now) {
		t.Errorf("its power is cut at %s, before its agent could power it off", cut)
	}
	m.wantMember(api.MemberStarting, "powering off")
	m.goDark()
	m.want(api.MachineOff)
	m.wantTenant("a.1")
	m.wantMember(api.MemberPaused, "off")
	if !strings.Contains(m.record.Message, "reserved for cluster c1") {
		t.Errorf("it says %q", m.record.Message)
	}
	m.after(30 * 24 * time.Hour) // in a month nothing wakes it, to prove that it boots or to be warm
	m.in.Deadlines.Warm = 1
	m.settle()
	m.want(api.MachineOff)

	m.in.Deadlines.Warm = 0
	before := m.record.Generation
	m.resume()
	m.want(api.MachineBooting)
	b := m.record.Boot
	if b.Purpose != api.BootMember || b.Member != "a.1" || b.Digest != "sha256:placed" || b.Generation <= before {
		t.Errorf("after the pause it boots %+v", b)
	}
	if b.Files == nil || b.Files.Digest != "sha256:files" || m.record.Tenant.Paused {
		t.Errorf("it boots with the files %+v, and its tenant is %+v", b.Files, m.record.Tenant)
	}
	m.after(m.in.Deadlines.Boot)
	m.settle()
	if b = m.record.Boot; m.record.Attempt != 2 || b.Files == nil || b.Files.Digest != "sha256:files" {
		t.Errorf("the second attempt is %d, with the files %+v", m.record.Attempt, b.Files)
	}
	m.bootUp()
	m.want(api.MachineReady)
	m.released()
	m.goDark()
	m.wantCleaned()
}

func TestAMachineInAPauseIsNobodyElses(t *testing.T) {
	for name, ask := range map[string]func(m *machine){
		"to clean it":      func(m *machine) { m.cleanIt(false) },
		"to plan that":     func(m *machine) { m.cleanIt(true) },
		"to power it on":   func(m *machine) { m.request(api.PowerActionOn, "rescue", false) },
		"by force":         func(m *machine) { m.request(api.PowerActionOn, "rescue", true) },
		"to cycle it":      func(m *machine) { m.request(api.PowerActionCycle, "", true) },
		"to inspect it":    func(m *machine) { m.inspect() },
		"to power it off":  func(m *machine) { m.request(api.PowerActionOff, "", false) },
		"to remove it":     func(m *machine) { m.remove(false) },
		"to keep one warm": func(m *machine) { m.in.Deadlines.IdleOff, m.in.Deadlines.Warm = time.Hour, 1; m.settle() },
	} {
		m := paused(t)
		ask(m)
		if m.want(api.MachineOff); m.gone || m.record.Tenant == nil || !m.record.Tenant.Paused {
			t.Errorf("%s: gone: %v, its tenant is %+v", name, m.gone, m.record.Tenant)
		}
		m.wantMember(api.MemberPaused, "off")
		m.resume()
		m.want(api.MachineBooting)
	}
	m := paused(t)
	m.remove(true)
	m.goDark()
	if !m.gone {
		t.Errorf("removed by force it is %s: %s", m.record.Phase, m.record.Message)
	}
}

func TestAMemberWhoseMachineWasOnInItsPauseIsReplaced(t *testing.T) {
	for name, touch := range map[string]func(m *machine){
		"its power is on": func(m *machine) { m.after(time.Minute); m.reading(api.PowerOn); m.settle() },
		"it asks what to boot": func(m *machine) {
			m.after(time.Minute)
			m.in.Boot.Restarted = m.in.Now
			m.settle()
		},
		"it is in quarantine": func(m *machine) { m.hold(api.HoldQuarantine, "its fan is loud") },
	} {
		t.Run(name, func(t *testing.T) {
			m := paused(t)
			touch(m)
			m.wantMember(api.MemberFailed, "")
			m.resume() // before its member is released
			if m.record.Boot.Member == "a.1" && m.record.Phase == api.MachineBooting {
				t.Errorf("it boots for its member again: %+v", m.record.Boot)
			}
		})
	}
	m := paused(t)
	m.after(time.Minute)
	m.reading(api.PowerOn)
	m.settle()
	m.want(api.MachineFailed)
	m.released()
	m.want(api.MachineStopping)
	m.goDark()
	m.wantCleaned()
}

func TestAMachineWhoseClusterEndsInItsPauseIsCleaned(t *testing.T) {
	m := paused(t)
	m.released()
	m.wantCleaned()
}

// It booted for the member before, and not for a pause.
func TestAMachineThatIsOffWithoutAPauseIsNotBootedForItsMemberAgain(t *testing.T) {
	m := given(t)
	m.bootUp()
	m.in.Tenant.Files = &api.SavedFiles{Digest: "sha256:files"}
	m.request(api.PowerActionOff, "", true)
	m.goDark()
	m.want(api.MachineOff)
	m.settle()
	m.want(api.MachineOff)
	m.wantMember(api.MemberFailed, "off")
}
