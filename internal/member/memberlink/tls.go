package memberlink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
)

// Certificates name members and nodes by one URI each (RFC 5280, section 4.2.1.6), so that neither can be taken for the other.
const (
	memberURI = "nearmetal:member/"
	nodeURI   = "nearmetal:node/"
)

// MemberURI returns the URI that the client certificate of the member with this assignment ID has to carry.
func MemberURI(id string) *url.URL { return &url.URL{Scheme: "nearmetal", Opaque: "member/" + id} }

// NodeURI returns the URI that the server certificate of a node's agent has to carry.
func NodeURI(node string) *url.URL { return &url.URL{Scheme: "nearmetal", Opaque: "node/" + node} }

// TLS is the member agent's end of a mutual TLS connection. The files are read for each connection, so that renewed certificates
// come into use.
type TLS struct {
	// Address is HOST:PORT of the node agent.
	Address string
	// Node is the name that the node agent's certificate must have.
	Node string
	// Certificate and Key are the member's own, Authority those that node agents' certificates are of: PEM files.
	Certificate, Key, Authority string
}

func openTLS(link *memberconfig.Link) (Dialer, error) {
	t := TLS{Address: link.Address, Node: link.Node, Certificate: link.Certificate, Key: link.Key, Authority: link.Authority}
	for what, value := range map[string]string{
		"address": t.Address, "node": t.Node, "certificate": t.Certificate, "key": t.Key, "authority": t.Authority,
	} {
		if value == "" {
			return nil, fmt.Errorf("a link of kind %q needs the field %q", memberconfig.LinkTLS, what)
		}
	}
	if _, _, err := net.SplitHostPort(t.Address); err != nil {
		return nil, fmt.Errorf("the address of a link of kind %q must be HOST:PORT: %w", memberconfig.LinkTLS, err)
	}
	return t, nil
}

// Dial connects and verifies the node agent's certificate. The node agent's verdict on the member's own comes later, as an error of
// the first reading.
func (t TLS) Dial(ctx context.Context) (net.Conn, error) {
	cert, err := tls.LoadX509KeyPair(t.Certificate, t.Key)
	if err != nil {
		return nil, fmt.Errorf("the member's certificate can't be read: %w", err)
	}
	data, err := os.ReadFile(t.Authority)
	if err != nil {
		return nil, fmt.Errorf("the authority of node agents can't be read: %w", err)
	}
	authority := x509.NewCertPool()
	if !authority.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s has no certificate of an authority", t.Authority)
	}
	dialer := net.Dialer{KeepAliveConfig: keepAlive}
	raw, err := dialer.DialContext(ctx, "tcp", t.Address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert},
		// The library's own verification wants a host's name. Nodes have names that no DNS knows, so VerifyConnection does the
		// same with those.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			return t.verify(state, authority)
		},
	})
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("TLS with the node agent at %s: %w", t.Address, err), raw.Close())
	}
	return conn, nil
}

// verify checks the chain up to the authority, life times, usage and the node's name.
func (t TLS) verify(state tls.ConnectionState, authority *x509.CertPool) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the node agent sent no certificate")
	}
	intermediates := x509.NewCertPool()
	for _, cert := range state.PeerCertificates[1:] {
		intermediates.AddCert(cert)
	}
	cert := state.PeerCertificates[0]
	if _, err := cert.Verify(x509.VerifyOptions{
		Roots: authority, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}); err != nil {
		return err
	}
	node, err := nameIn(cert, nodeURI)
	if err != nil {
		return err
	}
	if node != t.Node {
		return fmt.Errorf("the certificate is of node %q, not %q", node, t.Node)
	}
	return nil
}

// ListenTLS listens for members with certificates that one of the members' authorities issued. One listener takes any member: who it
// is, the authenticator tells.
func ListenTLS(ctx context.Context, address string, own tls.Certificate, members *x509.CertPool) (Endpoint, error) {
	config := net.ListenConfig{KeepAliveConfig: keepAlive}
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return Endpoint{}, fmt.Errorf("listening for members: %w", err)
	}
	return Endpoint{tls.NewListener(listener, &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: members,
		// Resumed sessions would save a millisecond a connection, and let certificates live on that have expired since.
		SessionTicketsDisabled: true,
	}), certificates{}}, nil
}

// certificates knows members by their certificates.
type certificates struct{}

// Member carries out the handshake, which verifies the certificate, and returns the name in it.
func (certificates) Member(ctx context.Context, conn net.Conn) (string, error) {
	secure, ok := conn.(*tls.Conn)
	if !ok {
		return "", fmt.Errorf("%T is no TLS connection", conn)
	}
	if err := secure.HandshakeContext(ctx); err != nil {
		return "", err
	}
	peers := secure.ConnectionState().PeerCertificates
	if len(peers) == 0 {
		return "", errors.New("the peer sent no certificate")
	}
	return nameIn(peers[0], memberURI)
}

// nameIn returns the name that a certificate has under a prefix. A certificate with several names is refused: which of them is meant
// would be a guess.
func nameIn(cert *x509.Certificate, prefix string) (string, error) {
	if len(cert.URIs) != 1 {
		return "", fmt.Errorf("the certificate has %d URIs; it must have one, %sNAME", len(cert.URIs), prefix)
	}
	name, ok := strings.CutPrefix(cert.URIs[0].String(), prefix)
	if !ok || name == "" {
		return "", fmt.Errorf("the certificate is of %s, not of %sNAME", cert.URIs[0], prefix)
	}
	return name, nil
}
