package trust

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

// ErrWrongServer: the server's certificate is not of the CA the token is pinned to.
var ErrWrongServer = errors.New("the token is for another server")

// ClientTLS is the configuration of a client that accepts only a server whose certificate the pinned CA has issued for
// host (the name or IP address it is reached by, without port), and that is valid now.
func ClientTLS(pin Pin, host string) *tls.Config {
	return &tls.Config{
		ServerName: host,
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2", "http/1.1"},
		// The library's own verification needs the CA beforehand, but only its pin is known: the CA comes with the
		// handshake. VerifyConnection does the same verification with the CA that fits the pin as only root; it runs on
		// every connection, resumed ones too.
		InsecureSkipVerify: true,
		VerifyConnection:   func(cs tls.ConnectionState) error { return verify(cs, pin, host) },
	}
}

// verify checks the chain up to the pinned CA, life times, usage and host. The connection's own ServerName is empty for an IP
// address, so the host is given.
func verify(cs tls.ConnectionState, pin Pin, host string) error {
	if len(cs.PeerCertificates) == 0 {
		return fmt.Errorf("%w: this server sent no certificate", ErrWrongServer)
	}
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	found := false
	for _, cert := range cs.PeerCertificates[1:] {
		if sha256.Sum256(cert.RawSubjectPublicKeyInfo) == pin && cert.IsCA {
			roots.AddCert(cert)
			found = true
		} else {
			intermediates.AddCert(cert)
		}
	}
	if !found {
		return fmt.Errorf("%w: this server's certificate is of another CA; use this server's token file", ErrWrongServer)
	}
	if host == "" {
		return fmt.Errorf("%w: the host name to verify is missing", ErrWrongServer)
	}
	_, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, DNSName: host,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrWrongServer, err)
	}
	return nil
}
