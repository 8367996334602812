package bootapi_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/bootapi"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/trust"
)

const (
	mac   = "52:54:00:00:00:01"
	other = "52:54:00:00:00:02"
	eth   = "prov0"
)

var secret = bytes.Repeat([]byte{7}, trust.SecretBytes)

// manifests are images by digest.
type manifests map[image.Digest][]byte

func (m manifests) Manifest(d image.Digest) ([]byte, []byte, error) {
	data, ok := m[d]
	if !ok {
		return nil, nil, fs.ErrNotExist
	}
	return data, []byte("signature"), nil
}

// site is a boot API over stored state.
type site struct {
	t       testing.TB
	repo    *state.Repo
	cache   *state.Cache
	leader  *state.Leader
	heard   *bootapi.Heard
	handler http.Handler
	digest  image.Digest
	now     time.Time
	at      string // the MAC that is at the address that requests come from
	next    map[int64]*boot.Next
	// identities counts those that were made.
	identities int
}

func newSite(t testing.TB) *site {
	s := &site{t: t, repo: state.New(memory.New()), now: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), at: mac}
	var err error
	if s.cache, err = s.repo.OpenCache(t.Context()); err != nil {
		t.Fatal(err)
	}
	won, err := s.repo.Store().Campaign(context.WithoutCancel(t.Context()), "server-1")
	if err != nil {
		t.Fatal(err)
	}
	s.leader = s.repo.AsLeader(won)
	m := image.Manifest{Environment: "debian-mpi", Architecture: "x86_64"}
	data, digest, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	s.digest = digest
	s.heard = bootapi.NewHeard(func() time.Time { return s.now })
	server, err := bootapi.New(bootapi.Config{
		Reader: s.cache, Writer: s.repo, Images: manifests{digest: data}, Heard: s.heard, Secrets: trust.Secrets{{Key: secret}}, Identify: s.identify,
		PublicKey: []byte("public"), At: func(netip.Addr) (string, string, bool) { return s.at, eth, s.at != "" }, Peers: func(image.Digest) []string { return nil },
		Next: func(m, port string, generation int64) *boot.Next {
			if m != mac || port != eth {
				t.Errorf("what %s at %s boots was asked for", m, port)
			}
			return s.next[generation]
		},
		AgentBinary: image.Blob{Digest: image.DigestOf([]byte("agent")), SizeBytes: 5}, AgentServer: "10.9.0.1:7700",
		OpenFiles:     memberFiles{"sha256:there": "the files"}.open,
		StrangerImage: func() image.Digest { return digest }, SiteTime: func() time.Time { return s.now }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.handler = server.Handler()
	return s
}

// machine makes the machine n1 in this phase, in boot generation 3.
func (s *site) machine(phase api.MachinePhase, purpose api.BootPurpose) {
	s.t.Helper()
	_, err := s.repo.CreateMachine(s.t.Context(), api.MachineIntent{Name: "n1", UID: "u1", Spec: api.MachineSpec{MACs: []string{mac}}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.phase(phase, purpose, 3)
}

func (s *site) phase(phase api.MachinePhase, purpose api.BootPurpose, generation int64) {
	s.t.Helper()
	s.synced()
	revision, err := s.leader.CommitMachine(s.t.Context(), s.cache.View().Machine("n1"), state.MachineWrite{Record: api.MachineRecord{
		Name: "n1", UID: "u1", Phase: phase, Generation: generation,
		Boot: &api.Boot{Generation: generation, Purpose: purpose, Environment: "debian-mpi", Digest: string(s.digest), Member: memberOf(purpose)},
	}})
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.cache.WaitRevision(s.t.Context(), revision); err != nil {
		s.t.Fatal(err)
	}
}

// memberOf is the assignment that a machine boots for, by the purpose of its boot.
func memberOf(purpose api.BootPurpose) string {
	if purpose == api.BootMember {
		return "c1.m-0.1"
	}
	return ""
}

// synced waits until the cache has all that was written.
func (s *site) synced() {
	s.t.Helper()
	revision, err := s.repo.UpsertCandidate(s.t.Context(), "52:54:00:00:00:ff", func(c *api.Candidate) { c.LastSeenAt = c.LastSeenAt.Add(1) })
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.cache.WaitRevision(s.t.Context(), revision); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) claims(generation int64, purpose api.BootPurpose) boot.TokenClaims {
	return boot.TokenClaims{MAC: mac, Machine: "u1", Generation: generation, Purpose: purpose, Port: eth, ExpiresAt: s.now.Add(time.Hour)}
}

// post sends a message; detail is that of a refusal.
func post[T any](s *site, path, session string, body any) (answer T, status int, detail string) {
	s.t.Helper()
	var data bytes.Buffer
	plain := json.NewEncoder(&data)
	plain.SetEscapeHTML(false) // what is stored is escaped, and longer
	if err := plain.Encode(body); err != nil {
		s.t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, path, &data)
	r.Header.Set("Authorization", "Bearer "+session)
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	if w.Code == http.StatusOK {
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
			s.t.Fatal(err)
		}
		return answer, w.Code, ""
	}
	var problem struct{ Detail string }
	if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil {
		s.t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	return answer, w.Code, problem.Detail
}

func (s *site) hello(claims boot.TokenClaims, nonce string, macs ...string) (boot.Welcome, int, string) {
	s.t.Helper()
	if len(macs) == 0 {
		macs = []string{other, strings.ToUpper(mac)}
	}
	return post[boot.Welcome](s, boot.HelloPath, "", boot.Hello{Token: boot.Seal(secret, claims), Nonce: nonce, MACs: macs, Request: "the request of a key"})
}

// identify makes an identity of another ID each time.
func (s *site) identify(node, request string) (api.NodeIdentity, api.NodeCertificate, error) {
	if request != "the request of a key" {
		return api.NodeIdentity{}, api.NodeCertificate{}, errors.New("the request of a key is missing")
	}
	s.identities++
	id := fmt.Sprint("identity ", s.identities)
	return api.NodeIdentity{Node: node, ID: id, Key: request}, api.NodeCertificate{Certificate: id}, nil
}

func TestABootTokenIsExchangedForAllThatTheBootNeeds(t *testing.T) {
	s := newSite(t)
	s.machine(api.MachineBooting, api.BootEnvironment)
	w, status, detail := s.hello(s.claims(3, api.BootEnvironment), "once")
	if status != http.StatusOK {
		t.Fatal(status, detail)
	}
	if w.Name != "n1" || len(w.Manifest) == 0 || string(w.Signature) != "signature" || w.Agent == nil || w.Agent.Generation != 3 {
		t.Errorf("welcome %+v", w)
	}
	password := bootapi.ConsolePassword(secret, "u1", 3)
	if err := bcrypt.CompareHashAndPassword([]byte(w.RootPasswordHash), []byte(password)); err != nil {
		t.Errorf("the console's password %q is not that of the hash: %v", password, err)
	}
	in := s.cache.View().Node("n1").Identity
	if in == nil || in.ID != w.Agent.Certificate.Certificate || in.Boot != 3 || in.ApprovedAt == nil {
		t.Errorf("the agent's identity is stored as %+v, its certificate is %+v", in, w.Agent.Certificate)
	}
	if seen := s.heard.Seen("u1"); seen.Generation != 3 || seen.RedeemedAt.IsZero() {
		t.Errorf("heard %+v", seen)
	}
}

func TestALostAnswerMayBeAskedForAgainByTheSameMachineOnly(t *testing.T) {
	s := newSite(t)
	s.machine(api.MachineBooting, api.BootEnvironment)
	first, status, detail := s.hello(s.claims(3, api.BootEnvironment), "mine")
	if status != http.StatusOK {
		t.Fatal(detail)
	}
	again, status, detail := s.hello(s.claims(3, api.BootEnvironment), "mine")
	if status != http.StatusOK {
		t.Fatal(detail)
	}
	if _, status, detail = s.hello(s.claims(3, api.BootEnvironment), "theirs"); status != http.StatusConflict {
		t.Errorf("another machine got %d %s", status, detail)
	}
	// Only the newest identity of the machine is good.
	if in := s.cache.View().Node("n1").Identity; in == nil || in.ID != again.Agent.Certificate.Certificate || in.ID == first.Agent.Certificate.Certificate {
		t.Errorf("the identity is %+v after answers with %+v and %+v", in, first.Agent.Certificate, again.Agent.Certificate)
	}
}

func TestABootWithoutTheKeyOfItsAgentIsRefused(t *testing.T) {
	s := newSite(t)
	s.machine(api.MachineBooting, api.BootEnvironment)
	hello := boot.Hello{Token: boot.Seal(secret, s.claims(3, api.BootEnvironment)), Nonce: "n", MACs: []string{mac}}
	if _, status, detail := post[boot.Welcome](s, boot.HelloPath, "", hello); status != http.StatusBadRequest || !strings.Contains(detail, "key is missing") {
		t.Errorf("got %d %s", status, detail)
	}
	if s.cache.View().Node("n1").Identity != nil {
		t.Error("it has an identity")
	}
}

func TestTokensOfTheWrongMachinePortGenerationOrTimeAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		change func(s *site, c *boot.TokenClaims) (macs []string)
		status int
		detail string
	}{
		"earlier boot":                     {func(_ *site, c *boot.TokenClaims) []string { c.Generation = 2; return nil }, http.StatusGone, "from an earlier boot"},
		"unknown machine":                  {func(_ *site, c *boot.TokenClaims) []string { c.Machine = "u9"; return nil }, http.StatusGone, "from an earlier boot"},
		"other port":                       {func(_ *site, c *boot.TokenClaims) []string { c.Port = "prov1"; return nil }, http.StatusForbidden, `for port "prov1"`},
		"elsewhere":                        {func(s *site, _ *boot.TokenClaims) []string { s.at = other; return nil }, http.StatusForbidden, "but MAC 52:54:00:00:00:02 is at"},
		"from an address nobody was given": {func(s *site, _ *boot.TokenClaims) []string { s.at = ""; return nil }, http.StatusServiceUnavailable, "is not leased"},
		"other NIC":                        {func(*site, *boot.TokenClaims) []string { return []string{other} }, http.StatusForbidden, "not a NIC of this machine"},
		"expired":                          {func(s *site, c *boot.TokenClaims) []string { c.ExpiresAt = s.now; return nil }, http.StatusUnauthorized, "expired"},
		"not to boot": {func(s *site, _ *boot.TokenClaims) []string {
			s.phase(api.MachineReady, api.BootEnvironment, 3)
			return nil
		}, http.StatusGone, "no longer wanted"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.machine(api.MachineBooting, api.BootEnvironment)
			claims := s.claims(3, api.BootEnvironment)
			macs := test.change(s, &claims)
			_, status, detail := s.hello(claims, "n", macs...)
			if status != test.status || !strings.Contains(detail, test.detail) {
				t.Errorf("got %d %q, want %d with %q", status, detail, test.status, test.detail)
			}
			if len(s.cache.View().Tokens) != 0 {
				t.Error("a refused machine got a token for its agent")
			}
		})
	}
}

func TestAMachineWhoseBootIsOverWhenItCallsIsToldWhatToDo(t *testing.T) {
	for name, test := range map[string]struct {
		phase      api.MachinePhase
		generation int64 // of the boot decided; the machine's own is 3
		do         string
	}{
		"powering off":      {api.MachineStopping, 3, "poweroff"},
		"it is removed":     {api.MachineRemoving, 3, "poweroff"},
		"it is at rest":     {api.MachineOff, 4, "poweroff"},
		"another boot":      {api.MachineBooting, 4, "reboot"},
		"another, and over": {api.MachineStopping, 4, "poweroff"},
		"it has failed":     {api.MachineFailed, 3, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.machine(api.MachineBooting, api.BootEnvironment)
			s.phase(test.phase, api.BootEnvironment, test.generation)
			body, err := json.Marshal(boot.Hello{Token: boot.Seal(secret, s.claims(3, api.BootEnvironment)), Nonce: "n", MACs: []string{mac}})
			if err != nil {
				t.Fatal(err)
			}
			r := httptest.NewRequest(http.MethodPost, boot.HelloPath, bytes.NewReader(body))
			w := httptest.NewRecorder()
			s.handler.ServeHTTP(w, r)
			var problem boot.Problem
			if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil || w.Code != http.StatusGone || problem.Do != test.do {
				t.Errorf("%d %s, %v; want %q", w.Code, w.Body, err, test.do)
			}
			if told := s.heard.Seen("u1").ToldOff; told.IsZero() == (test.do == "poweroff") {
				t.Errorf("told to go off at %v", told)
			}
			s.heard.ForgetMachine("u1")
			if told := s.heard.Seen("u1").ToldOff; !told.IsZero() {
				t.Errorf("a machine that was forgotten was told to go off at %v", told)
			}
		})
	}
}

func TestAForgedTokenIsRefused(t *testing.T) {
	s := newSite(t)
	s.machine(api.MachineBooting, api.BootEnvironment)
	forged := boot.Seal(bytes.Repeat([]byte{8}, sha256.Size), s.claims(3, api.BootEnvironment))
	if _, status, detail := post[boot.Welcome](s, boot.HelloPath, "", boot.Hello{Token: forged, Nonce: "n", MACs: []string{mac}}); status != http.StatusUnauthorized {
		t.Error(status, detail)
	}
}

func TestAnExchangeNeedsANonce(t *testing.T) {
	s := newSite(t)
	s.machine(api.MachineBooting, api.BootEnvironment)
	if _, status, detail := s.hello(s.claims(3, api.BootEnvironment), ""); status != http.StatusBadRequest || !strings.Contains(detail, "nonce") {
		t.Errorf("without a nonce: %d %s", status, detail)
	}
}

func TestABootTokenIsNoSessionAndASessionNoBootToken(t *testing.T) {
	s := newSite(t)
	s.machine(api.MachineBooting, api.BootEnvironment)
	claims := s.claims(3, api.BootEnvironment)
	w, status, detail := s.hello(claims, "n")
	if status != http.StatusOK {
		t.Fatal(detail)
	}
	// Who reads the boot token off a command line gets nothing without saying hello.
	if _, status, _ := post[boot.Instruction](s, boot.StagePath, boot.Seal(secret, claims), boot.StageReport{}); status != http.StatusUnauthorized {
		t.Errorf("a boot token as a session got %d", status)
	}
	if _, status, _ := post[boot.Welcome](s, boot.HelloPath, "", boot.Hello{Token: w.Session, Nonce: "n", MACs: []string{mac}}); status != http.StatusUnauthorized {
		t.Errorf("a session as a boot token got %d", status)
	}
}

func TestAMachineIsToldToGoOnAndToStopAsWasDecided(t *testing.T) {
	s := newSite(t)
	s.machine(api.MachineInspecting, api.BootInspect)
	w, status, detail := s.hello(s.claims(3, api.BootInspect), "n")
	if status != http.StatusOK {
		t.Fatal(detail)
	}
	if w.Agent != nil || len(s.cache.View().Tokens) != 0 {
		t.Error("a machine that is only looked at got a node agent")
	}
	told, _, _ := post[boot.Instruction](s, boot.StagePath, w.Session, boot.StageReport{Stage: api.StageRoot, AgoSeconds: 2})
	if told.Do != "continue" {
		t.Errorf("told to %q", told.Do)
	}
	seen := s.heard.Seen("u1")
	if i := len(seen.Stages) - 1; i < 0 || seen.Stages[i].Stage != api.StageRoot || !seen.Stages[i].At.Equal(s.now.Add(-2*time.Second)) {
		t.Errorf("stages %v", seen.Stages)
	}
	report := boot.Report{Hardware: api.Hardware{Serial: "S1", EnrollmentToken: "secret"}}
	if told, _, _ = post[boot.Instruction](s, boot.ReportPath, w.Session, report); told.Do != "wait" {
		t.Errorf("after its report it is told to %q", told.Do)
	}
	if kept, ok := s.heard.Report("u1", 3); !ok || kept.Hardware.Serial != "S1" || kept.Hardware.EnrollmentToken != "" {
		t.Errorf("kept %+v, %v", kept, ok)
	}
	s.phase(api.MachineStopping, api.BootInspect, 3)
	if told, _, _ = post[boot.Instruction](s, boot.ReportPath, w.Session, report); told.Do != "poweroff" {
		t.Errorf("told to %q by a leader that stops it", told.Do)
	}
	s.phase(api.MachineBooting, api.BootEnvironment, 4)
	if told, _, _ = post[boot.Instruction](s, boot.ReportPath, w.Session, report); told.Do != "reboot" {
		t.Errorf("told to %q when it shall boot something else", told.Do)
	}
	if _, status, _ := post[boot.Instruction](s, boot.StagePath, "forged", boot.StageReport{}); status != http.StatusUnauthorized {
		t.Errorf("a forged session got %d", status)
	}
}

func TestWhatMachinesSayIsBoundedAndCanBeShown(t *testing.T) {
	s := newSite(t)
	s.machine(api.MachineInspecting, api.BootInspect)
	w, _, _ := s.hello(s.claims(3, api.BootInspect), "n")
	long := "\x1b[2Jbroken\n" + strings.Repeat("é", 20_000)
	if _, status, detail := post[boot.Instruction](s, boot.StagePath, w.Session, boot.StageReport{Stage: api.StageRoot, Problem: long}); status != http.StatusOK {
		t.Fatal(status, detail)
	}
	if got := s.heard.Seen("u1").Problem; len(got) > 2048 || strings.ContainsAny(got, "\x1b\n") || !strings.Contains(got, "broken") {
		t.Errorf("%d bytes of %q are kept", len(got), got[:20])
	}
	// What is stored in one commit has a limit; what can't be stored would keep the machine in its phase for ever.
	for name, report := range map[string]boot.Report{
		"too large":         {Hardware: api.Hardware{Serial: strings.Repeat("x", 500_000)}},
		"large once stored": {Hardware: api.Hardware{Serial: strings.Repeat("<", 100_000)}},
		"too many checks":   {Health: make([]api.HealthResult, 101)},
	} {
		if _, status, _ := post[boot.Instruction](s, boot.ReportPath, w.Session, report); status < 400 {
			t.Errorf("%s: %d", name, status)
		}
	}
	if _, ok := s.heard.Report("u1", 3); ok {
		t.Error("a report that was refused is kept")
	}
	report := boot.Report{Health: []api.HealthResult{{Check: "memory", Message: long}}}
	if _, status, detail := post[boot.Instruction](s, boot.ReportPath, w.Session, report); status != http.StatusOK {
		t.Fatal(status, detail)
	}
	if kept, _ := s.heard.Report("u1", 3); len(kept.Health[0].Message) > 2048 {
		t.Errorf("%d bytes of a check's message are kept", len(kept.Health[0].Message))
	}
}

func TestStrangersCannotFillTheSite(t *testing.T) {
	s := newSite(t)
	for i := range 1200 {
		from := net.HardwareAddr{2, 0, 0, 1, byte(i >> 8), byte(i)}.String()
		s.at = from
		w, status, detail := s.hello(boot.TokenClaims{MAC: from, Purpose: api.BootEnroll, Port: eth, ExpiresAt: s.now.Add(time.Hour)}, "n", from)
		if status != http.StatusOK {
			t.Fatal(detail)
		}
		_, _, _ = post[boot.Instruction](s, boot.StagePath, w.Session, boot.StageReport{Problem: from + " complains"})
		revision, err := s.cache.Revision(), error(nil)
		_, status, _ = post[boot.Instruction](s, boot.ReportPath, w.Session, boot.Report{Hardware: api.Hardware{Serial: "S"}})
		for stored := status == http.StatusOK; stored && s.cache.View().Candidate(from) == nil; { // the bound is of what a server sees
			if revision, err = s.cache.Wait(t.Context(), revision); err != nil {
				t.Fatal(err)
			}
		}
	}
	all, err := s.repo.OpenCache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(all.View().Candidates); n > 1100 || n < 1000 {
		t.Errorf("%d strangers are stored", n)
	}
	if n := len(s.heard.Strangers()); n > 1100 {
		t.Errorf("%d strangers are remembered", n)
	}
	if n := len(s.heard.Problems()); n > 100 || n == 0 {
		t.Errorf("%d complaints wait to be logged", n)
	}
}

func TestEventsOfAnEarlierBootAreNotHeard(t *testing.T) {
	s := newSite(t)
	event := func(generation int64, stage api.BootStage) {
		s.heard.Event("u1", netboot.Event{Generation: generation, Stage: stage, Bytes: 10})
	}
	event(4, api.StageFirmware)
	event(3, api.StageDHCP)
	event(4, api.StageDHCP)
	seen := s.heard.Seen("u1")
	if seen.Generation != 4 || len(seen.Stages) != 2 || seen.LoaderBytes != 20 {
		t.Errorf("heard %+v", seen)
	}
	select {
	case <-s.heard.Changed():
	default:
		t.Error("nobody was told")
	}
}

func TestFirmwareThatAsksThoughNothingIsDecidedIsHeard(t *testing.T) {
	s := newSite(t)
	s.heard.Event("u1", netboot.Event{Generation: 4, Stage: api.StageFirmware})
	s.heard.Event("u1", netboot.Event{Stage: api.StageDHCP}) // what comes after it says no more
	if seen := s.heard.Seen("u1"); !seen.Restarted.IsZero() {
		t.Fatalf("heard %+v", seen)
	}
	<-s.heard.Changed()
	s.heard.Event("u1", netboot.Event{Stage: api.StageFirmware})
	if seen := s.heard.Seen("u1"); seen.Restarted.IsZero() || seen.Generation != 4 {
		t.Errorf("heard %+v", seen)
	}
	if seen := s.heard.Seen("u2"); !seen.Restarted.IsZero() {
		t.Errorf("of another machine: %+v", seen)
	}
	select {
	case <-s.heard.Changed():
	default:
		t.Error("nobody was told")
	}
	s.heard.ForgetMachine("u1")
	if seen := s.heard.Seen("u1"); !seen.Restarted.IsZero() {
		t.Errorf("of a machine that was forgotten: %+v", seen)
	}
}
