package trust

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
)

// Sealer encrypts the secrets that are stored, such as BMC passwords, with a key that only the site secret gives. It may be used from many
// goroutines.
type Sealer struct {
	// aeads are of each site secret, the newest first.
	aeads []cipher.AEAD
}

// ErrSealed is the error of a sealed secret that does not open.
var ErrSealed = errors.New("the stored secret can't be opened: it was sealed with another site secret or for another machine, or it is damaged; " +
	"enter the password again")

// sealVersion is the first byte of what is sealed: AES-256-GCM, nonce of 12 random bytes, key by HKDF-SHA256 (RFC 5869).
const sealVersion = 1

// NewSealer makes a sealer from the site secrets. It seals with the newest and opens what any of them has sealed.
func NewSealer(secrets Secrets) (*Sealer, error) {
	s := &Sealer{}
	for _, key := range secrets.NewestFirst() {
		aead, err := sealing(key)
		if err != nil {
			return nil, err
		}
		s.aeads = append(s.aeads, aead)
	}
	return s, nil
}

func sealing(siteSecret []byte) (cipher.AEAD, error) {
	if len(siteSecret) != SecretBytes {
		return nil, fmt.Errorf("a site secret has %d bytes, this has %d", SecretBytes, len(siteSecret))
	}
	key, err := hkdf.Key(sha256.New, siteSecret, nil, "nearmetal sealed secrets 1", 32)
	if err != nil {
		return nil, fmt.Errorf("derive the key of sealed secrets: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("make the cipher of sealed secrets: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("make the cipher of sealed secrets: %w", err)
	}
	return aead, nil
}

// Seal encrypts a secret of the machine with this UID; sealed for one, it does not open for another. A short secret's length is hidden: what
// is sealed is padded to whole blocks of 32 bytes.
func (s *Sealer) Seal(uid string, secret []byte) []byte {
	padded := make([]byte, (len(secret)/sealBlock+1)*sealBlock)
	copy(padded, secret)
	padded[len(secret)] = 1 // then zeros: ISO/IEC 7816-4
	return s.aeads[0].Seal([]byte{sealVersion}, nil, padded, sealedFor(uid))
}

// sealBlock is what lengths are rounded up to.
const sealBlock = 32

// Open decrypts what Seal made. The error is ErrSealed whatever is wrong.
func (s *Sealer) Open(uid string, sealed []byte) ([]byte, error) {
	if len(sealed) == 0 || sealed[0] != sealVersion {
		return nil, ErrSealed
	}
	var padded []byte
	err := ErrSealed
	for _, aead := range s.aeads {
		if padded, err = aead.Open(nil, nil, sealed[1:], sealedFor(uid)); err == nil {
			break
		}
	}
	if err != nil {
		return nil, ErrSealed
	}
	for i := len(padded) - 1; i >= 0; i-- {
		switch padded[i] {
		case 0:
		case 1:
			return padded[:i], nil
		default:
			return nil, ErrSealed
		}
	}
	return nil, ErrSealed
}

// sealedFor is the associated data.
func sealedFor(uid string) []byte { return append([]byte{sealVersion}, "machine "+uid...) }
