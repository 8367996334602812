package sshca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/nearmetal/nearmetal/internal/needs"
)

// keyLine is the line of a .pub file.
func keyLine(t *testing.T, public any) string {
	t.Helper()
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}

func ed25519Line(t *testing.T) string {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return keyLine(t, public)
}

func rsaLine(t *testing.T, bits uint) string {
	t.Helper()
	// Only its length counts; making a key takes long.
	n := new(big.Int).SetBit(new(big.Int), int(bits)-1, 1)
	return keyLine(t, &rsa.PublicKey{N: n.SetBit(n, 0, 1), E: 65537})
}

func TestPeoplesCertificatesHoldForAShortTimeAndForPeopleOnly(t *testing.T) {
	a := testAuthority(t, testSecret(1), "u1")
	at := created.Add(time.Hour + 300*time.Millisecond)
	c, err := a.CertifyUser([]byte(ed25519Line(t)+" me@home\n"), "ann", 10*time.Minute, at)
	if err != nil {
		t.Fatal(err)
	}
	cert := certificate(t, Identity{Certificate: c.Line})
	if cert.KeyId != "people ann" || cert.CertType != ssh.UserCert || len(cert.CriticalOptions) != 0 {
		t.Errorf("got %+v", cert)
	}
	if want := created.Add(time.Hour + 10*time.Minute); !c.ValidUntil.Equal(want) || !c.ValidAfter.Equal(created.Add(59*time.Minute)) {
		t.Errorf("valid from %v to %v, want it to end %v", c.ValidAfter, c.ValidUntil, want)
	}
	for _, check := range []struct {
		name, principal string
		at              time.Time
		ok              bool
	}{
		{"now", People, at, true},
		{"by a clock that is a little behind", People, at.Add(-time.Minute + time.Second), true},
		{"by a clock that is far behind", People, at.Add(-2 * time.Minute), false},
		{"at the last moment", People, c.ValidUntil.Add(-time.Second), true},
		{"when its time has passed", People, c.ValidUntil, false},
		{"as an assignment", "u1.m.1", at, false},
		{"as the user", "hpc", at, false},
	} {
		checker := ssh.CertChecker{Clock: func() time.Time { return check.at }}
		if err := checker.CheckCert(check.principal, cert); (err == nil) != check.ok {
			t.Errorf("%s: got %v, want accepted = %v", check.name, err, check.ok)
		}
	}
	for _, extension := range []string{"permit-agent-forwarding", "permit-X11-forwarding"} {
		if _, ok := cert.Extensions[extension]; ok {
			t.Errorf("it has %s", extension)
		}
	}
}

func TestOnlyGoodPublicKeysAreCertified(t *testing.T) {
	a := testAuthority(t, testSecret(1), "u1")
	good := ed25519Line(t)
	curve := func(c elliptic.Curve) string {
		key, err := ecdsa.GenerateKey(c, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return keyLine(t, key.Public())
	}
	own, err := a.User("u1.m.1")
	own = must(t, own, err)
	dsaLine := "ssh-dss " + base64.StdEncoding.EncodeToString(ssh.Marshal(struct {
		Type       string
		P, Q, G, Y *big.Int
	}{"ssh-dss", new(big.Int).SetBit(big.NewInt(1), 1023, 1), new(big.Int).SetBit(big.NewInt(1), 159, 1), big.NewInt(2), big.NewInt(4)}))
	for _, c := range []struct{ name, line, refusal string }{
		{"Ed25519", good, ""},
		{"with comment and newline", good + " me@home\n", ""},
		{"ECDSA P-256", curve(elliptic.P256()), ""},
		{"ECDSA P-521", curve(elliptic.P521()), ""},
		{"RSA 2048", rsaLine(t, 2048), ""},
		{"RSA 4096", rsaLine(t, 4096), ""},
		{"short RSA", rsaLine(t, 2047), "the key has 2047 bits"},
		{"DSA", dsaLine, "keys of type ssh-dss are not accepted"},
		{"a certificate", string(own.Certificate), "this is a certificate"},
		{"a private key", string(own.PrivateKey), "this is a private key"},
		{"a key with options", `command="id" ` + good, `the key has options (command="id")`},
		{"two keys", good + "\n" + good, "more than one line"},
		{"a comment line before it", "# mine\n" + good, "more than one line"},
		{"nothing", "", "this is not a line"},
		{"garbage", "\xff\xfe key", "this is not a line"},
		{"a torn key", good[:len(good)-10], "this is not a line"},
		{"another type than the key's", strings.Replace(good, "ssh-ed25519", "ssh-rsa", 1), "this is not a line"},
		{"a long line", good + " " + strings.Repeat("x", maxKeyLine), "the limit is 16384"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := a.CertifyUser([]byte(c.line), "ann", time.Minute, created)
			var refused *KeyError
			switch {
			case c.refusal == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.refusal != "" && (!errors.As(err, &refused) || !strings.Contains(refused.Reason, c.refusal) || got.Line != nil):
				t.Errorf("got %q, error %v; want a refusal with %q", got.Line, err, c.refusal)
			}
		})
	}
}

func TestPeoplesCertificatesAreNeverValidForLong(t *testing.T) {
	a := testAuthority(t, testSecret(1), "u1")
	for _, validFor := range []time.Duration{-time.Hour, 0, time.Millisecond, MaxPeopleValidity + 1, 1 << 62} {
		if c, err := a.CertifyUser([]byte(ed25519Line(t)), "ann", validFor, created); err == nil {
			t.Errorf("one for %v was signed: %+v", validFor, c)
		}
	}
}

func TestANameCantForgeALineOfALog(t *testing.T) {
	a := testAuthority(t, testSecret(1), "u1")
	c, err := a.CertifyUser([]byte(ed25519Line(t)), "ann\nAccepted publickey for root\x1b"+strings.Repeat("x", 1000), time.Minute, created)
	if err != nil {
		t.Fatal(err)
	}
	if id := certificate(t, Identity{Certificate: c.Line}).KeyId; !strings.HasPrefix(id, "people ann?Accepted publickey for root?x") || len(id) > 300 {
		t.Errorf("the key ID is %q", id)
	}
}

func TestOpenSSHReadsPeoplesCertificates(t *testing.T) {
	keygen := needs.Program(t, "ssh-keygen")
	dir := t.TempDir()
	for _, kind := range []string{"ed25519", "ecdsa", "rsa"} {
		key := filepath.Join(dir, kind)
		run(t, keygen, "-q", "-t", kind, "-N", "", "-f", key)
		public, err := os.ReadFile(key + ".pub")
		if err != nil {
			t.Fatal(err)
		}
		c, err := testAuthority(t, testSecret(1), "u1").CertifyUser(public, "ann", 10*time.Minute, created)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Count(c.Line, []byte("\n")) != 1 {
			t.Errorf("%q is not one line", c.Line)
		}
		if err := os.WriteFile(key+"-cert.pub", c.Line, 0o600); err != nil {
			t.Fatal(err)
		}
		listing := run(t, keygen, "-L", "-f", key+"-cert.pub")
		for _, want := range []string{"user certificate", `Key ID: "people ann"`, "people\n", "Valid: from 2026-03-04T05:05:07 to 2026-03-04T05:16:07", "permit-port-forwarding"} {
			if !strings.Contains(listing, want) {
				t.Errorf("%s: ssh-keygen -L printed\n%s\nwithout %q", kind, listing, want)
			}
		}
	}
}
