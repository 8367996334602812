// Package membercert issues and verifies the certificates by which a member and what runs in it are known: X.509, for mutual TLS.
//
// Each cluster has an authority of its own. It derives from the site secret, as the cluster's SSH keys do (package sshca), so nothing is stored
// and rendering again gives the same bytes. Two kinds of certificates are there for an assignment. One is of the workload, whose key the member's
// user reads: what users run shows it to other members and to services. The other is of the member itself, whose key only its root reads: the
// member agent shows it on a link that needs one. Neither is good for the other's purpose.
//
// A certificate lives as long as its assignment. It is issued anew each day while the assignment is held, and ends a week later; until
// then, an assignment that was released or replaced is refused by verifiers that know which are held. The package does no I/O, and
// has no clock and no randomness of its own. Start with New on the server's side, and with Verifier on that of whoever is shown a certificate.
package membercert

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"time"

	"github.com/nearmetal/nearmetal/internal/trust/subject"
)

// MinSecretBytes is the least length of a site secret.
const MinSecretBytes = 32

const (
	// renewal is for how long the certificates of a cluster stay the same.
	renewal = 24 * time.Hour
	// life is how long a certificate is valid from the start of its period on. A site whose servers were away for less than life-renewal
	// finds all certificates valid.
	life = 7 * 24 * time.Hour
	// backdate is how much a verifier's clock may be behind the server's.
	backdate = 24 * time.Hour
)

// Authorities are valid at any time: when one was made protects nothing. noEnd is the end of what has no well-defined one (RFC 5280, section
// 4.1.2.5).
var (
	noStart = time.Unix(0, 0).UTC()
	noEnd   = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// salt separates these keys from whatever else is derived from the site secret; the version changes with the derivation.
const salt = "nearmetal member certificates v1"

// Authority certifies the members of one cluster.
type Authority struct {
	secret     []byte
	clusterUID string
	key        *ecdsa.PrivateKey
	cert       *x509.Certificate
	// offset is where in a day the cluster's periods begin, so that not all clusters of a site are renewed at once.
	offset time.Duration
}

// Identity is a key with its certificate, in PEM.
type Identity struct {
	// Key is in PKCS #8, unencrypted. It stays the same for an assignment's life, so key and certificate always fit, in whatever order a
	// renewal replaces files.
	Key         []byte
	Certificate []byte
}

// Period is a stretch of time in which the certificates of a cluster stay the same.
type Period struct{ From, Until time.Time }

// New derives the authority of a cluster.
func New(siteSecret []byte, clusterUID string) (*Authority, error) {
	if len(siteSecret) < MinSecretBytes {
		return nil, fmt.Errorf("the site secret has %d bytes; the minimum is %d", len(siteSecret), MinSecretBytes)
	}
	if clusterUID == "" {
		return nil, errors.New("an authority of members needs a cluster UID")
	}
	a := &Authority{secret: bytes.Clone(siteSecret), clusterUID: clusterUID}
	stream, err := a.derive("offset", "", 8)
	if err != nil {
		return nil, err
	}
	a.offset = time.Duration(binary.BigEndian.Uint64(stream)%uint64(renewal/time.Second)) * time.Second
	if a.key, err = a.deriveKey("authority", ""); err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "Nearmetal cluster " + clusterUID},
		NotBefore: noStart, NotAfter: noEnd,
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := a.sign(template, template, "authority", &a.key.PublicKey)
	if err != nil {
		return nil, err
	}
	a.cert, err = x509.ParseCertificate(der)
	return a, err
}

// Certificate is the authority's own certificate, in PEM. It is public.
func (a *Authority) Certificate() []byte { return certificatePEM(a.cert.Raw) }

// Period returns the period that a time is in.
func (a *Authority) Period(now time.Time) Period {
	from := now.Add(-a.offset).Truncate(renewal).Add(a.offset).UTC()
	return Period{from, from.Add(renewal)}
}

// Member returns the identity of an assignment's root: a client's, without any name that a host could be reached by.
func (a *Authority) Member(assignmentID string, in Period) (Identity, error) {
	return a.identity(subject.Member, assignmentID, in, &x509.Certificate{
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// Workload returns the identity of an assignment's user: a client's, and a server's for the names and addresses by which others in
// the cluster reach the member.
func (a *Authority) Workload(assignmentID string, names []string, addresses []netip.Addr, in Period) (Identity, error) {
	template := &x509.Certificate{
		DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	for _, address := range addresses {
		template.IPAddresses = append(template.IPAddresses, address.AsSlice())
	}
	return a.identity(subject.Workload, assignmentID, in, template)
}

// identity derives the key of this kind and assignment, and certifies it for a period.
func (a *Authority) identity(kind, assignmentID string, in Period, template *x509.Certificate) (Identity, error) {
	fail := func(err error) (Identity, error) {
		return Identity{}, fmt.Errorf("%s certificate of %s: %w", kind, assignmentID, err)
	}
	name, err := subject.Subject{Kind: kind, Name: a.clusterUID, ID: assignmentID}.URI()
	if err != nil {
		return fail(err)
	}
	template.URIs = append(template.URIs, name)
	template.Subject = pkix.Name{CommonName: assignmentID, OrganizationalUnit: []string{kind}}
	template.KeyUsage, template.BasicConstraintsValid = x509.KeyUsageDigitalSignature, true
	template.NotBefore, template.NotAfter = in.From.Add(-backdate), in.From.Add(life)
	key, err := a.deriveKey(kind, assignmentID)
	if err != nil {
		return fail(err)
	}
	der, err := a.sign(template, a.cert, fmt.Sprintf("%s %s %d", kind, assignmentID, in.From.Unix()), &key.PublicKey)
	if err != nil {
		return fail(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fail(err)
	}
	return Identity{
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}),
		Certificate: certificatePEM(der),
	}, nil
}

// sign signs a certificate of this cluster and returns it in DER. Its serial number is derived from what the certificate is for. Without a source of
// randomness, signatures are those of RFC 6979: the same each time.
func (a *Authority) sign(template, parent *x509.Certificate, purpose string, key *ecdsa.PublicKey) ([]byte, error) {
	serial, err := a.derive("serial", purpose, 16)
	if err != nil {
		return nil, err
	}
	template.SerialNumber = new(big.Int).SetBytes(serial)
	return x509.CreateCertificate(nil, template, parent, key, a.key)
}

// deriveKey derives a key on P-256 for a purpose, by FIPS 186-5, appendix A.2.1: 64 bits more than needed leave no bias. It is of P-256
// since the security plugins of DDS take no Ed25519.
func (a *Authority) deriveKey(kind, assignmentID string) (*ecdsa.PrivateKey, error) {
	curve := elliptic.P256()
	size := curve.Params().BitSize / 8
	seed, err := a.derive(kind+" key", assignmentID, size+8)
	if err != nil {
		return nil, err
	}
	one := big.NewInt(1)
	scalar := new(big.Int).SetBytes(seed)
	scalar.Mod(scalar, new(big.Int).Sub(curve.Params().N, one)).Add(scalar, one)
	return ecdsa.ParseRawPrivateKey(curve, scalar.FillBytes(make([]byte, size)))
}

// derive returns n bytes that only this purpose gets. Each part is preceded by its length, so no two purposes can have the same info
// string.
func (a *Authority) derive(kind, purpose string, n int) ([]byte, error) {
	info := fmt.Sprintf("%d:%s %d:%s %d:%s", len(kind), kind, len(a.clusterUID), a.clusterUID, len(purpose), purpose)
	return hkdf.Key(sha256.New, a.secret, []byte(salt), info, n)
}

func certificatePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
