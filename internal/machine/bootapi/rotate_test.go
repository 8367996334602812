package bootapi

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/machine/boot"
)

func TestABootGoesOnWhileTheSitesSecretIsReplaced(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	former, newest, other := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32), bytes.Repeat([]byte{3}, 32)
	token := func(key []byte, ends time.Time) string {
		return boot.Seal(key, boot.TokenClaims{MAC: "52:54:00:00:00:01", Machine: "u1", ExpiresAt: ends})
	}
	for name, tc := range map[string]struct {
		token string
		want  error
	}{
		"of the newest":                  {token(newest, now.Add(time.Hour)), nil},
		"of the former":                  {token(former, now.Add(time.Hour)), nil},
		"of the former, which has ended": {token(former, now), boot.ErrExpired},
		"of another":                     {token(other, now.Add(time.Hour)), boot.ErrToken},
		"none":                           {"", boot.ErrToken},
	} {
		claims, err := openAny([][]byte{newest, former}, tc.token, now)
		if !errors.Is(err, tc.want) || tc.want == nil && claims.Machine != "u1" {
			t.Errorf("%s: %+v, %v; want %v", name, claims, err, tc.want)
		}
	}
	if _, err := openAny(nil, token(newest, now.Add(time.Hour)), now); err == nil {
		t.Error("opened without a key")
	}
}
