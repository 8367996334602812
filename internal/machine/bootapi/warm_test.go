package bootapi_test

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/state"
)

// boots makes n1 boot for a member in generation 4.
func (s *site) boots(b api.Boot) {
	s.t.Helper()
	s.synced()
	b.Generation, b.Purpose, b.Environment, b.Digest, b.Member = 4, api.BootMember, "debian-mpi", string(s.digest), "c1.m-0.1"
	revision, err := s.leader.CommitMachine(s.t.Context(), s.cache.View().Machine("n1"), state.MachineWrite{Record: api.MachineRecord{
		Name: "n1", UID: "u1", Phase: api.MachineBooting, Generation: 4, Boot: &b,
	}})
	if err == nil {
		_, err = s.cache.WaitRevision(s.t.Context(), revision)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func TestAMachineThatWaitsInItsBootAgentIsToldWhatItBootsNext(t *testing.T) {
	next := &boot.Next{Arguments: "nearmetal.token=t"}
	for name, tc := range map[string]struct {
		boot     api.Boot
		age      time.Duration
		next     *boot.Next
		do       string
		hasStart bool
	}{
		"from its boot agent":                       {api.Boot{Warm: true}, 0, next, "reboot", true},
		"network boot does not know of it yet":      {api.Boot{Warm: true}, 9 * time.Second, nil, "wait", false},
		"network boot does not know of it for long": {api.Boot{Warm: true}, 10 * time.Second, nil, "reboot", false},
		"its power is cycled":                       {api.Boot{}, 0, next, "reboot", false},
		"it has begun that boot already":            {api.Boot{Warm: true, RedeemedAt: &time.Time{}}, 0, next, "reboot", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.machine(api.MachineInspecting, api.BootInspect)
			w, _, detail := s.hello(s.claims(3, api.BootInspect), "n")
			if detail != "" {
				t.Fatal(detail)
			}
			s.phase(api.MachineWarm, api.BootInspect, 3)
			if told, _, _ := post[boot.Instruction](s, boot.ReportPath, w.Session, boot.Report{}); told.Do != "wait" || told.Next != nil {
				t.Errorf("while nobody has it, it is told %+v", told)
			}
			tc.boot.DecidedAt = s.now.Add(-tc.age)
			s.boots(tc.boot)
			if tc.next != nil {
				s.next = map[int64]*boot.Next{4: tc.next}
			}
			told, _, _ := post[boot.Instruction](s, boot.ReportPath, w.Session, boot.Report{})
			if told.Do != tc.do || tc.hasStart != (told.Next != nil) {
				t.Errorf("it is told %+v", told)
			}
		})
	}
}

// A machine whose cable was out asks again once it is back; that may be what somebody waits for who wanted it off.
func TestTheLeaderHearsOfAMachineThatWasSilentForLong(t *testing.T) {
	s := newSite(t)
	s.machine(api.MachineInspecting, api.BootInspect)
	w, _, _ := s.hello(s.claims(3, api.BootInspect), "n")
	news := func() bool {
		select {
		case <-s.heard.Changed():
			return true
		default:
			return false
		}
	}
	asks := func() {
		if _, _, detail := post[boot.Instruction](s, boot.ReportPath, w.Session, boot.Report{}); detail != "" {
			t.Fatal(detail)
		}
	}
	asks()
	news()
	s.now = s.now.Add(30 * time.Second)
	if asks(); news() {
		t.Error("each time it asks, the leader is woken")
	}
	s.now = s.now.Add(61 * time.Second)
	if asks(); !news() {
		t.Error("the leader does not hear of it")
	}
}

func TestWhatAMachineIsMadeOfIsKnownOfItsLastBoot(t *testing.T) {
	s := newSite(t)
	s.machine(api.MachineInspecting, api.BootInspect)
	w, _, _ := s.hello(s.claims(3, api.BootInspect), "n")
	if hw := s.heard.Hardware("u1", 3); hw != nil {
		t.Errorf("before it has said anything, it is made of %+v", hw)
	}
	if _, _, detail := post[boot.Instruction](s, boot.ReportPath, w.Session, boot.Report{Hardware: api.Hardware{FirmwareVersion: "1.0"}}); detail != "" {
		t.Fatal(detail)
	}
	if hw := s.heard.Hardware("u1", 3); hw == nil || hw.FirmwareVersion != "1.0" {
		t.Errorf("it is made of %+v", hw)
	}
	if hw := s.heard.Hardware("u1", 4); hw != nil {
		t.Errorf("in a boot that has said nothing yet, it is made of %+v", hw)
	}
}
