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
		w.boots(2)
		errs := make(chan error)
		const tries = 8
		for i := range tries {
			go func() {
				nonce, made := fmt.Sprint("nonce", i), &api.NodeIdentity{Node: "n1", ID: fmt.Sprint("id", i)}
				_, err := w.repo.RedeemBoot(t.Context(), state.Redemption{UID: "uid-n1", Machine: "n1", Generation: 2, NonceSHA256: nonce, At: now}, made)
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

// boots lets n1 boot in a generation.
func (w *world) boots(generation int64) {
	w.Helper()
	base := w.machine("n1")
	record := api.MachineRecord{Name: "n1", UID: base.UID(), Phase: api.MachineBooting, Generation: generation, Boot: &api.Boot{Generation: generation}}
	if base.Record != nil {
		record.Index = base.Record.Index
	}
	w.reach(w.leader.CommitMachine(w.Context(), base, state.MachineWrite{Record: record}))
}

func TestABootTokenIsNotExchangedAfterANewerOne(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := enrolled(t, s)
		redeem := func(generation int64) error {
			w.boots(generation)
			_, err := w.repo.RedeemBoot(t.Context(), state.Redemption{UID: "uid-n1", Machine: "n1", Generation: generation, NonceSHA256: "n", At: now}, nil)
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

func TestABootForAnotherPurposeEndsTheIdentityOfTheOneBefore(t *testing.T) {
	w := enrolled(t, openMemory(t))
	w.boots(3)
	w.reach(w.repo.RedeemBoot(t.Context(), state.Redemption{UID: "uid-n1", Machine: "n1", Generation: 3, NonceSHA256: "n", At: now}, &api.NodeIdentity{Node: "n1", ID: "i3"}))
	if in := w.cache.View().Node("n1").Identity; in == nil || in.ID != "i3" {
		t.Fatalf("the identity of the boot: %+v", in)
	}
	w.boots(4)
	w.reach(w.repo.RedeemBoot(t.Context(), state.Redemption{UID: "uid-n1", Machine: "n1", Generation: 4, NonceSHA256: "n", At: now}, nil)) // an inspection
	if in := w.cache.View().Node("n1").Identity; in != nil {
		t.Errorf("after the next boot: %+v", in)
	}
}

func TestABootTokenIsNotExchangedOnceItsBootIsOver(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := enrolled(t, s)
		redeem := func(uid, machine string, generation int64) error {
			_, err := w.repo.RedeemBoot(t.Context(), state.Redemption{UID: uid, Machine: machine, Generation: generation, NonceSHA256: "n", At: now},
				&api.NodeIdentity{Node: machine, ID: "agent"})
			return err
		}
		w.boots(3)
		for name, err := range map[string]error{
			"a machine that is gone":    redeem("uid-n9", "n9", 3),
			"another of the same name":  redeem("uid-n9", "n1", 3),
			"another boot of a machine": redeem("uid-n1", "n1", 2),
		} {
			if !errors.Is(err, state.ErrBootOver) {
				t.Errorf("%s: %v, want ErrBootOver", name, err)
			}
		}
		if err := redeem("uid-n1", "n1", 3); err != nil {
			t.Fatal(err)
		}
		w.reach(w.leader.ForgetMachine(t.Context(), w.machine("n1")))
		if w.cache.View().Node("n1") != nil {
			t.Error("the agent's identity outlives its machine")
		}
		if err := redeem("uid-n1", "n1", 3); !errors.Is(err, state.ErrBootOver) {
			t.Errorf("of a machine that was forgotten: %v, want ErrBootOver", err)
		}
	})
}
