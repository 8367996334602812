package membercert

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/trust/subject"
)

var now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func secret(of byte) []byte { return bytes.Repeat([]byte{of}, MinSecretBytes) }

func authority(t *testing.T, siteSecret []byte, clusterUID string) *Authority {
	t.Helper()
	a, err := New(siteSecret, clusterUID)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// member and workload are identities of member c1-0 or another at a time.
func member(t *testing.T, a *Authority, id string, at time.Time) Identity {
	t.Helper()
	identity, err := a.Member(id, a.Period(at))
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

func workload(t *testing.T, a *Authority, id, name string, at time.Time) Identity {
	t.Helper()
	identity, err := a.Workload(id, []string{name}, []netip.Addr{netip.MustParseAddr("10.64.16.2")}, a.Period(at))
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

func parse(t *testing.T, certificate []byte) *x509.Certificate {
	t.Helper()
	block, rest := pem.Decode(certificate)
	if block == nil || len(rest) > 0 {
		t.Fatalf("%q is not one certificate", certificate)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// verifier serves the clusters of these authorities, by their UIDs, and holds these assignments.
func verifier(t *testing.T, kind string, authorities []*Authority, held ...string) Verifier {
	t.Helper()
	return Verifier{
		Kind: kind,
		Authority: func(uid string) *x509.Certificate {
			for _, a := range authorities {
				if a.clusterUID == uid {
					return parse(t, a.Certificate())
				}
			}
			return nil
		},
		Holds: func(id string) bool { return strings.Contains(strings.Join(held, " "), id) },
	}
}

func TestIssuingAgainGivesTheSameBytes(t *testing.T) {
	issue := func(siteSecret []byte, uid, id string, at time.Time) string {
		a := authority(t, siteSecret, uid)
		w, m := workload(t, a, id, "c1-0", at), member(t, a, id, at)
		return string(bytes.Join([][]byte{a.Certificate(), w.Key, w.Certificate, m.Key, m.Certificate}, nil))
	}
	period := authority(t, secret(1), "u1").Period(now)
	first := issue(secret(1), "u1", "u1.c1-0.1", period.From)
	if issue(secret(1), "u1", "u1.c1-0.1", period.Until.Add(-time.Nanosecond)) != first {
		t.Error("within a period, the files change")
	}
	for name, other := range map[string]string{
		"another secret": issue(secret(2), "u1", "u1.c1-0.1", period.From), "another cluster": issue(secret(1), "u2", "u1.c1-0.1", period.From),
		"another assignment": issue(secret(1), "u1", "u1.c1-0.2", period.From), "the next period": issue(secret(1), "u1", "u1.c1-0.1", period.Until),
	} {
		if other == first {
			t.Errorf("%s gives the same bytes", name)
		}
	}
}

func TestEachClusterHasKeysOfItsOwn(t *testing.T) {
	owners := map[string]string{}
	for name, a := range map[string]*Authority{
		"u1": authority(t, secret(1), "u1"), "u2": authority(t, secret(1), "u2"), "u1 of another site": authority(t, secret(2), "u1"),
	} {
		for what, key := range map[string][]byte{
			"authority": parse(t, a.Certificate()).RawSubjectPublicKeyInfo,
			"member":    parse(t, member(t, a, "u1.c1-0.1", now).Certificate).RawSubjectPublicKeyInfo,
			"workload":  parse(t, workload(t, a, "u1.c1-0.1", "c1-0", now).Certificate).RawSubjectPublicKeyInfo,
		} {
			if other, taken := owners[string(key)]; taken {
				t.Errorf("the %s of cluster %s has the key of the %s", what, name, other)
			}
			owners[string(key)] = what + " of cluster " + name
		}
	}
}

func TestARenewalKeepsTheKeyAndLeavesDaysBeforeTheEnd(t *testing.T) {
	a := authority(t, secret(1), "u1")
	for at := now; at.Before(now.Add(72 * time.Hour)); at = at.Add(time.Hour) {
		period := a.Period(at)
		if at.Before(period.From) || !at.Before(period.Until) || period.Until.Sub(period.From) != renewal {
			t.Fatalf("%v is in period %v", at, period)
		}
		cert := parse(t, member(t, a, "u1.c1-0.1", at).Certificate)
		if left := cert.NotAfter.Sub(at); left <= life-renewal || left > life {
			t.Errorf("at %v the certificate ends in %v", at, left)
		}
		if behind := at.Sub(cert.NotBefore); behind < backdate {
			t.Errorf("at %v a clock that is %v behind refuses the certificate", at, behind)
		}
	}
	period := a.Period(now)
	before, after := workload(t, a, "u1.c1-0.1", "c1-0", period.From), workload(t, a, "u1.c1-0.1", "c1-0", period.Until)
	if !bytes.Equal(before.Key, after.Key) || bytes.Equal(before.Certificate, after.Certificate) {
		t.Error("a renewal has another key, or the same certificate")
	}
	if parse(t, before.Certificate).SerialNumber.Cmp(parse(t, after.Certificate).SerialNumber) == 0 {
		t.Error("two certificates of an authority have one serial number")
	}
	if other := authority(t, secret(1), "u2").Period(now); other == period {
		t.Error("all clusters are renewed at once")
	}
}

// forge signs a certificate by a cluster's authority that it would never issue, for the key of an identity.
func (a *Authority) forge(t *testing.T, like *x509.Certificate, change func(c *x509.Certificate)) *x509.Certificate {
	t.Helper()
	template := *like
	template.SerialNumber, template.ExtraExtensions = big.NewInt(1), nil
	change(&template)
	der, err := x509.CreateCertificate(rand.Reader, &template, a.cert, like.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestOnlyAHeldAssignmentOfItsOwnClusterIsAccepted(t *testing.T) {
	const held, released = "u1.c1-0.2", "u1.c1-0.1"
	u1, u2, elsewhere := authority(t, secret(1), "u1"), authority(t, secret(1), "u2"), authority(t, secret(2), "u1")
	good := parse(t, member(t, u1, held, now).Certificate)
	ends := good.NotAfter
	self, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parent := *good
	parent.PublicKey = &self.PublicKey
	der, err := x509.CreateCertificate(rand.Reader, good, &parent, &self.PublicKey, self)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		cert *x509.Certificate
		at   time.Time
		want error
	}{
		{"now", good, now, nil},
		{"at its last moment", good, ends, nil},
		{"by a clock that is a day behind", good, now.Add(-backdate), nil},
		{"a moment after its end", good, ends.Add(time.Second), ErrEnded},
		{"by a clock that is two days behind", good, now.Add(-48 * time.Hour), ErrEnded},
		{"of an assignment that was released or replaced", parse(t, member(t, u1, released, now).Certificate), now, ErrReleased},
		{"of the workload of the same assignment", parse(t, workload(t, u1, held, "c1-0", now).Certificate), now, ErrForeign},
		{"of a cluster that is not served", parse(t, member(t, authority(t, secret(1), "u3"), held, now).Certificate), now, ErrForeign},
		{"of another site's cluster of the same UID", parse(t, member(t, elsewhere, held, now).Certificate), now, ErrForeign},
		{"by another cluster's authority, naming this cluster", u2.forge(t, good, func(*x509.Certificate) {}), now, ErrForeign},
		{"signed by itself", parse(t, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), now, ErrForeign},
		{"for servers only", u1.forge(t, good, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), now, ErrForeign},
		{"with two names", u1.forge(t, good, func(c *x509.Certificate) { c.URIs = []*url.URL{c.URIs[0], c.URIs[0]} }), now, ErrForeign},
		{"of the authority itself", parse(t, u1.Certificate()), now, ErrForeign},
	} {
		id, err := verifier(t, subject.Member, []*Authority{u1, u2}, held).Verify(tt.cert, tt.at)
		if !errors.Is(err, tt.want) || (err == nil) != (id == held) {
			t.Errorf("a certificate %s: got %q, %v; want %v", tt.name, id, err, tt.want)
		}
	}
}

// pair is what tls.Config takes of an identity.
func pair(t *testing.T, identity Identity) []tls.Certificate {
	t.Helper()
	cert, err := tls.X509KeyPair(identity.Certificate, identity.Key)
	if err != nil {
		t.Fatal(err)
	}
	return []tls.Certificate{cert}
}

// pool is a cluster's authority as any program reads it from the member's file.
func pool(t *testing.T, a *Authority) *x509.CertPool {
	t.Helper()
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(a.Certificate()) {
		t.Fatal("the authority's certificate can't be read")
	}
	return p
}

// connect makes a mutual TLS connection from one end's files to another's, each trusting its own cluster's authority, as programs that know no
// more than those files do. It returns the error of either end.
func connect(t *testing.T, client, server Identity, clientTrusts, serverTrusts *x509.CertPool, host string, at time.Time) error {
	t.Helper()
	near, far := net.Pipe()
	clock := func() time.Time { return at }
	served := make(chan error, 1)
	go func() {
		conn := tls.Server(far, &tls.Config{
			Certificates: pair(t, server), ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: serverTrusts, Time: clock,
		})
		_, err := io.WriteString(conn, "hello")
		served <- errors.Join(err, conn.Close())
	}()
	own := pair(t, client)[0]
	conn := tls.Client(near, &tls.Config{
		// Sent also to a server that asks for another authority's, as a hostile client would.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own, nil },
		RootCAs:              clientTrusts, ServerName: host, Time: clock,
	})
	text, err := io.ReadAll(conn)
	if err == nil && string(text) != "hello" {
		t.Errorf("read %q", text)
	}
	_ = near.Close()
	return errors.Join(err, <-served)
}

func TestMembersOfAClusterTrustEachOtherByTheirFilesAlone(t *testing.T) {
	u1, u2 := authority(t, secret(1), "u1"), authority(t, secret(1), "u2")
	c0, c1 := workload(t, u1, "u1.c1-0.1", "c1-0", now), workload(t, u1, "u1.c1-1.1", "c1-1", now)
	root := member(t, u1, "u1.c1-0.1", now)
	stranger := workload(t, u2, "u2.c1-0.1", "c1-0", now)
	for _, tt := range []struct {
		name           string
		client, server Identity
		trusted        *Authority
		host           string
		at             time.Time
		want           string // part of the error, "" for none
	}{
		{"two members, by name", c1, c0, u1, "c1-0", now, ""},
		{"two members, by address", c1, c0, u1, "10.64.16.2", now, ""},
		{"another name than the member's", c1, c0, u1, "c1-1", now, "not c1-1"},
		{"a server of another cluster with the same name", c1, stranger, u1, "c1-0", now, "unknown authority"},
		{"a client of another cluster", stranger, c0, u1, "c1-0", now, "unknown authority"},
		{"the member's root plays a server", c1, root, u1, "c1-0", now, "not valid for any names"},
		{"a certificate that has ended", c1, c0, u1, "c1-0", now.Add(life + renewal), "expired"},
	} {
		err := connect(t, tt.client, tt.server, pool(t, tt.trusted), pool(t, tt.trusted), tt.host, tt.at)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
}

// run runs a program in a folder and returns what it prints.
func run(t *testing.T, program, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestOpenSSLVerifiesTheFiles(t *testing.T) {
	openssl := needs.Program(t, "openssl")
	dir := t.TempDir()
	a := authority(t, secret(1), "u1")
	at := time.Now()
	identity := workload(t, a, "u1.c1-0.1", "c1-0", at)
	for name, content := range map[string][]byte{
		"ca.crt": a.Certificate(), "other.crt": authority(t, secret(1), "u2").Certificate(), "workload.crt": identity.Certificate, "workload.key": identity.Key,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	verify := func(ca string) (string, error) {
		return run(t, openssl, dir, "verify", "-x509_strict", "-CAfile", ca, "-verify_hostname", "c1-0", "-purpose", "sslserver", "workload.crt")
	}
	if out, err := verify("ca.crt"); err != nil {
		t.Errorf("openssl refuses the certificate: %v: %s", err, out)
	}
	if out, err := verify("other.crt"); err == nil {
		t.Errorf("openssl accepts the certificate by another cluster's authority: %s", out)
	}
	if out, err := run(t, openssl, dir, "pkey", "-in", "workload.key", "-noout", "-check"); err != nil {
		t.Errorf("openssl refuses the key: %v: %s", err, out)
	}
}

func TestWhatWouldNotNameOneAssignmentIsNotIssued(t *testing.T) {
	if _, err := New(secret(1)[1:], "u1"); err == nil {
		t.Error("a short secret is taken")
	}
	if _, err := New(secret(1), ""); err == nil {
		t.Error("an authority of no cluster is made")
	}
	a := authority(t, secret(1), "u1")
	for _, id := range []string{"", "u1/c1-0.1"} {
		if _, err := a.Member(id, a.Period(now)); err == nil {
			t.Errorf("assignment %q is certified", id)
		}
	}
}
