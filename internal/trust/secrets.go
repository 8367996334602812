package trust

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// SecretBytes is the length of a site secret.
const SecretBytes = 32

// Secret is a site secret, from which other keys are derived.
type Secret struct {
	Key []byte
	// Since is from when on keys are derived from it; zero for the first.
	Since time.Time
}

// Secrets are those of a site, the oldest first, at least one. A cluster keeps the keys that were derived from the secret in use when it was made.
type Secrets []Secret

// Newest is the one that is in use.
func (s Secrets) Newest() []byte { return s[len(s)-1].Key }

// At is the one that was in use at a time.
func (s Secrets) At(at time.Time) []byte {
	for _, one := range slices.Backward(s) {
		if !at.Before(one.Since) {
			return one.Key
		}
	}
	return s[0].Key
}

// NewestFirst yields all, for what says by itself whether it was made with one.
func (s Secrets) NewestFirst() [][]byte {
	var keys [][]byte
	for _, one := range slices.Backward(s) {
		keys = append(keys, one.Key)
	}
	return keys
}

func secretPath(dir string) string { return filepath.Join(dir, "secret") }

// OpenSecrets returns the site secrets in dir, and makes the first one on the first call. The file is readable by its owner only and has a line for
// each: the secret in hexadecimal, and from the second on the time since when it is in use (RFC 3339).
func OpenSecrets(dir string) (Secrets, error) {
	text, err := readPrivate(secretPath(dir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		first := Secrets{newSecret(time.Time{})}
		return first, first.write(dir)
	case err != nil:
		return nil, fmt.Errorf("read the site secret: %w", err)
	}
	var all Secrets
	for line := range strings.Lines(string(text)) {
		secret, err := parseSecret(strings.TrimSpace(line), len(all) == 0)
		if err != nil || len(all) > 0 && !secret.Since.After(all[len(all)-1].Since) {
			return nil, damagedSecret(dir)
		}
		all = append(all, secret)
	}
	if len(all) == 0 {
		return nil, damagedSecret(dir)
	}
	return all, nil
}

func damagedSecret(dir string) error {
	return fmt.Errorf("the site secret %s is damaged (%d bytes in hexadecimal expected); restore it from a backup: all SSH keys of clusters derive from it",
		secretPath(dir), SecretBytes)
}

func parseSecret(line string, first bool) (Secret, error) {
	digits, since, dated := strings.Cut(line, " ")
	key, err := hex.DecodeString(digits)
	if err != nil || len(key) != SecretBytes || dated == first {
		return Secret{}, errors.New("this is no secret")
	}
	secret := Secret{Key: key}
	if dated {
		secret.Since, err = time.Parse(time.RFC3339Nano, since)
	}
	return secret, err
}

func newSecret(since time.Time) Secret {
	key := make([]byte, SecretBytes)
	rand.Read(key) // never fails (crypto/rand)
	return Secret{Key: key, Since: since}
}

func (s Secrets) write(dir string) error {
	var text strings.Builder
	for i, one := range s {
		text.WriteString(hex.EncodeToString(one.Key))
		if i > 0 {
			text.WriteString(" " + one.Since.UTC().Format(time.RFC3339Nano))
		}
		text.WriteString("\n")
	}
	if err := writePrivate(secretPath(dir), []byte(text.String())); err != nil {
		return fmt.Errorf("write the site secret: %w", err)
	}
	return nil
}

// RotateSecret adds a secret to those in dir, in use from now on: whole or not at all. No server may use dir meanwhile.
func RotateSecret(dir string, now time.Time) (Secrets, error) {
	all, err := OpenSecrets(dir)
	if err != nil {
		return nil, err
	}
	if last := all[len(all)-1].Since; !now.After(last) { // the clock was set back
		now = last.Add(time.Nanosecond)
	}
	all = append(all, newSecret(now))
	return all, all.write(dir)
}
