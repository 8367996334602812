package trust

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func mustOpen(t *testing.T, dir string, now func() time.Time, hosts ...string) *Authority {
	t.Helper()
	a, err := open(dir, now, hosts)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestSecretIsMadeOnceAndReadByItsOwnerOnly(t *testing.T) {
	dir := t.TempDir()
	first, err := OpenSecrets(dir)
	if err != nil || len(first) != 1 || len(first.Newest()) != SecretBytes {
		t.Fatalf("%d secrets, %v", len(first), err)
	}
	again, err := OpenSecrets(dir)
	if err != nil || string(again.Newest()) != string(first.Newest()) {
		t.Fatalf("it differs the second time: %v", err)
	}
	path := filepath.Join(dir, "secret")
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode())
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	var exposed *ExposedError
	if _, err := OpenSecrets(dir); !errors.As(err, &exposed) || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("exposed secret: %v, want an *ExposedError that says what to do", err)
	}
}

func TestADamagedSecretIsNeverReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "secret")
	if err := os.WriteFile(path, []byte("abc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenSecrets(dir); err == nil || !strings.Contains(err.Error(), "backup") {
		t.Errorf("%v, want an error that tells to restore it", err)
	}
	if data, _ := os.ReadFile(path); string(data) != "abc\n" {
		t.Errorf("the file was changed to %q", data)
	}
}

func TestTheAdministratorsTokenSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	a := mustOpen(t, dir, time.Now)
	b := mustOpen(t, dir, time.Now)
	if a.Pin() != b.Pin() {
		t.Fatal("the CA changed with a restart")
	}
	for file, role := range map[string]Role{"token": RoleAdmin} {
		tok, err := ReadToken(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if tok.Pin != a.Pin() {
			t.Errorf("%s is pinned to another CA", file)
		}
		p, ok := b.Tokens.Verify(tok.Bearer())
		if !ok || p.Role != role || p.TokenID != tok.ID() {
			t.Errorf("Verify(%s) = %+v, %v; want role %s", file, p, ok, role)
		}
		if strings.Contains(tok.String(), strings.Split(tok.Bearer(), ".")[1]) {
			t.Errorf("String of a token shows its secret")
		}
		stored, _ := os.ReadFile(filepath.Join(dir, "tls", "tokens.json"))
		if strings.Contains(string(stored), tok.Bearer()[4:]) {
			t.Errorf("the server stores the secret of %s", file)
		}
	}
}

func TestWrongTokensAreRefused(t *testing.T) {
	a := mustOpen(t, t.TempDir(), time.Now)
	known, err := ReadToken(filepath.Join(a.dir, "token"))
	if err != nil {
		t.Fatal(err)
	}
	forged := known
	forged.secret[31] ^= 1
	flipped := known
	flipped.id[0] ^= 1
	for name, bearer := range map[string]string{
		"empty": "", "no version": known.Bearer()[4:], "with the pin": known.Line(), "other secret": forged.Bearer(),
		"other id": flipped.Bearer(), "random": NewToken(a.Pin()).Bearer(), "longer": known.Bearer() + "A", "short": "nm1.AAAA",
		"padded": known.Bearer() + "=", "space": " " + known.Bearer(), "zero": Token{}.Bearer(),
	} {
		if p, ok := a.Tokens.Verify(bearer); ok {
			t.Errorf("%s: accepted as %+v", name, p)
		}
	}
}

func TestARemovedTokenFileRevokesTheToken(t *testing.T) {
	dir := t.TempDir()
	mustOpen(t, dir, time.Now)
	path := filepath.Join(dir, "token")
	old, err := ReadToken(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	a := mustOpen(t, dir, time.Now)
	if _, ok := a.Tokens.Verify(old.Bearer()); ok {
		t.Error("the old token is still accepted")
	}
	if next, err := ReadToken(path); err != nil || next.ID() == old.ID() {
		t.Errorf("no new token: %v", err)
	}
}

func TestATokenOthersCanReadIsRefused(t *testing.T) {
	dir := t.TempDir()
	mustOpen(t, dir, time.Now)
	path := filepath.Join(dir, "token")
	for _, mode := range []os.FileMode{0o644, 0o640, 0o604, 0o620} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		var exposed *ExposedError
		if _, err := ReadToken(path); !errors.As(err, &exposed) {
			t.Errorf("mode %o: %v, want an *ExposedError", mode, err)
		}
	}
}

func TestTokenTextRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tok Token
		copy(tok.id[:], rapid.SliceOfN(rapid.Byte(), idBytes, idBytes).Draw(t, "id"))
		copy(tok.secret[:], rapid.SliceOfN(rapid.Byte(), secretBytes, secretBytes).Draw(t, "secret"))
		copy(tok.Pin[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "pin"))
		back, err := ParseToken(tok.Line() + "\n")
		if err != nil || back != tok {
			t.Fatalf("ParseToken of its own text: %v", err)
		}
	})
}

// handshake connects a client that pins pin and verifies name to a server, and returns the client's error.
func handshake(t *testing.T, a *Authority, pin Pin, name string) error {
	t.Helper()
	client, server := net.Pipe()
	defer client.Close()
	go func() {
		defer server.Close()
		s := tls.Server(server, a.ServerTLS())
		if s.Handshake() == nil {
			s.Write([]byte("x"))
		}
	}()
	return tls.Client(client, ClientTLS(pin, name)).Handshake()
}

func TestAClientAcceptsOnlyThePinnedServerByItsName(t *testing.T) {
	a := mustOpen(t, t.TempDir(), time.Now, "10.1.2.3", "nm.example.org")
	other := mustOpen(t, t.TempDir(), time.Now)
	for _, name := range []string{"localhost", "127.0.0.1", "::1", "10.1.2.3", "nm.example.org"} {
		if err := handshake(t, a, a.Pin(), name); err != nil {
			t.Errorf("as %s: %v", name, err)
		}
	}
	for what, err := range map[string]error{
		"another CA":    handshake(t, a, other.Pin(), "localhost"),
		"another host":  handshake(t, a, a.Pin(), "evil.example.org"),
		"another IP":    handshake(t, a, a.Pin(), "10.1.2.4"),
		"no host":       handshake(t, a, a.Pin(), ""),
		"no pin at all": handshake(t, a, Pin{}, "localhost"),
	} {
		if err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
}

func TestAServerThatOnlyShowsThePinnedCAIsRefused(t *testing.T) {
	a := mustOpen(t, t.TempDir(), time.Now)
	impostor := mustOpen(t, t.TempDir(), time.Now)
	// The impostor sends its own certificate with the true CA's behind it: it holds no key that CA has signed.
	impostor.server.Certificate[1] = a.cas[0].cert.Raw
	if err := handshake(t, impostor, a.Pin(), "localhost"); !errors.Is(err, ErrWrongServer) {
		t.Errorf("handshake = %v, want ErrWrongServer", err)
	}
}

func TestTheServerCertificateIsRenewedInTime(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	clock := func() time.Time { return now }
	a := mustOpen(t, dir, clock)
	first, err := a.certificate()
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(serverLife/2 + time.Hour)
	if same, _ := a.certificate(); same != first {
		t.Error("renewed too early")
	}
	now = now.Add(serverLife / 3)
	next, err := a.certificate()
	if err != nil || next == first {
		t.Fatalf("not renewed: %v", err)
	}
	if b := mustOpen(t, dir, clock); b.server.Leaf.SerialNumber.Cmp(next.Leaf.SerialNumber) != 0 {
		t.Error("the renewed certificate was not stored")
	}
	if b := mustOpen(t, dir, clock, "new.example.org"); b.server.Leaf.VerifyHostname("new.example.org") != nil {
		t.Error("a new host name did not renew the certificate")
	}
}
