package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/internal/trust/subject"
)

// Errors of client certificates.
var (
	// ErrForeign: the certificate was not issued by this site's CA for a client.
	ErrForeign = errors.New("the certificate was not issued by this site")
	// ErrEnded: this site issued the certificate, but its time is over, or has not begun.
	ErrEnded = errors.New("the certificate has ended")
)

// clientBackdate is how much earlier than now a client certificate begins: servers of one site may differ by that much.
const clientBackdate = 24 * time.Hour

// Certify issues a client certificate, in DER, for a public key. It begins a day before now and ends life after now.
func (a *Authority) Certify(key *ecdsa.PublicKey, s subject.Subject, now time.Time, life time.Duration) ([]byte, error) {
	name, err := s.URI()
	if err != nil {
		return nil, fmt.Errorf("certify %s: %w", s, err)
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: s.Name, OrganizationalUnit: []string{s.Kind}}, URIs: []*url.URL{name},
		NotBefore: now.Add(-clientBackdate), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cas[0].cert, key, a.cas[0].key)
	if err != nil {
		return nil, fmt.Errorf("certify %s: %w", s, err)
	}
	return der, nil
}

// Identify tells whom a client certificate names. With ErrEnded the subject is told too: whoever has the key may be given another
// certificate. What was revoked is for the caller to know.
func (a *Authority) Identify(cert *x509.Certificate, now time.Time) (subject.Subject, error) {
	s, err := subject.Of(cert)
	if err != nil {
		return subject.Subject{}, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	// At a time within its life, so that the library's one error for all reasons tells the end of its life from a forgery.
	_, err = cert.Verify(x509.VerifyOptions{
		Roots: a.pool(), CurrentTime: cert.NotAfter, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return subject.Subject{}, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if now.After(cert.NotAfter) || now.Before(cert.NotBefore) {
		return s, fmt.Errorf("%w: it was valid from %s to %s", ErrEnded, cert.NotBefore.UTC().Format(time.DateTime), cert.NotAfter.UTC().Format(time.DateTime))
	}
	return s, nil
}

// KeyID names a public key: the SHA-256 of its SubjectPublicKeyInfo, in hexadecimal.
func KeyID(key *ecdsa.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("encode a public key: %w", err)
	}
	return keyIDOf(der), nil
}

// CertificateKeyID is the KeyID of a certificate's key.
func CertificateKeyID(cert *x509.Certificate) string { return keyIDOf(cert.RawSubjectPublicKeyInfo) }

func keyIDOf(spki []byte) string {
	sum := sha256.Sum256(spki)
	return hex.EncodeToString(sum[:])
}

// NewKey makes a key of the kind that all of a site's certificates are for (ECDSA on P-256).
func NewKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}

// RequestCertificate makes a certificate request (PKCS #10, RFC 2986), in PEM: it proves that whoever sends it has the key. Nothing that it names is
// believed.
func RequestCertificate(key *ecdsa.PrivateKey) (string, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return "", fmt.Errorf("make a certificate request: %w", err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})), nil
}

// maxRequest bounds a certificate request in PEM: one of ours has some 400 bytes.
const maxRequest = 4 << 10

// ParseRequest returns the key of a certificate request, once its signature proves that the sender has it.
func ParseRequest(text string) (*ecdsa.PublicKey, error) {
	if len(text) > maxRequest {
		return nil, fmt.Errorf("the certificate request has %d bytes; at most %d are read", len(text), maxRequest)
	}
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(strings.TrimSpace(string(rest))) > 0 {
		return nil, errors.New("the certificate request is not one in PEM (RFC 7468)")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the certificate request can't be read: %w", err)
	}
	key, ok := request.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("the key of the certificate request is not an ECDSA key on P-256")
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("the certificate request is not signed by its own key: %w", err)
	}
	return key, nil
}
