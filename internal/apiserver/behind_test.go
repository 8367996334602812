package apiserver

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// behind is a store whose only cluster is gone or new, and a view that learns of it when somebody waits for it.
type behind struct {
	Writer
	Reader
	now, next *state.View
	stored    error
}

func (b *behind) View() *state.View { return b.now }

func (b *behind) WaitRevision(_ context.Context, revision int64) (int64, error) {
	if revision > b.now.Revision {
		b.now = b.next
	}
	return b.now.Revision, nil
}

func (b *behind) UpdateIntent(context.Context, string, string, func(*api.ClusterIntent) error) (api.ClusterIntent, int64, error) {
	return api.ClusterIntent{}, b.next.Revision, b.stored
}

func (b *behind) RequestDelete(context.Context, string, time.Time) (api.ClusterIntent, int64, error) {
	return api.ClusterIntent{}, 0, state.ErrNotFound
}

func (b *behind) CreateCluster(context.Context, api.ClusterIntent) (int64, error) {
	return 0, state.ErrExists
}

func TestAnAnswerIsNotAheadOfWhatTheNextReadShows(t *testing.T) {
	c1 := &state.Cluster{Intent: api.ClusterIntent{Name: "c1", UID: "u"}}
	with, without := []*state.Cluster{c1}, []*state.Cluster(nil)
	for _, test := range []struct {
		name      string
		was, is   []*state.Cluster
		stored    error
		call      func(ctx context.Context, s *Server) error
		wantThere bool
	}{
		{"a change of a cluster that is gone", with, without, state.ErrNotFound, func(ctx context.Context, s *Server) error {
			_, err := s.updateIntent(ctx, c1, nil)
			return err
		}, false},
		{"a delete of a cluster that is gone", with, without, nil, func(ctx context.Context, s *Server) error {
			_, err := s.deleteCluster(ctx, &byName{Name: "c1"})
			return err
		}, false},
		{"a create of a cluster that another client just made", without, with, nil, func(ctx context.Context, s *Server) error {
			_, err := s.storeCluster(ctx, api.ClusterIntent{Name: "c1"})
			return err
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &behind{now: &state.View{Revision: 1, Clusters: test.was}, next: &state.View{Revision: 2, Clusters: test.is}, stored: test.stored}
			s := &Server{cfg: Config{Writer: b, Reader: b, Now: time.Now}}
			var refused *failure
			if err := test.call(withSession(t.Context(), session{principal: tenancy.Principal{Role: api.RoleAdmin, Project: api.DefaultProject}}), s); !errors.As(err, &refused) {
				t.Fatalf("got %v, want a refusal", err)
			}
			if there := b.View().Cluster("c1") != nil; there != test.wantThere {
				t.Errorf("after the answer, a read finds the cluster: %v, want %v", there, test.wantThere)
			}
		})
	}
}
