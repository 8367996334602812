package memberlink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/nearmetal/nearmetal/internal/member/membercert"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
	"github.com/nearmetal/nearmetal/internal/trust/subject"
)

// TLS is the member agent's end of a mutual TLS connection. The files are read for each connection, so that renewed certificates
// come into use.
type TLS struct {
	// Address is HOST:PORT of the node agent.
	Address string
	// Node is the name of the node that the node agent's certificate must be of.
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
	who, err := subject.Of(cert)
	if err != nil {
		return err
	}
	if who.Kind != subject.Node || who.Name != t.Node {
		return fmt.Errorf("the certificate is of %s, not of node %q", who, t.Node)
	}
	return nil
}

// ListenTLS listens for members whose certificates the verifier accepts. One listener takes any member: which member a connection is
// of, the authenticator returns.
func ListenTLS(ctx context.Context, address string, own tls.Certificate, members membercert.Verifier) (Endpoint, error) {
	config := net.ListenConfig{KeepAliveConfig: keepAlive}
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return Endpoint{}, fmt.Errorf("listening for members: %w", err)
	}
	return Endpoint{tls.NewListener(listener, &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own},
		// The library's own verification knows one list of authorities, and each cluster has its own.
		ClientAuth: tls.RequireAnyClientCert,
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := members.Verify(state.PeerCertificates[0], time.Now())
			return err
		},
		// Resumed sessions would save a millisecond a connection, and let certificates live on that have expired since.
		SessionTicketsDisabled: true,
	}), certificates{}}, nil
}

// certificates knows members by their certificates.
type certificates struct{}

// Member carries out the handshake, which ends unless the verifier accepts the certificate, and returns the assignment ID.
func (certificates) Member(ctx context.Context, conn net.Conn) (string, error) {
	secure, ok := conn.(*tls.Conn)
	if !ok {
		return "", fmt.Errorf("%T is no TLS connection", conn)
	}
	if err := secure.HandshakeContext(ctx); err != nil {
		return "", err
	}
	who, err := subject.Of(secure.ConnectionState().PeerCertificates[0])
	return who.ID, err
}
