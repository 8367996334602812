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

	"github.com/nearmetal/nearmetal/internal/member/membercert"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
	"github.com/nearmetal/nearmetal/internal/member/memberlink"
	"github.com/nearmetal/nearmetal/internal/trust/subject"
)

// Node is the name of the node in the suite, Cluster the UID of its cluster.
const (
	Node    = "n1"
	Cluster = "u1"
)

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
		NotAfter: time.Now().Add(90 * time.Minute), // what it signs is judged at its own end, an hour from now
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

// MemberURI returns the name of the member with this assignment ID, in the suite's cluster.
func MemberURI(id string) *url.URL { return uri(subject.Member, Cluster, id) }

// NodeURI returns the name of a node's agent.
func NodeURI(node string) *url.URL { return uri(subject.Node, node, "identity-of-"+node) }

func uri(kind, name, id string) *url.URL {
	return &url.URL{Scheme: "nearmetal", Host: kind, Path: "/" + name + "/" + id}
}

// Members accepts the members of the suite's cluster, whatever their IDs, by certificates of the authority.
func (a *Authority) Members() membercert.Verifier {
	return Members(a.cert)
}

// Members accepts the members of the suite's cluster, whatever their IDs, by certificates of its authority.
func Members(authority *x509.Certificate) membercert.Verifier {
	return membercert.Verifier{
		Kind: subject.Member,
		Authority: func(clusterUID string) *x509.Certificate {
			if clusterUID != Cluster {
				return nil
			}
			return authority
		},
		Holds: func(string) bool { return true },
	}
}

// Listen listens on an address as the node agent with this certificate of the authority, for members that the verifier accepts.
func (a *Authority) Listen(t *testing.T, address string, node *x509.Certificate, members membercert.Verifier) memberlink.Endpoint {
	t.Helper()
	endpoint, err := memberlink.ListenTLS(t.Context(), address, a.sign(t, node), members)
	must(t, err)
	return endpoint
}

// Link writes the files of a member with this certificate of the authority, and returns its configuration. nodes is the authority of
// node agents that the member trusts.
func (a *Authority) Link(t *testing.T, address string, member *x509.Certificate, nodes *Authority) *memberconfig.Link {
	t.Helper()
	cert := a.sign(t, member)
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	must(t, err)
	return nodes.Trusted(t, address, membercert.Identity{
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}),
	})
}

// Trusted writes the files of a member with this identity, which trusts the authority's node agents, and returns its configuration.
func (a *Authority) Trusted(t *testing.T, address string, member membercert.Identity) *memberconfig.Link {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, data, 0o600))
		return path
	}
	return &memberconfig.Link{
		Kind: memberconfig.LinkTLS, Address: address, Node: Node,
		Certificate: write("member.crt", member.Certificate),
		Key:         write("member.key", member.Key),
		Authority:   write("nodes.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})),
	}
}
