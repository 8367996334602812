package boot

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func claims() TokenClaims {
	return TokenClaims{
		MAC: "52:54:00:00:00:01", Machine: "0192d3c4-5f6a-7b8c-9d0e-1f2a3b4c5d6e", Generation: 42, Purpose: api.BootEnvironment,
		Port: "eth0/7\x00", ExpiresAt: time.Date(2026, 11, 21, 20, 0, 0, 0, time.UTC),
	}
}

func TestABootTokenIsWhatWasSealed(t *testing.T) {
	secret, want := []byte("site secret"), claims()
	token := Seal(secret, want)
	if got, err := Open(secret, token, want.ExpiresAt.Add(-time.Second)); err != nil || got != want {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	if len(token) > 160 || strings.ContainsAny(token, " +/=\"") {
		t.Errorf("the token has %d characters or such that a command line or URL does not bear: %s", len(token), token)
	}
	if _, err := Open(secret, token, want.ExpiresAt); !errors.Is(err, ErrExpired) {
		t.Errorf("at its end: got %v, want ErrExpired", err)
	}
}

func TestAChangedOrForgedBootTokenIsRefused(t *testing.T) {
	secret, c := []byte("site secret"), claims()
	now, token := c.ExpiresAt.Add(-time.Minute), Seal(secret, c)
	if _, err := Open([]byte("other secret"), token, now); !errors.Is(err, ErrToken) {
		t.Errorf("another site's secret: got %v, want ErrToken", err)
	}
	for i := range token {
		for _, bit := range []byte{1, 2, 4, 8, 16} {
			changed := []byte(token)
			changed[i] ^= bit
			if _, err := Open(secret, string(changed), now); !errors.Is(err, ErrToken) {
				t.Fatalf("character %d changed from %q to %q: got %v, want ErrToken", i, token[i], changed[i], err)
			}
		}
		if _, err := Open(secret, token[:i], now); !errors.Is(err, ErrToken) {
			t.Fatalf("cut to %d characters: got %v, want ErrToken", i, err)
		}
	}
}

func FuzzOpen(f *testing.F) {
	secret, c := []byte("site secret"), claims()
	f.Add(Seal(secret, c))
	f.Add("")
	f.Fuzz(func(t *testing.T, token string) {
		got, err := Open(secret, token, time.Time{})
		if err == nil && Seal(secret, got) != token {
			t.Errorf("%q was taken, but its claims %+v seal to %q", token, got, Seal(secret, got))
		}
	})
}

// What is inside the seal is only read when the seal fits; should a key ever leak, reading must still not panic.
func FuzzDecodeClaims(f *testing.F) {
	f.Add([]byte{tokenVersion, 2, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(_ *testing.T, b []byte) { decodeClaims(b) })
}
