package trust

import (
	"bytes"
	"errors"
	"testing"
)

func sealer(t *testing.T, fill byte) *Sealer {
	t.Helper()
	s, err := NewSealer(Secrets{{Key: bytes.Repeat([]byte{fill}, SecretBytes)}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestASealedSecretOpensForItsMachineOnly(t *testing.T) {
	t.Parallel()
	s := sealer(t, 1)
	for _, secret := range []string{"", "p", "calvin", string(bytes.Repeat([]byte("x"), 31)), string(bytes.Repeat([]byte{0}, 32)), "ends in \x01\x00"} {
		sealed := s.Seal("uid1", []byte(secret))
		got, err := s.Open("uid1", sealed)
		if err != nil || string(got) != secret {
			t.Errorf("sealed %q, opened %q, %v", secret, got, err)
		}
		if _, err := s.Open("uid2", sealed); !errors.Is(err, ErrSealed) {
			t.Errorf("opened for another machine: %v", err)
		}
		if _, err := sealer(t, 2).Open("uid1", sealed); !errors.Is(err, ErrSealed) {
			t.Errorf("opened with another site secret: %v", err)
		}
		if len(secret) > 3 && bytes.Contains(sealed, []byte(secret)) {
			t.Errorf("%q can be read in what was sealed", secret)
		}
	}
}

func TestWhatWasTamperedWithDoesNotOpen(t *testing.T) {
	t.Parallel()
	s := sealer(t, 1)
	sealed := s.Seal("uid1", []byte("calvin"))
	for i := range sealed {
		damaged := bytes.Clone(sealed)
		damaged[i] ^= 1
		if _, err := s.Open("uid1", damaged); !errors.Is(err, ErrSealed) {
			t.Fatalf("byte %d changed, and it opened: %v", i, err)
		}
		if _, err := s.Open("uid1", sealed[:i]); !errors.Is(err, ErrSealed) {
			t.Fatalf("cut to %d bytes, and it opened: %v", i, err)
		}
	}
}

func TestSealingTwiceLooksDifferentAndLengthsAreHidden(t *testing.T) {
	t.Parallel()
	s := sealer(t, 1)
	a, b := s.Seal("uid1", []byte("calvin")), s.Seal("uid1", []byte("calvin"))
	if bytes.Equal(a, b) {
		t.Error("the same secret was sealed the same way twice")
	}
	if c := s.Seal("uid1", []byte("a much longer password")); len(c) != len(a) {
		t.Errorf("a short secret takes %d bytes, a longer one %d", len(a), len(c))
	}
}

func TestASiteSecretOfAnotherLengthIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := NewSealer(Secrets{{Key: []byte("short")}}); err == nil {
		t.Error("no error")
	}
}
