package state_test

import (
	"errors"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// meanwhile does something between what the next commit was decided on and that commit.
func (w *world) meanwhile(do func() error) {
	w.store.fail = func([]store.Op) error {
		w.store.fail = nil
		return do()
	}
}

func TestAStrangerThatBecomesAMachineAtTheSameMomentIsNoCandidate(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		w.meanwhile(func() error {
			_, err := w.repo.CreateMachine(t.Context(), machine("n1", mac1))
			return err
		})
		if _, err := w.repo.UpsertCandidate(t.Context(), mac1, func(*api.Candidate) {}); !errors.Is(err, state.ErrExists) {
			t.Errorf("a machine's MAC becomes a candidate: %v, want ErrExists", err)
		}
	})
}

func TestANodeThatJoinsAtTheSameMomentKeepsItsName(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		w.meanwhile(func() error {
			_, err := w.repo.PutNode(t.Context(), api.NodeRecord{Name: "n1"})
			return err
		})
		if _, err := w.repo.CreateMachine(t.Context(), machine("n1", mac1)); !errors.Is(err, state.ErrExists) {
			t.Errorf("a machine gets a node's name: %v, want ErrExists", err)
		}
	})
}

func TestWhatIsAskedOfAFormerMachineIsNotAskedOfTheNextOne(t *testing.T) {
	w := enrolled(t, openMemory(t))
	on := api.PowerRequest{Action: api.PowerActionOn, Environment: "e"}
	if _, err := w.repo.RequestPower(t.Context(), []state.PowerAsk{{Name: "n1", UID: "uid-former", Request: on}}); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("power of a former machine: %v, want ErrNotFound", err)
	}
	if _, _, err := w.repo.UpdateMachineIntent(t.Context(), "n1", "uid-former", func(in *api.MachineIntent) error {
		in.Inspect++
		return nil
	}); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("inspection of a former machine: %v, want ErrNotFound", err)
	}
}

func TestAMachineKeepsItsMACs(t *testing.T) {
	w := enrolled(t, openMemory(t))
	if _, _, err := w.repo.UpdateMachineIntent(t.Context(), "n1", "uid-n1", func(in *api.MachineIntent) error {
		in.Spec.MACs = []string{mac2}
		return nil
	}); err == nil {
		t.Error("a machine's MACs were changed, past the record of whose they are")
	}
}

func TestNoEnvironmentStandsForAnImageThatIsNotThere(t *testing.T) {
	w := newWorld(t, openMemory(t))
	record := api.EnvironmentRecord{Name: "e", Digest: image("e", 1).Digest}
	if _, err := w.repo.SetEnvironment(t.Context(), record); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}

func TestABootThatEndsAtTheSameMomentExchangesNoToken(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := enrolled(t, s)
		w.boots(3)
		w.meanwhile(func() error {
			over := *w.machine("n1").Record
			over.Phase = api.MachineOff
			_, err := w.leader.CommitMachine(t.Context(), w.machine("n1"), state.MachineWrite{Record: over})
			return err
		})
		redemption := state.Redemption{UID: "uid-n1", Machine: "n1", Generation: 3, NonceSHA256: "n", At: now}
		if _, err := w.repo.RedeemBoot(t.Context(), redemption, nil); !errors.Is(err, state.ErrBootOver) {
			t.Errorf("got %v, want ErrBootOver", err)
		}
	})
}
