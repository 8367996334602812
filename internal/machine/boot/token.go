package boot

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Why a boot token is not taken.
var (
	// ErrToken: it was not made with this site's secret, or is damaged.
	ErrToken = errors.New("the boot token is not valid at this site")
	// ErrExpired: it was good once; the machine boots again to get another.
	ErrExpired = errors.New("the boot token has expired")
)

const (
	tokenVersion = 1
	// tagBytes of HMAC-SHA256 stand at the end of a token: the length of half the hash, as RFC 2104, section 5 allows.
	tagBytes = sha256.Size / 2
	// maxTokenBytes bounds what is looked at: a kernel's command line has 2048 bytes on x86.
	maxTokenBytes = 1024
)

// tokenEncoding is base64url without padding (RFC 4648, section 5), fit for a command line and a URL; strict: a token has one spelling.
var tokenEncoding = base64.RawURLEncoding.Strict()

// Seal makes the boot token of these claims with a key derived from the site secret. Nobody without the secret can make or change one;
// the claims themselves can be read by all.
func Seal(secret []byte, c TokenClaims) string {
	b := []byte{tokenVersion}
	b = binary.AppendVarint(b, c.Generation)
	b = binary.AppendVarint(b, c.ExpiresAt.Unix())
	for _, text := range []string{c.MAC, c.Machine, string(c.Purpose), c.Port} {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	return tokenEncoding.EncodeToString(append(b, tag(secret, b)...))
}

// Open verifies a boot token and returns its claims; the expiry time is to the second. It fails with ErrToken or ErrExpired.
func Open(secret []byte, token string, now time.Time) (TokenClaims, error) {
	if len(token) > maxTokenBytes {
		return TokenClaims{}, ErrToken
	}
	raw, err := tokenEncoding.DecodeString(token)
	if err != nil || len(raw) <= tagBytes {
		return TokenClaims{}, ErrToken
	}
	body := raw[:len(raw)-tagBytes]
	if !hmac.Equal(raw[len(body):], tag(secret, body)) {
		return TokenClaims{}, ErrToken
	}
	c, ok := decodeClaims(body)
	if !ok {
		return TokenClaims{}, ErrToken
	}
	if !now.Before(c.ExpiresAt) {
		return c, fmt.Errorf("%w at %s", ErrExpired, c.ExpiresAt.Format(time.RFC3339))
	}
	return c, nil
}

func tag(secret, body []byte) []byte {
	// It fails only for lengths that no hash can give (RFC 5869).
	key, err := hkdf.Key(sha256.New, secret, nil, "nearmetal boot token 1", sha256.Size)
	if err != nil {
		panic(err)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(body)
	return mac.Sum(nil)[:tagBytes]
}

// decodeClaims reads what Seal wrote.
func decodeClaims(b []byte) (TokenClaims, bool) {
	if len(b) == 0 || b[0] != tokenVersion {
		return TokenClaims{}, false
	}
	b = b[1:]
	ok := true
	number := func() int64 {
		v, n := binary.Varint(b)
		if n <= 0 {
			ok = false
			return 0
		}
		b = b[n:]
		return v
	}
	text := func() string {
		length, n := binary.Uvarint(b)
		if n <= 0 || length > uint64(len(b)-n) {
			ok = false
			return ""
		}
		s := string(b[n : n+int(length)])
		b = b[n+int(length):]
		return s
	}
	var c TokenClaims
	c.Generation = number()
	c.ExpiresAt = time.Unix(number(), 0).UTC()
	c.MAC, c.Machine, c.Purpose, c.Port = text(), text(), api.BootPurpose(text()), text()
	return c, ok && len(b) == 0
}
