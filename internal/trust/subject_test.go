package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"

	"github.com/nearmetal/nearmetal/internal/trust/subject"
)

// certified is a certificate that a's CA issues for a new key.
func certified(t *testing.T, a *Authority, s subject.Subject, at time.Time, life time.Duration) *x509.Certificate {
	t.Helper()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := a.Certify(&key.PublicKey, s, at, life)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestACertificateNamesItsSubjectWhileItLasts(t *testing.T) {
	now := time.Now()
	a := mustOpen(t, t.TempDir(), time.Now)
	n1 := subject.Subject{Kind: subject.Node, Name: "n1", ID: "id-1"}
	cert := certified(t, a, n1, now, time.Hour)
	for name, tc := range map[string]struct {
		at   time.Time
		want error
	}{
		"at once":                 {now, nil},
		"a server hours behind":   {now.Add(-23 * time.Hour), nil},
		"before it begins":        {now.Add(-25 * time.Hour), ErrEnded},
		"at its end":              {now.Add(time.Hour - 2*time.Second), nil},
		"after its end":           {now.Add(time.Hour + 2*time.Second), ErrEnded},
		"long after its end":      {now.Add(400 * 24 * time.Hour), ErrEnded},
		"when the clock was lost": {time.Unix(0, 0), ErrEnded},
	} {
		s, err := a.Identify(cert, tc.at)
		if !errors.Is(err, tc.want) || s != n1 {
			t.Errorf("%s: %v, %v; want %v, %v", name, s, err, n1, tc.want)
		}
	}
}

func TestWhatThisSiteDidNotIssueNamesNobody(t *testing.T) {
	now := time.Now()
	a, other := mustOpen(t, t.TempDir(), time.Now), mustOpen(t, t.TempDir(), time.Now)
	n1 := subject.Subject{Kind: subject.Node, Name: "n1", ID: "id-1"}
	server, err := a.certificate()
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	uri, _ := url.Parse(n1.String())
	own := &x509.Certificate{
		SerialNumber: serial(), URIs: []*url.URL{uri}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	selfSigned := signed(t, own, own, key, key)
	// Of a's CA, but for what others are for: it must not count that the name and the signature are right.
	asServer := *own
	asServer.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	twoNames := *own
	twoNames.URIs = []*url.URL{uri, uri}
	// A certificate of a's CA is no CA: what it signs counts nothing.
	middle := signed(t, own, a.cas[0].cert, key, a.cas[0].key)
	for name, cert := range map[string]*x509.Certificate{
		"of another site":             certified(t, other, n1, now, time.Hour),
		"self-signed":                 selfSigned,
		"the CA itself":               a.cas[0].cert,
		"the server's":                server.Leaf,
		"for a server, with its name": signed(t, &asServer, a.cas[0].cert, key, a.cas[0].key),
		"with two names":              signed(t, &twoNames, a.cas[0].cert, key, a.cas[0].key),
		"signed by a node":            signed(t, own, middle, key, key),
	} {
		if s, err := a.Identify(cert, now); !errors.Is(err, ErrForeign) || s != (subject.Subject{}) {
			t.Errorf("%s: %v, %v; want ErrForeign", name, s, err)
		}
	}
}

func signed(t *testing.T, template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestARequestProvesThatItsSenderHasTheKey(t *testing.T) {
	identity, err := NewIdentity("n1")
	if err != nil {
		t.Fatal(err)
	}
	request, err := identity.Request()
	if err != nil {
		t.Fatal(err)
	}
	key, err := ParseRequest(request)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := KeyID(key); err != nil || id == "" || id != must(identity.KeyID()) {
		t.Errorf("the request is for another key: %q, %v", id, err)
	}
	block, _ := pem.Decode([]byte(request))
	tampered := append([]byte{}, block.Bytes...)
	tampered[len(tampered)-1] ^= 1
	p384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	weak, _ := RequestCertificate(p384)
	for name, text := range map[string]string{
		"empty": "", "no PEM": "hello", "a key": identity.Key, "another curve": weak, "two": request + request, "endless": request + strings.Repeat(" ", maxRequest),
		"another's signature": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: tampered})),
	} {
		if _, err := ParseRequest(text); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestAnIdentityIsKeptWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), IdentityName)
	if _, err := ReadIdentity(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
	identity := must(NewIdentity("n1"))
	if _, err := identity.TLS(); err == nil {
		t.Error("an identity without a certificate is of use")
	}
	a := mustOpen(t, t.TempDir(), time.Now)
	key := must(ParseRequest(must(identity.Request())))
	der := must(a.Certify(key, subject.Subject{Kind: subject.Node, Name: "n1", ID: "id"}, time.Now(), time.Hour))
	identity = identity.Certified("n1", api.NodeCertificate{
		Certificate: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), Pin: a.Pin().String(), Site: a.Site(), RenewInSeconds: 60,
	})
	if _, err := identity.TLS(); err != nil {
		t.Fatal(err)
	}
	if err := identity.Write(path); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	back := must(ReadIdentity(path))
	if back.Key != identity.Key || back.Certificate != identity.Certificate || !back.RenewAt.Equal(identity.RenewAt) || back.Site != a.Site() {
		t.Errorf("read back as %+v", back)
	}
	next := must(back.Renewed())
	if next.Key == back.Key || next.Certificate != "" || next.Node != "n1" || next.Site != a.Site() {
		t.Errorf("renewed: %+v", next)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadIdentity(path); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("damaged: %v", err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadIdentity(path); !errors.As(err, new(*ExposedError)) {
		t.Errorf("readable by others: %v", err)
	}
}

func TestASiteStaysWhoItIs(t *testing.T) {
	dir := t.TempDir()
	first := mustOpen(t, dir, time.Now).Site()
	if again := mustOpen(t, dir, time.Now).Site(); first == "" || again != first {
		t.Errorf("%q, then %q", first, again)
	}
}
