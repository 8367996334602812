// Package sshca is the SSH certificate authority of a cluster: host and user keys of its members and the certificates on them.
//
// Everything is derived from the site secret (HKDF-SHA256, RFC 5869), so nothing else is stored and rendering again gives the
// same bytes. The authority's key stays on the server: members get their own keys and certificates only. The package does no
// I/O, has no clock and no randomness of its own. Start with New.
//
// A member's user certificate names its assignment as its only principal. Members accept the principals of the assignments their
// cluster holds, so a replaced member's identity is revoked by leaving it out of that list; there is no expiry beside that.
// Certificates for people (people.go) are on keys of their own and expire soon instead.
package sshca

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/crypto/ssh"
)

// MinSecretBytes is the least length of a site secret.
const MinSecretBytes = 32

// clockSkew is how much a member's clock may be behind the server's, or be set back while it runs: certificates are valid that much
// earlier. A machine that lost its time is years behind; when a cluster was made protects nothing, its keys do.
const clockSkew = 10 * 365 * 24 * time.Hour

// salt separates these keys from whatever else is derived from the site secret; the version changes with the derivation.
const salt = "nearmetal ssh authority v1"

// Authority signs for one cluster.
type Authority struct {
	secret     []byte
	clusterUID string
	validAfter time.Time
	signer     ssh.Signer
}

// Identity is a key with its certificate, as files of OpenSSH.
type Identity struct {
	// PrivateKey is in the format "openssh-key-v1", unencrypted.
	PrivateKey []byte
	// PublicKey and Certificate are single lines as in a .pub file.
	PublicKey   []byte
	Certificate []byte
}

// New derives the authority of the cluster. Its certificates are valid from the cluster's creation on.
func New(siteSecret []byte, clusterUID string, createdAt time.Time) (*Authority, error) {
	if len(siteSecret) < MinSecretBytes {
		return nil, fmt.Errorf("the site secret has %d bytes; the minimum is %d", len(siteSecret), MinSecretBytes)
	}
	if clusterUID == "" {
		return nil, errors.New("an SSH authority needs a cluster UID")
	}
	a := &Authority{secret: bytes.Clone(siteSecret), clusterUID: clusterUID, validAfter: createdAt.Add(-clockSkew)}
	key, err := a.key("authority", "")
	if err != nil {
		return nil, err
	}
	a.signer, err = ssh.NewSignerFromKey(key)
	return a, err
}

// PublicKey is the authority's public key, one line as in a .pub file.
func (a *Authority) PublicKey() []byte {
	return publicLine(a.signer.PublicKey(), "authority of cluster "+a.clusterUID)
}

// Host returns the host identity of an assignment. Principals are the member's names and addresses, by which others reach it.
func (a *Authority) Host(assignmentID string, principals []string) (Identity, error) {
	if len(principals) == 0 {
		return Identity{}, fmt.Errorf("host certificate of %s: without principals it would be valid for every name", assignmentID)
	}
	return a.identity("host", assignmentID, &ssh.Certificate{CertType: ssh.HostCert, ValidPrincipals: principals})
}

// User returns the user identity of an assignment; the assignment's ID is its only principal.
func (a *Authority) User(assignmentID string) (Identity, error) {
	if assignmentID == "" {
		return Identity{}, errors.New("user certificate: without an assignment ID it would be valid for every principal")
	}
	return a.identity("user", assignmentID, &ssh.Certificate{
		CertType: ssh.UserCert, ValidPrincipals: []string{assignmentID},
		// What ssh-keygen allows by default.
		Permissions: ssh.Permissions{Extensions: map[string]string{
			"permit-X11-forwarding": "", "permit-agent-forwarding": "", "permit-port-forwarding": "", "permit-pty": "", "permit-user-rc": "",
		}},
	})
}

// identity derives the key of this kind and assignment and signs the certificate on it.
func (a *Authority) identity(kind, assignmentID string, cert *ssh.Certificate) (Identity, error) {
	fail := func(err error) (Identity, error) {
		return Identity{}, fmt.Errorf("%s identity of %s: %w", kind, assignmentID, err)
	}
	key, err := a.key(kind, assignmentID)
	if err != nil {
		return fail(err)
	}
	public, err := ssh.NewPublicKey(key.Public())
	if err != nil {
		return fail(err)
	}
	// The nonce is there to make a signed text unpredictable to who chose its content; a derived one is, without the secret.
	stream, err := a.derive(kind+" certificate", assignmentID, 8+32)
	if err != nil {
		return fail(err)
	}
	cert.Key = public
	cert.Serial = binary.BigEndian.Uint64(stream[:8])
	cert.KeyId = kind + " " + assignmentID
	cert.ValidAfter = uint64(max(a.validAfter.Unix(), 0))
	cert.ValidBefore = ssh.CertTimeInfinity
	// Ed25519 signatures use no randomness (RFC 8032), so the reader is used for the nonce only.
	if err := cert.SignCert(bytes.NewReader(stream[8:]), a.signer); err != nil {
		return fail(err)
	}
	comment := kind + " " + assignmentID
	return Identity{
		PrivateKey:  marshalPrivateKey(key, comment),
		PublicKey:   publicLine(public, comment),
		Certificate: publicLine(cert, comment),
	}, nil
}

// key derives the key for a purpose.
func (a *Authority) key(kind, assignmentID string) (ed25519.PrivateKey, error) {
	seed, err := a.derive(kind+" key", assignmentID, ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// derive returns n bytes that only this purpose gets. Each part is preceded by its length, so no two purposes can have
// the same info string.
func (a *Authority) derive(kind, assignmentID string, n int) ([]byte, error) {
	info := fmt.Sprintf("%d:%s %d:%s %d:%s", len(kind), kind, len(a.clusterUID), a.clusterUID, len(assignmentID), assignmentID)
	return hkdf.Key(sha256.New, a.secret, []byte(salt), info, n)
}

func publicLine(key ssh.PublicKey, comment string) []byte {
	line := bytes.TrimSuffix(ssh.MarshalAuthorizedKey(key), []byte("\n"))
	return fmt.Appendf(line, " %s\n", comment)
}
