package bootapi_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/state"
)

// cleaning gives the machine a boot that cleans, decided as said.
func (s *site) cleaning(generation int64, decided *api.MachineClean) {
	s.t.Helper()
	s.synced()
	m := s.cache.View().Machine("n1")
	record := *m.Record
	record.Phase, record.Generation, record.Cleaning = api.MachineCleaning, generation, decided
	record.Boot = &api.Boot{Generation: generation, Purpose: api.BootClean, Environment: "inspect", Digest: string(s.digest)}
	hardware := &api.Hardware{Disks: []api.Disk{{Name: "sda", Serial: "S1"}}, FirmwareVariables: []string{"Setup-x"}}
	revision, err := s.leader.CommitMachine(s.t.Context(), m, state.MachineWrite{Record: record, Hardware: hardware})
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.cache.WaitRevision(s.t.Context(), revision); err != nil {
		s.t.Fatal(err)
	}
}

func TestABootThatCleansGetsItsOrderAndReports(t *testing.T) {
	s := newSite(t)
	s.machine(api.MachineOff, api.BootEnvironment)
	s.cleaning(4, &api.MachineClean{Generation: 4, DryRun: true, WasOff: true})
	w, status, detail := s.hello(s.claims(4, api.BootClean), "n")
	if status != http.StatusOK {
		t.Fatal(detail)
	}
	if o := w.Clean; o == nil || !o.DryRun || !o.WasOff || len(o.Disks) != 1 || len(o.Variables) != 1 || w.Agent != nil {
		t.Fatalf("the order is %+v, the agent %+v", w.Clean, w.Agent)
	}
	steps := []api.CleanStep{{Kind: api.CleanDisk, Target: "sda\x1b", State: api.CleanRunning, Tried: []string{"a\nb"}}}
	report := boot.CleanReport{Steps: steps, Bytes: 5, TotalBytes: 10, ExpectSeconds: 1e12}
	if told, _, detail := post[boot.Instruction](s, boot.CleanPath, w.Session, report); told.Do != "continue" {
		t.Errorf("told to %q %s", told.Do, detail)
	}
	seen := s.heard.Seen("u1").Clean
	if seen == nil || seen.Bytes != 5 || seen.Done || seen.Expect < 24*time.Hour || seen.Expect > 100*24*time.Hour || seen.Steps[0].Target != "sda " || seen.Steps[0].Tried[0] != "a b" {
		t.Fatalf("heard %+v", seen)
	}
	first := seen.ProgressAt
	s.now = s.now.Add(time.Minute)
	post[boot.Instruction](s, boot.CleanPath, w.Session, report)
	if at := s.heard.Seen("u1").Clean.ProgressAt; !at.Equal(first) {
		t.Errorf("the same report is progress, %s after the first", at.Sub(first))
	}
	report.Bytes = 6
	post[boot.Instruction](s, boot.CleanPath, w.Session, report)
	if at := s.heard.Seen("u1").Clean.ProgressAt; !at.Equal(first.Add(time.Minute)) {
		t.Error("one more byte is no progress")
	}
	report.Done = true
	if told, _, _ := post[boot.Instruction](s, boot.CleanPath, w.Session, report); told.Do != "wait" {
		t.Errorf("after its end it is told to %q", told.Do)
	}
	report.Done, report.Steps = false, nil
	post[boot.Instruction](s, boot.CleanPath, w.Session, report)
	if seen := s.heard.Seen("u1").Clean; !seen.Done || len(seen.Steps) != 1 {
		t.Error("a report that came late undoes the end")
	}
	s.phase(api.MachineStopping, api.BootClean, 4)
	if told, _, _ := post[boot.Instruction](s, boot.CleanPath, w.Session, report); told.Do != "poweroff" {
		t.Errorf("told to %q by a leader that stops it", told.Do)
	}
}

func TestWithoutAnOrderOfThisBootNothingIsCleaned(t *testing.T) {
	for name, decided := range map[string]*api.MachineClean{"none": nil, "of an earlier boot": {Generation: 3}} {
		s := newSite(t)
		s.machine(api.MachineOff, api.BootEnvironment)
		s.cleaning(4, decided)
		if w, status, _ := s.hello(s.claims(4, api.BootClean), "n"); status == http.StatusOK {
			t.Errorf("%s: the machine is welcome with the order %+v", name, w.Clean)
		}
	}
}

func TestOnlyABootThatCleansReportsACleaning(t *testing.T) {
	s := newSite(t)
	s.machine(api.MachineInspecting, api.BootInspect)
	w, _, _ := s.hello(s.claims(3, api.BootInspect), "n")
	report := boot.CleanReport{Done: true, Steps: []api.CleanStep{{State: api.CleanDone}}}
	if _, status, _ := post[boot.Instruction](s, boot.CleanPath, w.Session, report); status != http.StatusForbidden || s.heard.Seen("u1").Clean != nil {
		t.Errorf("an inspection that reports a cleaning got %d", status)
	}
	s.cleaning(5, &api.MachineClean{Generation: 5})
	w, _, _ = s.hello(s.claims(5, api.BootClean), "m")
	for name, steps := range map[string][]api.CleanStep{
		"too many steps": make([]api.CleanStep, 513),
		"too large":      {{Message: strings.Repeat("x", 256<<10)}},
	} {
		if _, status, _ := post[boot.Instruction](s, boot.CleanPath, w.Session, boot.CleanReport{Steps: steps}); status < 400 {
			t.Errorf("%s: %d", name, status)
		}
	}
	if _, status, _ := post[boot.Instruction](s, boot.CleanPath, "forged", report); status != http.StatusUnauthorized {
		t.Errorf("a forged session got %d", status)
	}
}
