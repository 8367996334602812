package bootapi_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
)

// FuzzMessages has the boot API read whatever a booting machine sends, without a session, with its own, and with that of a stranger: it answers,
// with an answer that can be read, and no message makes more of a machine than its boot does.
func FuzzMessages(f *testing.F) {
	for _, seed := range []string{
		`{"token":"x","nonce":"n","macs":["52:54:00:00:00:01"],"request":"r"}`,
		`{"stage":"kernel","ago_seconds":1e308,"read_bytes":-1,"peer_bytes":9223372036854775807,"local":true,"earlier":[{"stage":"agent"}]}`,
		`{"hardware":{"serial":"S1","enrollment_token":"t","memory_bytes":-1,"nics":[{"mac":"x"}]},"health":[{"check":"c","message":"\u001b[2J"}]}`,
		`{"url":"http://10.9.0.7:80","digest":"sha256:00"}`, `{"problem":"\u0000"}`, `[]`, `null`, `{`, ``,
	} {
		f.Add(seed)
	}
	paths := []string{boot.HelloPath, boot.StagePath, boot.SharePath, boot.ReportPath}
	s := newSite(f)
	s.machine(api.MachineBooting, api.BootEnvironment)
	welcome, status, detail := s.hello(s.claims(3, api.BootEnvironment), "once")
	if status != http.StatusOK {
		f.Fatal(detail)
	}
	identity := *s.cache.View().Node("n1").Identity
	stranger := boot.Seal(secret, boot.TokenClaims{MAC: other, Purpose: api.BootEnroll, Port: eth, ExpiresAt: s.now})
	f.Fuzz(func(t *testing.T, body string) {
		for _, path := range paths {
			for _, session := range []string{"", welcome.Session, stranger} {
				r := httptest.NewRequest(http.MethodPost, path, bytes.NewBufferString(body))
				r.Header.Set("Authorization", "Bearer "+session)
				w := httptest.NewRecorder()
				s.handler.ServeHTTP(w, r)
				if w.Code >= http.StatusInternalServerError {
					t.Fatalf("%s of %q: %d %s", path, body, w.Code, w.Body)
				}
				if session != welcome.Session && w.Code < http.StatusMultipleChoices {
					t.Fatalf("%s of %q without a session: %d %s", path, body, w.Code, w.Body)
				}
				if text := bytes.TrimSpace(w.Body.Bytes()); len(text) > 0 && !json.Valid(text) {
					t.Fatalf("%s of %q answers %q", path, body, text)
				}
			}
		}
		if now := s.cache.View().Node("n1").Identity; now == nil || *now != identity {
			t.Fatalf("%q changes who the machine's agent is: %+v", body, now)
		}
	})
}
