package memory_test

import (
	"testing"

	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/store/storetest"
)

func TestTheMemoryStoreKeepsTheContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		s := memory.New()
		t.Cleanup(func() { _ = s.Close() })
		return s
	})
}

func TestADeposedLeaderCanNotCommit(t *testing.T) {
	s := memory.New()
	l, err := s.Campaign(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	s.Depose()
	<-l.Done()
	if _, err := s.Commit(t.Context(), []store.Cond{l.Guard()}, []store.Op{{Key: "k"}}); err != store.ErrNotLeader {
		t.Errorf("commit after the deposition: %v, want ErrNotLeader", err)
	}
}
