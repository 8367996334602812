package sshca

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/nearmetal/nearmetal/internal/needs"
)

var created = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func testSecret(fill byte) []byte { return bytes.Repeat([]byte{fill}, MinSecretBytes) }

func testAuthority(t *testing.T, secret []byte, uid string) *Authority {
	t.Helper()
	a, err := New(secret, uid, created)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func must(t *testing.T, id Identity, err error) Identity {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func certificate(t *testing.T, id Identity) *ssh.Certificate {
	t.Helper()
	key, _, _, _, err := ssh.ParseAuthorizedKey(id.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	return key.(*ssh.Certificate)
}

func TestDerivingAgainGivesTheSameBytes(t *testing.T) {
	a, b := testAuthority(t, testSecret(1), "u1"), testAuthority(t, testSecret(1), "u1")
	if !bytes.Equal(a.PublicKey(), b.PublicKey()) {
		t.Error("the authorities differ")
	}
	hostA, errA := a.Host("u1.m.1", []string{"m", "10.64.0.2"})
	hostB, errB := b.Host("u1.m.1", []string{"m", "10.64.0.2"})
	compareIdentities(t, must(t, hostA, errA), must(t, hostB, errB))
	userA, errA := a.User("u1.m.1")
	userB, errB := b.User("u1.m.1")
	compareIdentities(t, must(t, userA, errA), must(t, userB, errB))
}

func compareIdentities(t *testing.T, a, b Identity) {
	t.Helper()
	for _, pair := range [][2][]byte{{a.PrivateKey, b.PrivateKey}, {a.PublicKey, b.PublicKey}, {a.Certificate, b.Certificate}} {
		if !bytes.Equal(pair[0], pair[1]) {
			t.Errorf("first:\n%s\nagain:\n%s", pair[0], pair[1])
		}
	}
}

func TestEveryPurposeHasItsOwnKey(t *testing.T) {
	owners := map[string]string{}
	note := func(name string, line []byte) {
		key := strings.Fields(string(line))[1]
		if other, taken := owners[key]; taken {
			t.Errorf("%s and %s have the same key", name, other)
		}
		owners[key] = name
	}
	for _, site := range []byte{1, 2} {
		for _, uid := range []string{"u1", "u2"} {
			a := testAuthority(t, testSecret(site), uid)
			prefix := string('0'+site) + " " + uid + " "
			note(prefix+"authority", a.PublicKey())
			for _, assignment := range []string{"m.1", "m.2"} {
				user, err := a.User(assignment)
				note(prefix+"user "+assignment, must(t, user, err).PublicKey)
				host, err := a.Host(assignment, []string{"m"})
				note(prefix+"host "+assignment, must(t, host, err).PublicKey)
			}
		}
	}
}

func TestHostCertificatesHoldForTheirMembersNamesOnly(t *testing.T) {
	a := testAuthority(t, testSecret(1), "u1")
	id, err := a.Host("u1.m.1", []string{"m", "10.64.0.2"})
	cert := certificate(t, must(t, id, err))
	checker := ssh.CertChecker{Clock: func() time.Time { return created }, IsHostAuthority: func(key ssh.PublicKey, _ string) bool {
		return bytes.Equal(key.Marshal(), a.signer.PublicKey().Marshal())
	}}
	for _, c := range []struct {
		address string
		ok      bool
	}{{"m:22", true}, {"10.64.0.2:22", true}, {"n:22", false}, {"10.64.0.3:22", false}} {
		if err := checker.CheckHostKey(c.address, nil, cert); (err == nil) != c.ok {
			t.Errorf("%s: got %v, want accepted = %v", c.address, err, c.ok)
		}
	}
	if _, err := a.Host("u1.m.1", nil); err == nil {
		t.Error("a host certificate without principals, valid for every name, was signed")
	}
}

func TestUserCertificatesNameTheirAssignmentOnly(t *testing.T) {
	a := testAuthority(t, testSecret(1), "u1")
	id, err := a.User("u1.m.1")
	cert := certificate(t, must(t, id, err))
	checker := ssh.CertChecker{Clock: func() time.Time { return created }}
	if err := checker.CheckCert("u1.m.1", cert); err != nil {
		t.Errorf("its own assignment: %v", err)
	}
	if err := checker.CheckCert("u1.m.2", cert); err == nil {
		t.Error("the certificate is valid for another assignment")
	}
	checker.Clock = func() time.Time { return created.Add(-clockSkew / 2) }
	if err := checker.CheckCert("u1.m.1", cert); err != nil {
		t.Errorf("by a clock that is years behind: %v", err)
	}
}

func TestAShortSecretIsRefused(t *testing.T) {
	_, err := New(make([]byte, MinSecretBytes-1), "u1", created)
	if err == nil || !strings.Contains(err.Error(), "31 bytes") {
		t.Errorf("got %v, want a refusal that tells the length", err)
	}
}

func TestOpenSSHReadsTheKeysAndCertificates(t *testing.T) {
	keygen := needs.Program(t, "ssh-keygen")
	a := testAuthority(t, testSecret(1), "u1")
	user, err := a.User("u1.m.1")
	user = must(t, user, err)
	host, err := a.Host("u1.m.1", []string{"m", "10.64.0.2"})
	host = must(t, host, err)
	for _, c := range []struct {
		name string
		id   Identity
		want []string
	}{
		{"user", user, []string{"ed25519-cert-v01@openssh.com user certificate", `Key ID: "user u1.m.1"`, "permit-pty", "Valid: after 2016-03-06T05:06:07"}},
		{"host", host, []string{"ed25519-cert-v01@openssh.com host certificate", `Key ID: "host u1.m.1"`, "10.64.0.2", "Valid: after 2016-03-06T05:06:07"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			key, cert := filepath.Join(dir, "key"), filepath.Join(dir, "key-cert.pub")
			for path, content := range map[string][]byte{key: c.id.PrivateKey, cert: c.id.Certificate} {
				if err := os.WriteFile(path, content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := run(t, keygen, "-y", "-f", key); got != string(c.id.PublicKey) {
				t.Errorf("the private key's public half is %q, want %q", got, c.id.PublicKey)
			}
			listing := run(t, keygen, "-L", "-f", cert)
			for _, want := range c.want {
				if !strings.Contains(listing, want) {
					t.Errorf("ssh-keygen -L printed\n%s\nwithout %q", listing, want)
				}
			}
		})
	}
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "TZ=UTC")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}
