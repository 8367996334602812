package sshca

import (
	"bytes"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// People is the principal of certificates for people. Members accept it beside those of their cluster's assignments; such a
// certificate can't be taken back, so it is valid for a short time only.
const People = "people"

const (
	// MaxPeopleValidity bounds how long a certificate for people is valid.
	MaxPeopleValidity = 24 * time.Hour
	// peopleSlack is how much, in time, a member's clock may be behind the server's.
	peopleSlack = time.Minute
	// maxKeyLine bounds a public key, in bytes; one of RSA with 16384 bits has 2,800.
	maxKeyLine = 16 << 10
	// minRSABits is the least length of RSA keys (NIST SP 800-57 part 1, table 2: anything shorter is below 112 bits of strength).
	minRSABits = 2048
	// maxNameBytes bounds what a certificate says of who asked for it.
	maxNameBytes = 200
)

// acceptedKeys are the types of keys that are certified. DSA, with its 1024 bits, is not (OpenSSH 7.0 gave it up).
var acceptedKeys = []string{
	ssh.KeyAlgoED25519, ssh.KeyAlgoSKED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoSKECDSA256,
	ssh.KeyAlgoRSA,
}

// KeyError tells why a key that somebody sent is not certified.
type KeyError struct{ Reason string }

func (e *KeyError) Error() string { return "this public key can't be used: " + e.Reason }

// UserCertificate is a certificate for somebody's own key.
type UserCertificate struct {
	// Line is the certificate, one line as in a -cert.pub file.
	Line []byte
	// ValidAfter and ValidUntil are in whole seconds; from ValidUntil on no login is possible with it.
	ValidAfter, ValidUntil time.Time
}

// CertifyUser signs somebody's public key, a line as in authorized_keys (sshd(8)), for logins as the cluster's user. The name of who
// asks is noted in it; members' sshd writes it to its log. A key that is refused gives a *KeyError.
func (a *Authority) CertifyUser(publicKey []byte, name string, validFor time.Duration, now time.Time) (UserCertificate, error) {
	if validFor < time.Second || validFor > MaxPeopleValidity {
		return UserCertificate{}, fmt.Errorf("a user's certificate can be valid for 1s to %v, not for %v", MaxPeopleValidity, validFor)
	}
	key, err := parseUserKey(publicKey)
	if err != nil {
		return UserCertificate{}, err
	}
	now = now.Truncate(time.Second)
	c := UserCertificate{ValidAfter: now.Add(-peopleSlack).UTC(), ValidUntil: now.Add(validFor.Truncate(time.Second)).UTC()}
	digest := sha256.Sum256(key.Marshal())
	stream, err := a.derive(People+" certificate", fmt.Sprintf("%x %d %d %s", digest, c.ValidAfter.Unix(), c.ValidUntil.Unix(), name), 8+32)
	if err != nil {
		return UserCertificate{}, fmt.Errorf("certificate for %s: %w", name, err)
	}
	cert := &ssh.Certificate{
		Key: key, CertType: ssh.UserCert, KeyId: People + " " + plainName(name), ValidPrincipals: []string{People},
		Serial:     binary.BigEndian.Uint64(stream[:8]),
		ValidAfter: uint64(max(c.ValidAfter.Unix(), 0)), ValidBefore: uint64(c.ValidUntil.Unix()),
		// Neither an agent nor a display of theirs is lent to the member.
		Permissions: ssh.Permissions{Extensions: map[string]string{"permit-port-forwarding": "", "permit-pty": "", "permit-user-rc": ""}},
	}
	if err := cert.SignCert(bytes.NewReader(stream[8:]), a.signer); err != nil {
		return UserCertificate{}, fmt.Errorf("certificate for %s: %w", name, err)
	}
	c.Line = publicLine(cert, People+" of cluster "+a.clusterUID)
	return c, nil
}

// KnownHosts is the line of a known_hosts file by which the host keys of the cluster's members are believed (sshd(8)): each only
// for the names in its certificate.
func (a *Authority) KnownHosts() []byte {
	return append([]byte("@cert-authority * "), a.PublicKey()...)
}

// parseUserKey reads one public key and refuses what should not be certified.
func parseUserKey(line []byte) (ssh.PublicKey, error) {
	refuse := func(format string, args ...any) (ssh.PublicKey, error) {
		return nil, &KeyError{fmt.Sprintf(format, args...)}
	}
	if len(line) > maxKeyLine {
		return refuse("the key has %d bytes; the limit is %d", len(line), maxKeyLine)
	}
	if bytes.Contains(line, []byte("PRIVATE KEY")) {
		return refuse("this is a private key, now exposed; make a new key and send the line in its .pub file")
	}
	line = bytes.TrimSpace(line)
	if bytes.ContainsAny(line, "\r\n\x00") {
		return refuse("the key has more than one line; send the line of one .pub file")
	}
	key, _, options, _, err := ssh.ParseAuthorizedKey(line)
	if err != nil {
		return refuse("this is not a line of a .pub file, such as `ssh-ed25519 AAAAC3Nza... comment`")
	}
	if len(options) > 0 {
		return refuse("the key has options (%s); send only its type, the key and a comment", strings.Join(options, ","))
	}
	if _, ok := key.(*ssh.Certificate); ok {
		return refuse("this is a certificate; send the public key, from the file without -cert in its name")
	}
	if !slices.Contains(acceptedKeys, key.Type()) {
		return refuse("keys of type %s are not accepted; make one with `ssh-keygen -t ed25519`", key.Type())
	}
	if crypto, ok := key.(ssh.CryptoPublicKey); ok {
		if rsaKey, ok := crypto.CryptoPublicKey().(*rsa.PublicKey); ok && rsaKey.N.BitLen() < minRSABits {
			return refuse("the key has %d bits; RSA keys need %d or more", rsaKey.N.BitLen(), minRSABits)
		}
	}
	return key, nil
}

// plainName makes a name safe to stand in a log.
func plainName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, name)
	return name[:min(len(name), maxNameBytes)]
}
