package apiserver_test

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/audit"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// auditedSite is a site with the cluster c1 and an audit log.
func auditedSite(t *testing.T) (*apiservertest.Site, *audit.Log) {
	t.Helper()
	l, err := audit.Open(t.TempDir(), func(time.Time) []byte { return []byte(strings.Repeat("s", 32)) }, audit.DefaultLimits, time.Now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s := withMember(t, func(conn *net.TCPConn) { _ = conn.Close() }, func(c *apiserver.Config) { c.Audit = l })
	return s, l
}

// records are those of the audit log, newest first, as one line each.
func records(t *testing.T, l *audit.Log, limit int) []string {
	t.Helper()
	all, err := l.List(audit.Filter{Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	lines := make([]string, len(all))
	for i, r := range all {
		lines[i] = strings.TrimSpace(fmt.Sprintf("%s %s %s %d %s", r.User, r.Role, r.Action, r.Status, r.Code))
		if r.From == "" || r.Request == "" || r.Refused > 0 {
			t.Errorf("record %+v has no origin, no request, or refusals that nobody made", r)
		}
	}
	return lines
}

func TestChangesAndRefusalsAreInTheAuditLogAndReadingIsNot(t *testing.T) {
	s, l := auditedSite(t)
	ann, vic := s.ClientAs("ann", "default", api.RoleMember), s.ClientAs("vic", "default", api.RoleViewer)
	root := s.ClientAs("root", "", api.RoleAdmin)
	for _, tt := range []struct {
		name string
		do   func() error
		want string // "" for no record
	}{
		{"a list", func() error { _, err := vic.Clusters(t.Context()); return err }, ""},
		{"a change", func() error { _, err := ann.DeleteCluster(t.Context(), "c1"); return err }, "ann member DELETE /v1/clusters/c1 202"},
		{"a change that fails", func() error { _, err := ann.DeleteCluster(t.Context(), "c9"); return err }, "ann member DELETE /v1/clusters/c9 404 cluster_not_found"},
		{"what a viewer may not", func() error { _, err := vic.DeleteCluster(t.Context(), "c1"); return err }, "vic viewer DELETE /v1/clusters/c1 403 forbidden"},
		{"a connection to a member", func() error {
			conn, err := ann.ConnectMember(t.Context(), "c1", "c1-0", 22)
			if err == nil {
				_ = conn.Close()
			}
			return err
		}, "ann member GET /v1/clusters/c1/members/c1-0/connect 101"},
		{"what administrators alone may see", func() error { _, err := root.Tokens(t.Context()); return err }, "root admin GET /v1/tokens 200"},
		{"the owner of the socket", func() error { _, err := s.LocalClient().Tokens(t.Context()); return err }, "admin GET /v1/tokens 200"},
		{"nobody", func() error {
			_, err := s.ClientOf(trust.NewToken(pinOf(t, s)).Line()).Clusters(t.Context())
			return err
		}, "GET /v1/clusters 401 unauthorized"},
	} {
		before, err := l.Verify()
		if err != nil {
			t.Fatal(err)
		}
		if err := tt.do(); err != nil && !strings.Contains(tt.want, " 4") {
			t.Errorf("%s: %v", tt.name, err)
		}
		after, err := l.Verify()
		if err != nil || len(after.Problems) > 0 {
			t.Fatal(after, err)
		}
		switch {
		case tt.want == "" && after.Last != before.Last:
			t.Errorf("%s is recorded: %s", tt.name, records(t, l, 1)[0])
		case tt.want != "" && (after.Last != before.Last+1 || records(t, l, 1)[0] != tt.want):
			t.Errorf("%s: %d records, the newest %q; want one, %q", tt.name, after.Last-before.Last, records(t, l, 1), tt.want)
		}
	}
	if made := must(l.List(audit.Filter{Limit: 1000, User: "ann"})); len(made) != 3 || made[0].Token == "" {
		t.Errorf("ann's records are %+v, want 3 with the ID of her token", made)
	}
}

// pinOf is the pin of a site's CA.
func pinOf(t *testing.T, s *apiservertest.Site) trust.Pin {
	t.Helper()
	token, err := trust.ReadToken(s.TokenFile())
	if err != nil {
		t.Fatal(err)
	}
	return token.Pin
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestTheAuditLogIsPagedAndVerifiedForAdministrators(t *testing.T) {
	s, _ := auditedSite(t)
	root := s.ClientAs("root", "", api.RoleAdmin)
	for range 5 {
		_, _ = root.Tokens(t.Context())
	}
	all, err := root.Audit(t.Context(), client.AuditQuery{User: "root", Limit: 3})
	if err != nil || len(all) != 3 || all[0].Seq != all[2].Seq+2 {
		t.Errorf("three records are %+v, %v", all, err)
	}
	if failed, err := root.Audit(t.Context(), client.AuditQuery{Failed: true, Limit: 3}); err != nil || len(failed) != 0 {
		t.Errorf("failed records are %+v, %v", failed, err)
	}
	report, err := root.VerifyAudit(t.Context())
	if err != nil || report.Records < 5 || len(report.Problems) > 0 {
		t.Errorf("verified: %+v, %v", report, err)
	}
	if _, err := root.Audit(t.Context(), client.AuditQuery{User: strings.Repeat("ö", 65), Limit: 1}); !client.HasCode(err, "invalid_parameter") {
		t.Errorf("a user of 65 characters: %v, want it refused", err)
	}
	if _, err := s.ClientAs("ann", "default", api.RoleMember).Audit(t.Context(), client.AuditQuery{Limit: 1}); err == nil {
		t.Error("a member reads the audit log")
	}
}

func TestStrangersCanNotFillTheAuditLog(t *testing.T) {
	s, l := auditedSite(t)
	before := must(l.Verify()).Last
	stranger := &http.Client{Transport: &http.Transport{TLSClientConfig: trust.ClientTLS(pinOf(t, s), "127.0.0.1"), ForceAttemptHTTP2: true}}
	defer stranger.CloseIdleConnections()
	const asked = 250
	for range asked {
		resp, err := stranger.Get("https://" + s.Addr + "/v1/clusters/" + strings.Repeat("x", 5000))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	_, _ = s.ClientAs("root", "", api.RoleAdmin).Tokens(t.Context())
	all := must(l.List(audit.Filter{Limit: 1000}))
	recorded, counted := int64(0), int64(0)
	for _, r := range all {
		if r.Seq > before && r.Status == http.StatusUnauthorized {
			recorded++
			if len(r.Action) > 600 {
				t.Errorf("a record has %d bytes of a stranger's", len(r.Action))
			}
		}
		counted += r.Refused
	}
	if recorded < 100 || recorded > asked-50 || recorded+counted != asked {
		t.Errorf("of %d refusals %d are recorded and %d counted", asked, recorded, counted)
	}
}

func TestARequestIsAnsweredThoughTheAuditLogCanNotBeWritten(t *testing.T) {
	s, l := auditedSite(t)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ClientAs("root", "", api.RoleAdmin).Tokens(t.Context()); err != nil {
		t.Error(err)
	}
}
