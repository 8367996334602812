package state_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

func TestOfManyThatExchangeABootTokenAtOnceOneDoes(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := enrolled(t, s)
		errs := make(chan error)
		const tries = 8
		for i := range tries {
			go func() {
				nonce, token := fmt.Sprint("nonce", i), &api.TokenInfo{ID: fmt.Sprint("token", i), Role: api.RoleAgent}
				_, err := w.repo.RedeemBoot(t.Context(), state.Redemption{UID: "uid-n1", Generation: 2, NonceSHA256: nonce, At: now}, token)
				errs <- err
			}()
		}
		won := 0
		for range tries {
			if err := <-errs; err == nil {
				won++
			} else if !errors.Is(err, state.ErrRedeemed) {
				t.Error(err)
			}
		}
		equal(t, won, 1)
	})
}

func TestABootTokenIsNotExchangedAfterANewerOne(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := enrolled(t, s)
		redeem := func(generation int64) error {
			_, err := w.repo.RedeemBoot(t.Context(), state.Redemption{UID: "uid-n1", Generation: generation, NonceSHA256: "n", At: now}, nil)
			return err
		}
		if err := redeem(3); err != nil {
			t.Fatal(err)
		}
		if err := redeem(2); !errors.Is(err, state.ErrRedeemed) {
			t.Errorf("generation 2 after 3: %v, want ErrRedeemed", err)
		}
		if err := redeem(4); err != nil {
			t.Errorf("generation 4 after 3: %v", err)
		}
	})
}
