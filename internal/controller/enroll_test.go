package controller

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/bootapi"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/trust"
)

func TestAStrangerWithAWrongOrExpiredTokenIsNotTakenIn(t *testing.T) {
	l := newLed(t, memory.New())
	l.provisions()
	secret := trust.NewToken(trust.Pin{1})
	issue := func(id, sha256 string, expires time.Time) {
		t.Helper()
		hash, err := hex.DecodeString(sha256)
		if err != nil {
			t.Fatal(err)
		}
		l.view(l.repo.CreateEnrollToken(t.Context(), api.EnrollmentToken{
			ID: id, Hash: hash, Prefix: "n", Uses: 1, Power: api.PowerControl{Kind: api.PowerManual}, ExpiresAt: expires,
		}))
	}
	for name, tc := range map[string]struct {
		mac     string
		issued  trust.Token // what the site knows by the ID that the stranger shows
		expires time.Duration
		want    string
	}{
		"of that ID with another secret": {"52:54:00:00:00:01", trust.NewToken(trust.Pin{1}), time.Hour, "is unknown"},
		"that has expired":               {"52:54:00:00:00:02", secret, 0, "has expired"},
		"that is good":                   {"52:54:00:00:00:03", secret, time.Hour, ""},
	} {
		issue(secret.ID(), tc.issued.SHA256(), l.now.Add(tc.expires))
		p := l.lead.newPass(l.lead.cfg.Cache.View())
		problem, err := p.enroll(t.Context(), bootapi.Stranger{MAC: tc.mac, Token: secret.Bearer()})
		if err != nil || (problem == "") != (tc.want == "") || !strings.Contains(problem, tc.want) {
			t.Errorf("with a token %s: %q, %v; want %q", name, problem, err, tc.want)
		}
		if view := l.view(p.committed, nil); tc.want == "" && view.MachineByMAC(tc.mac) == nil {
			t.Errorf("with a token %s there is no machine", name)
		}
		if tc.want != "" {
			l.view(l.repo.DeleteEnrollToken(t.Context(), secret.ID()))
		}
	}
}
