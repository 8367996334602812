package apiservertest

import (
	"context"

	"github.com/nearmetal/nearmetal/api"
)

// Event stores an event of a cluster.
func (s *Site) Event(cluster, reason, message string) {
	s.t.Helper()
	s.Events(api.Event{Time: s.now().UTC(), Cluster: cluster, Reason: reason, Message: message})
}

// Events stores events.
func (s *Site) Events(events ...api.Event) {
	s.t.Helper()
	rev, err := s.Repo.AppendEvents(context.Background(), events...)
	must(s.t, err)
	s.reach(rev)
}
