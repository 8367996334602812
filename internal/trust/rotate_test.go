package trust

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/trust/subject"
)

// connects tells why a client that knows a pin does not accept the site's server, or nil.
func connects(t *testing.T, a *Authority, pin Pin) error {
	t.Helper()
	near, far := net.Pipe()
	defer near.Close()
	go func() {
		server := tls.Server(far, a.ServerTLS())
		_ = server.HandshakeContext(t.Context())
		_ = server.Close()
	}()
	return tls.Client(near, ClientTLS(pin, "localhost")).HandshakeContext(t.Context())
}

func TestARotatedCAIsTrustedByWhoKnowsTheFormer(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	first := mustOpen(t, dir, time.Now)
	admin, err := ReadToken(filepath.Join(dir, "token"))
	if err != nil {
		t.Fatal(err)
	}
	n1 := subject.Subject{Kind: subject.Node, Name: "n1", ID: "id"}
	old := certified(t, first, n1, now, time.Hour)
	pins := []Pin{first.Pin()}
	for range 2 {
		if err := RotateCA(dir, now); err != nil {
			t.Fatal(err)
		}
		pins = append(pins, mustOpen(t, dir, time.Now).Pin())
	}
	rotated := mustOpen(t, dir, time.Now)
	for i, pin := range pins {
		if err := connects(t, rotated, pin); err != nil {
			t.Errorf("who knows CA %d: %v", i, err)
		}
	}
	if pins[0] == pins[1] || pins[1] == pins[2] || rotated.Site() != first.Site() {
		t.Errorf("pins %v, site %q and %q", pins, first.Site(), rotated.Site())
	}
	if err := connects(t, rotated, mustOpen(t, t.TempDir(), time.Now).Pin()); !errors.Is(err, ErrWrongServer) {
		t.Errorf("who knows another site: %v", err)
	}
	if s, err := rotated.Identify(old, now); err != nil || s != n1 {
		t.Errorf("a certificate of the first CA: %v, %v", s, err)
	}
	if s, err := first.Identify(certified(t, rotated, n1, now, time.Hour), now); err == nil {
		t.Errorf("the first CA knows what the third has issued: %v", s)
	}
	// The administrator's token is the same, and has the newest pin.
	if _, ok := rotated.Tokens.Verify(admin.Bearer()); !ok {
		t.Error("the administrator's token is not known any more")
	}
	if line, err := ReadToken(filepath.Join(dir, "token")); err != nil || line.Bearer() != admin.Bearer() || line.Pin != pins[2] {
		t.Errorf("the administrator's token file: %v, %v", line, err)
	}

	if dropped, err := RetireCAs(dir, now); err != nil || dropped != 2 {
		t.Fatalf("retired %d, %v", dropped, err)
	}
	retired := mustOpen(t, dir, time.Now)
	for i, pin := range pins {
		if err := connects(t, retired, pin); (err == nil) != (i == 2) {
			t.Errorf("after that, who knows CA %d: %v", i, err)
		}
	}
	if _, err := retired.Identify(old, now); !errors.Is(err, ErrForeign) {
		t.Errorf("after that, a certificate of the first CA: %v", err)
	}
	if list, err := ListCAs(dir); err != nil || len(list) != 1 || list[0].Pin != pins[2] {
		t.Errorf("after that: %+v, %v", list, err)
	}
}

func TestADamagedCAIsNeverReplaced(t *testing.T) {
	dir := t.TempDir()
	mustOpen(t, dir, time.Now)
	whole, err := os.ReadFile(caPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"empty": "", "half": string(whole[:len(whole)/2]), "with more": string(whole) + "more", "twice its head": string(whole[:500]) + string(whole)} {
		if err := os.WriteFile(caPath(dir), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, "127.0.0.1"); err == nil {
			t.Errorf("%s: opened", name)
		}
		if err := RotateCA(dir, time.Now()); err == nil {
			t.Errorf("%s: rotated", name)
		}
		if now, err := os.ReadFile(caPath(dir)); err != nil || string(now) != text {
			t.Errorf("%s: the file was changed", name)
		}
	}
}

func TestASecretIsThatOfItsTime(t *testing.T) {
	dir := t.TempDir()
	first, err := OpenSecrets(dir)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 3, 4, 5, 6, 7, 890, time.UTC)
	if _, err := RotateSecret(dir, at); err != nil {
		t.Fatal(err)
	}
	if _, err := RotateSecret(dir, at.Add(-time.Hour)); err != nil { // the clock was set back
		t.Fatal(err)
	}
	all, err := OpenSecrets(dir)
	if err != nil || len(all) != 3 || !all[2].Since.After(all[1].Since) {
		t.Fatalf("%d secrets, %v", len(all), err)
	}
	for when, want := range map[time.Time]int{{}: 0, at.Add(-1): 0, at: 1, at.Add(1): 2, at.Add(time.Hour): 2} {
		if got := all.At(when); string(got) != string(all[want].Key) {
			t.Errorf("at %s it is not secret %d", when, want)
		}
	}
	if string(all[0].Key) != string(first.Newest()) || string(all.Newest()) != string(all[2].Key) || string(all.NewestFirst()[2]) != string(first.Newest()) {
		t.Error("the secrets are not in their order")
	}
	before, err := NewSealer(first)
	if err != nil {
		t.Fatal(err)
	}
	after, err := NewSealer(all)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := after.Open("u1", before.Seal("u1", []byte("password"))); err != nil || string(text) != "password" {
		t.Errorf("what was sealed before: %q, %v", text, err)
	}
	if _, err := before.Open("u1", after.Seal("u1", []byte("password"))); !errors.Is(err, ErrSealed) {
		t.Errorf("who has the former secret opens what is sealed with the new one: %v", err)
	}
	for _, text := range []string{"", "\n", "00\n", string(mustRead(t, secretPath(dir))) + "x\n"} {
		if err := os.WriteFile(secretPath(dir), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenSecrets(dir); err == nil {
			t.Errorf("%q: opened", text)
		}
	}
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
