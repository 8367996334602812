package controller

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// half is a store in which no record can be committed, while what goes ahead of it is written.
type half struct {
	store.Store
	tries int
	most  func()
}

func (s *half) Commit(ctx context.Context, conds []store.Cond, ops []store.Op) (int64, error) {
	if !strings.HasPrefix(ops[0].Key, "record") {
		return s.Store.Commit(ctx, conds, ops)
	}
	if s.tries++; s.tries == 100 {
		s.most()
	}
	if _, err := s.Store.Commit(ctx, nil, []store.Op{{Key: "ahead", Value: []byte{byte(s.tries)}}}); err != nil {
		return 0, err
	}
	return 0, errors.New("the disk is full")
}

func TestAPassThatFailsIsNotRepeatedByWhatItWroteItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &half{Store: memory.New()}
		l := newLed(t, s)
		l.lead.cfg.Now = time.Now
		l.node("n1", 1)
		l.view(l.repo.CreateCluster(t.Context(), api.ClusterIntent{
			Name: "a", UID: "ua", CreatedAt: l.now, Spec: api.ClusterSpec{Groups: []api.Group{{
				Name: "a", Size: 9, Shape: api.Shape{Cores: 1}, Stack: api.StackContainer, Environment: "local",
			}}},
		}))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		s.most = cancel
		_ = l.lead.lead(ctx)
		if s.tries < 2 || s.tries > 25 {
			t.Errorf("a record that can't be committed was tried %d times in 2 s, want 10 times a second at most", s.tries)
		}
	})
}
