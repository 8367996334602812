package trust

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// IdentityName is the name of the file of a node's identity, in the agent's directory.
const IdentityName = "identity.json"

// Identity is who a node is to its site: its key, and what the site issued for it. Its file is readable by its owner only, and always whole.
type Identity struct {
	// Node is the node's name. Site identifies the site, and stays when its servers or its CA are replaced.
	Node string `json:"node"`
	Site string `json:"site,omitempty"`
	// Key is in PEM (PKCS #8), made on the node.
	Key string `json:"key"`
	// Certificate is in PEM; empty while the site has not answered.
	Certificate string `json:"certificate,omitempty"`
	// RenewAt is when to ask for another, by the node's own clock.
	RenewAt time.Time `json:"renew_at,omitzero"`
	// Pin is of the site's CA.
	Pin string `json:"pin,omitempty"`
	// Token is the ID of the enrollment token it was made by; it is not secret.
	Token string `json:"token,omitempty"`
}

// NewIdentity makes a key for a node. The identity is of use once the site has certified it.
func NewIdentity(node string) (Identity, error) {
	key, err := NewKey()
	if err != nil {
		return Identity{}, err
	}
	return Identity{Node: node}.withKey(key)
}

func (i Identity) withKey(key *ecdsa.PrivateKey) (Identity, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Identity{}, fmt.Errorf("encode a key: %w", err)
	}
	i.Key = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	i.Certificate, i.RenewAt = "", time.Time{}
	return i, nil
}

// Renewed is the identity with a new key and no certificate yet.
func (i Identity) Renewed() (Identity, error) {
	key, err := NewKey()
	if err != nil {
		return Identity{}, err
	}
	return i.withKey(key)
}

// Certified is the identity with what the site answered to Request, as of now by the node's clock.
func (i Identity) Certified(node string, c api.NodeCertificate) Identity {
	i.Node, i.Certificate, i.Pin, i.Site = node, c.Certificate, c.Pin, c.Site
	i.RenewAt = time.Now().Add(time.Duration(c.RenewInSeconds * float64(time.Second)))
	return i
}

// KeyID names its key.
func (i Identity) KeyID() (string, error) {
	key, err := i.key()
	if err != nil {
		return "", err
	}
	return KeyID(&key.PublicKey)
}

// Request makes a certificate request for its key.
func (i Identity) Request() (string, error) {
	key, err := i.key()
	if err != nil {
		return "", err
	}
	return RequestCertificate(key)
}

func (i Identity) key() (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode([]byte(i.Key))
	if block == nil {
		return nil, errors.New("the key of the identity can't be read")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the key of the identity can't be read: %w", err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("the key of the identity is not an ECDSA key")
	}
	return key, nil
}

// TLS is the certificate with its key, for connections to the server.
func (i Identity) TLS() (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair([]byte(i.Certificate), []byte(i.Key))
	if err != nil {
		return nil, fmt.Errorf("the certificate of node %q: %w", i.Node, err)
	}
	return &pair, nil
}

// ReadIdentity reads an identity's file; fs.ErrNotExist when there is none. It refuses one that others than its owner may read (*ExposedError).
func ReadIdentity(path string) (Identity, error) {
	var i Identity
	data, err := readPrivate(path)
	if errors.Is(err, fs.ErrNotExist) {
		return i, err
	}
	if err != nil {
		return i, fmt.Errorf("read the node's identity: %w", err)
	}
	if err := json.Unmarshal(data, &i); err != nil {
		return i, fmt.Errorf("the node's identity %s is damaged: %w; remove the file, revoke the node (nearmetal node revoke) and enroll it again", path, err)
	}
	return i, nil
}

// Write writes an identity's file, whole or not at all.
func (i Identity) Write(path string) error {
	data, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return err
	}
	if err := writePrivate(path, append(data, '\n')); err != nil {
		return fmt.Errorf("write the node's identity: %w", err)
	}
	return nil
}

// WriteVolatile writes it where nothing outlasts the machine's power, without waiting for a disk.
func (i Identity) WriteVolatile(path string) error {
	data, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o600)
}

// NodeTLS is ClientTLS with the identity's certificate, which certificate returns for each connection.
func NodeTLS(pin Pin, host string, certificate func() (*tls.Certificate, error)) *tls.Config {
	config := ClientTLS(pin, host)
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate() }
	return config
}
