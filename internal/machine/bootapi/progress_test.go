package bootapi_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/state"
)

func TestTheLastStageIsToldUntilItIsWrittenDown(t *testing.T) {
	s := newSite(t)
	s.machine(api.MachineBooting, api.BootEnvironment)
	w, status, detail := s.hello(s.claims(3, api.BootEnvironment), "n")
	if status != http.StatusOK {
		t.Fatal(detail)
	}
	ready := boot.StageReport{Stage: api.StageReady, RootBytes: 900, PeerBytes: 400, Local: true}
	if told, _, _ := post[boot.Instruction](s, boot.StagePath, w.Session, ready); told.Do != "wait" || told.RetrySeconds <= 0 {
		t.Errorf("before the record has it the machine is told %+v", told)
	}
	if seen := s.heard.Seen("u1"); !seen.Local || seen.RootBytes != 900 || seen.PeerBytes != 400 {
		t.Errorf("heard %+v; want 400 of 900 bytes from other machines", seen)
	}
	s.synced()
	revision, err := s.leader.CommitMachine(t.Context(), s.cache.View().Machine("n1"), state.MachineWrite{Record: api.MachineRecord{
		Name: "n1", UID: "u1", Phase: api.MachineReady, Generation: 3, Boot: &api.Boot{Generation: 3, Purpose: api.BootEnvironment, Local: true},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.cache.WaitRevision(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	if told, _, _ := post[boot.Instruction](s, boot.StagePath, w.Session, ready); told.Do != "continue" {
		t.Errorf("once the record has it the machine is told %+v", told)
	}
}

func TestStagesThatAServerTookWithItAreToldAgain(t *testing.T) {
	s := newSite(t)
	s.machine(api.MachineBooting, api.BootEnvironment)
	w, status, detail := s.hello(s.claims(3, api.BootEnvironment), "n")
	if status != http.StatusOK {
		t.Fatal(detail)
	}
	post[boot.Instruction](s, boot.StagePath, w.Session, boot.StageReport{
		Stage: api.StageAgent, AgoSeconds: 1, ReadBytes: 700, Earlier: []boot.EarlierStage{
			{Stage: api.StageKernel, AgoSeconds: 20}, {Stage: api.StageRoot, AgoSeconds: 10}, {Stage: api.StageReady, AgoSeconds: 5}, {Stage: "forged"},
		},
	})
	seen := s.heard.Seen("u1")
	var got []string
	for _, stage := range seen.Stages {
		got = append(got, fmt.Sprintf("%s %.0f", stage.Stage, s.now.Sub(stage.At).Seconds()))
	}
	if want := []string{"kernel 0", "root 10"}; !slices.Equal(got, want) || seen.ReadyBytes != 700 { // it said hello just now
		t.Errorf("heard %v and %d bytes, want %v and 700", got, seen.ReadyBytes, want)
	}
}

func TestWhatAMachineSharesIsTakenInItsBootOnly(t *testing.T) {
	s := newSite(t)
	s.machine(api.MachineBooting, api.BootEnvironment)
	w, status, detail := s.hello(s.claims(3, api.BootEnvironment), "n")
	if status != http.StatusOK {
		t.Fatal(detail)
	}
	good := boot.Sharing{Shares: []boot.Share{{Digest: s.digest, Port: 4000}}}
	for name, c := range map[string]struct {
		session string
		sharing boot.Sharing
		want    int
	}{
		"its own":      {w.Session, good, http.StatusOK},
		"no port":      {w.Session, boot.Sharing{Shares: []boot.Share{{Digest: s.digest}}}, http.StatusBadRequest},
		"no digest":    {w.Session, boot.Sharing{Shares: []boot.Share{{Digest: "x", Port: 4000}}}, http.StatusBadRequest},
		"far too many": {w.Session, boot.Sharing{Shares: slices.Repeat(good.Shares, 100)}, http.StatusBadRequest},
		"forged":       {"forged", good, http.StatusUnauthorized},
	} {
		if _, status, detail := post[boot.Neighbours](s, boot.SharePath, c.session, c.sharing); status != c.want {
			t.Errorf("%s: %d %s, want %d", name, status, detail, c.want)
		}
	}
	s.phase(api.MachineBooting, api.BootEnvironment, 4)
	if _, status, _ := post[boot.Neighbours](s, boot.SharePath, w.Session, good); status != http.StatusGone {
		t.Errorf("after its boot ended: %d", status)
	}
}

func TestAStrangerMayTellWhatItIsAndNothingElse(t *testing.T) {
	s := newSite(t)
	claims := boot.TokenClaims{MAC: mac, Purpose: api.BootEnroll, Port: eth, ExpiresAt: s.now.Add(time.Hour)}
	w, status, detail := s.hello(claims, "n")
	if status != http.StatusOK {
		t.Fatal(detail)
	}
	if w.Name != "" || w.Agent != nil || w.RootPasswordHash != "" || len(w.AuthorizedKeys) != 0 {
		t.Errorf("a stranger got %+v", w)
	}
	told, _, _ := post[boot.Instruction](s, boot.ReportPath, w.Session, boot.Report{Hardware: api.Hardware{Serial: "S1", EnrollmentToken: "tok"}})
	if told.Do != "wait" || !strings.Contains(told.Message, "nearmetal node enroll") {
		t.Errorf("told %+v", told)
	}
	s.synced()
	c := s.cache.View().Candidate(mac)
	if c == nil || c.Hardware.Serial != "S1" || c.Hardware.EnrollmentToken != "" {
		t.Errorf("candidate %+v", c)
	}
	if list := s.heard.Strangers(); len(list) != 1 || list[0].Token != "tok" {
		t.Errorf("strangers %+v", list)
	}
	s.machine(api.MachineInspecting, api.BootInspect)
	if told, _, _ = post[boot.Instruction](s, boot.ReportPath, w.Session, boot.Report{}); told.Do != "reboot" {
		t.Errorf("once it is known and to be inspected it is told to %q", told.Do)
	}
	if _, status, detail := s.hello(claims, "n"); status != http.StatusGone {
		t.Errorf("a known machine is welcomed as a stranger: %d %s", status, detail)
	}
}
