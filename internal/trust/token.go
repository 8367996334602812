package trust

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Role is what a token's bearer may do.
type Role = api.Role

// The roles that are not only people's.
const (
	// RoleAdmin is the role of DIR/token, which a server makes by itself: everything.
	RoleAdmin = api.RoleAdmin
	// RoleAgent is that of node agents, which show a certificate and no token.
	RoleAgent = api.RoleAgent
)

// Principal is who made a request.
type Principal struct {
	Role Role
	// User is who the token was made for; Project is whose clusters they see, empty for those of all.
	User, Project string
	// Node is the node that an agent speaks for.
	Node string
	// TokenID names the token, or the node's identity, for logs; it is not secret. Empty for the Unix socket.
	TokenID string
	// Limits restrict the token to less than its role allows.
	Limits api.Limits
	// Ends is when the token ends; zero: never.
	Ends time.Time
}

// Equal reports whether two principals are the same and may do the same.
func (p Principal) Equal(other Principal) bool {
	return p.Role == other.Role && p.User == other.User && p.Project == other.Project && p.Node == other.Node && p.TokenID == other.TokenID &&
		slices.Equal(p.Limits.Verbs, other.Limits.Verbs) && slices.Equal(p.Limits.Clusters, other.Limits.Clusters) && p.Ends.Equal(other.Ends)
}

// Pin identifies a CA: the SHA-256 of its SubjectPublicKeyInfo (as RFC 7469, section 2.4).
type Pin [sha256.Size]byte

func (p Pin) String() string { return encoding.EncodeToString(p[:]) }

// ParsePin reads what String wrote.
func ParsePin(text string) (Pin, error) {
	var p Pin
	raw, err := encoding.DecodeString(text)
	if err != nil || len(raw) != len(p) {
		return Pin{}, fmt.Errorf("%q is not the pin of a CA; a pin has %d characters of base64url", text, encoding.EncodedLen(len(p)))
	}
	copy(p[:], raw)
	return p, nil
}

const (
	tokenVersion = "nm1"
	idBytes      = 8
	secretBytes  = 32
)

// encoding is base64url without padding (RFC 4648, section 5); strict, so that a token has one spelling only.
var encoding = base64.RawURLEncoding.Strict()

// Token is a bearer secret and the pin of the CA of the server it is for. As text it is one line,
// "nm1.<id and secret, base64url>.<pin, base64url>".
type Token struct {
	id     [idBytes]byte
	secret [secretBytes]byte
	Pin    Pin
}

// NewToken makes a token at random.
func NewToken(pin Pin) Token {
	t := Token{Pin: pin}
	rand.Read(t.id[:]) // never fails (crypto/rand)
	rand.Read(t.secret[:])
	return t
}

// ID names the token; it is not secret.
func (t Token) ID() string { return hex.EncodeToString(t.id[:]) }

// Bearer is what is sent to a server: the token without the pin.
func (t Token) Bearer() string {
	return tokenVersion + "." + encoding.EncodeToString(append(append([]byte{}, t.id[:]...), t.secret[:]...))
}

// Line is the token as its file holds it.
func (t Token) Line() string { return t.Bearer() + "." + t.Pin.String() }

// SHA256 is the hash of the secret, in hexadecimal: what a server keeps. The secret is 32 random bytes, so a plain hash can't be searched
// backwards.
func (t Token) SHA256() string {
	hash := sha256.Sum256(t.secret[:])
	return hex.EncodeToString(hash[:])
}

// Is tells whether a stored hash is that of the token's secret. It takes as long for one that is not ("" included), so the time does not
// tell which tokens exist.
func (t Token) Is(hash string) bool {
	got := sha256.Sum256(t.secret[:])
	want, err := hex.DecodeString(hash)
	if err != nil || len(want) != len(got) {
		want = make([]byte, len(got)) // the hash of no secret anybody knows
	}
	return subtle.ConstantTimeCompare(got[:], want) == 1
}

// String names the token without its secret, so that no log holds one by accident.
func (t Token) String() string { return "token " + t.ID() }

// errToken tells what a token looks like, never what was found.
var errToken = errors.New("is not a token; a token is a single line like nm1.XXXX.XXXX")

// ParseBearer reads what a client sent.
func ParseBearer(s string) (Token, error) {
	var t Token
	rest, ok := strings.CutPrefix(s, tokenVersion+".")
	if !ok {
		return t, errToken
	}
	raw, err := encoding.DecodeString(rest)
	if err != nil || len(raw) != idBytes+secretBytes {
		return t, errToken
	}
	copy(t.id[:], raw)
	copy(t.secret[:], raw[idBytes:])
	return t, nil
}

// ParseToken reads a token's line.
func ParseToken(line string) (Token, error) {
	line = strings.TrimSpace(line)
	cut := strings.LastIndexByte(line, '.')
	if cut < 0 {
		return Token{}, errToken
	}
	t, err := ParseBearer(line[:cut])
	if err != nil {
		return Token{}, err
	}
	pin, err := encoding.DecodeString(line[cut+1:])
	if err != nil || len(pin) != len(t.Pin) {
		return Token{}, errToken
	}
	copy(t.Pin[:], pin)
	return t, nil
}

// ParseSecret reads a token's line, or what is sent of it.
func ParseSecret(text string) (Token, error) {
	if t, err := ParseToken(text); err == nil {
		return t, nil
	}
	return ParseBearer(strings.TrimSpace(text))
}

// ReadToken reads a token file. It refuses one that others than its owner may read (*ExposedError).
func ReadToken(path string) (Token, error) {
	text, err := readPrivate(path)
	if err != nil {
		return Token{}, fmt.Errorf("read the token file: %w", err)
	}
	t, err := ParseToken(string(text))
	if err != nil {
		return Token{}, fmt.Errorf("the token file %s %w", path, err)
	}
	return t, nil
}

// Tokens knows the tokens a server accepts, by the hashes of their secrets. It may be used from many goroutines.
type Tokens struct {
	mu    sync.RWMutex
	known map[string]knownToken // by ID
}

// knownToken is a token as the server keeps it.
type knownToken struct {
	ID     string `json:"id"`
	Role   Role   `json:"role"`
	SHA256 string `json:"sha256"` // of the secret
}

// Verify tells who sent a bearer token, and false when it is none that is known.
func (ts *Tokens) Verify(bearer string) (Principal, bool) {
	t, err := ParseBearer(bearer)
	if err != nil {
		return Principal{}, false
	}
	ts.mu.RLock()
	known, ok := ts.known[t.ID()]
	ts.mu.RUnlock()
	// The hash of an unknown token is compared too: the time taken does not tell which IDs exist.
	if !t.Is(known.SHA256) || !ok {
		return Principal{}, false
	}
	return Principal{Role: known.Role, TokenID: known.ID}, true
}

// openTokens loads the hashes in dir/tls/tokens.json and makes sure that the administrator's token file exists, fits the CA
// and is known. A file that was removed is made anew, and its old token is forgotten.
func openTokens(dir string, pins []Pin, file string) (*Tokens, error) {
	ts := &Tokens{known: map[string]knownToken{}}
	path := filepath.Join(dir, "tls", "tokens.json")
	var stored []knownToken
	switch data, err := readPrivate(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read the token hashes: %w", err)
	default:
		if err := json.Unmarshal(data, &stored); err != nil {
			return nil, fmt.Errorf("the token hashes in %s are damaged (%w); remove the file to create them again", path, err)
		}
	}
	t, err := ensureToken(file, pins)
	if err != nil {
		return nil, fmt.Errorf("token of role %q: %w", RoleAdmin, err)
	}
	k := knownToken{ID: t.ID(), Role: RoleAdmin, SHA256: t.SHA256()}
	ts.known[k.ID] = k
	current := []knownToken{k}
	if equalTokens(stored, current) {
		return ts, nil
	}
	data, err := json.MarshalIndent(current, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the token hashes: %w", err)
	}
	if err := writePrivate(path, append(data, '\n')); err != nil {
		return nil, fmt.Errorf("write the token hashes: %w", err)
	}
	return ts, nil
}

func equalTokens(a, b []knownToken) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// ensureToken reads a token file, or makes it when it is missing or for a CA that is none of the site's. pins are of those, the newest first. A
// token for a former one is the same with the newest pin.
func ensureToken(path string, pins []Pin) (Token, error) {
	t, err := ReadToken(path)
	switch {
	case err == nil && t.Pin == pins[0]:
		return t, nil
	case err == nil && slices.Contains(pins, t.Pin):
		t.Pin = pins[0]
	case err == nil || errors.Is(err, fs.ErrNotExist):
		t = NewToken(pins[0])
	default:
		return Token{}, err
	}
	if err := writePrivate(path, []byte(t.Line()+"\n")); err != nil {
		return Token{}, fmt.Errorf("write %s: %w", path, err)
	}
	return t, nil
}
