package memberlinktest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
	"github.com/nearmetal/nearmetal/internal/member/memberlink"
)

// Node is the name of the node in the suite.
const Node = "n1"

// Authority certifies members and nodes.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes one that nothing trusts yet.
func NewAuthority(t *testing.T) *Authority {
	t.Helper()
	a := &Authority{}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority of a test"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	cert := a.sign(t, template)
	a.cert, a.key = cert.Leaf, cert.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

// sign makes a certificate with a key of its own; that of the authority itself when it has none yet.
func (a *Authority) sign(t *testing.T, template *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	template.NotBefore = template.NotAfter.Add(-2 * time.Hour)
	parent, signer := template, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	must(t, err)
	leaf, err := x509.ParseCertificate(der)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// Template is an unsigned certificate of a client, for members, or else of a server, for nodes.
func Template(client bool, names ...*url.URL) *x509.Certificate {
	usage := x509.ExtKeyUsageServerAuth
	if client {
		usage = x509.ExtKeyUsageClientAuth
	}
	return &x509.Certificate{URIs: names, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage}}
}

// Listen listens on a loopback address as the node agent with this certificate, for members that the authority certified.
func (a *Authority) Listen(t *testing.T, address string, node *x509.Certificate) memberlink.Endpoint {
	t.Helper()
	members := x509.NewCertPool()
	members.AddCert(a.cert)
	endpoint, err := memberlink.ListenTLS(t.Context(), address, a.sign(t, node), members)
	must(t, err)
	return endpoint
}

// Link writes the files of a member with this certificate, which trusts the given authority of nodes, and returns its configuration.
func (a *Authority) Link(t *testing.T, address string, member *x509.Certificate, nodes *Authority) *memberconfig.Link {
	t.Helper()
	dir, cert := t.TempDir(), a.sign(t, member)
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	must(t, err)
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600))
		return path
	}
	return &memberconfig.Link{
		Kind: memberconfig.LinkTLS, Address: address, Node: Node,
		Certificate: write("member.pem", "CERTIFICATE", cert.Certificate[0]),
		Key:         write("member.key", "PRIVATE KEY", key),
		Authority:   write("nodes.pem", "CERTIFICATE", nodes.cert.Raw),
	}
}
