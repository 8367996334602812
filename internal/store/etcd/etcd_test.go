package etcd_test

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/etcd"
	"github.com/nearmetal/nearmetal/internal/store/storetest"
)

func TestTheEmbeddedStoreKeepsTheContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return open(t, t.TempDir()) })
}

// aliveTTL is of leaders that live: none loses its lease because this machine is busy.
const aliveTTL = 2 * time.Minute

func open(t testing.TB, dir string) *etcd.Store {
	t.Helper()
	s, err := etcd.Open(t.Context(), etcd.Config{Dir: dir, LeaderTTL: aliveTTL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}
