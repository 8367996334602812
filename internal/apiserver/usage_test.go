package apiserver_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/usage"
)

// slowUsage is a reader that says when a report begins to read, and waits for leave to go on.
type slowUsage struct {
	apiserver.Reader
	began, leave chan struct{}
	inside, most atomic.Int32
}

func (s *slowUsage) UsageInput(ctx context.Context, now time.Time) usage.Input {
	n := s.inside.Add(1)
	defer s.inside.Add(-1)
	s.most.Store(max(s.most.Load(), n))
	s.began <- struct{}{}
	<-s.leave
	return s.Reader.UsageInput(ctx, now)
}

func TestReportsOfUseAreMadeOneAfterTheOther(t *testing.T) {
	slow := &slowUsage{began: make(chan struct{}, 10), leave: make(chan struct{})}
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { slow.Reader, c.Reader = c.Reader, slow })
	c := s.Client()
	ends := make(chan error, 3)
	for range 3 {
		go func() { _, err := c.Usage(t.Context(), client.UsageQuery{}); ends <- err }()
	}
	<-slow.began
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Usage(impatient, client.UsageQuery{}); err == nil {
		t.Error("a request that was given up was answered")
	}
	close(slow.leave)
	for range 3 {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
	if most := slow.most.Load(); most != 1 {
		t.Errorf("%d reports were made at once, want 1", most)
	}
}
