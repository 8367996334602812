package apiserver

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/tenancy"
	"github.com/nearmetal/nearmetal/internal/usage"
)

// slowUsage is a reader of which each report takes until leave is closed; it counts those that read.
type slowUsage struct {
	Reader
	leave  chan struct{}
	mu     sync.Mutex
	inside int
}

func (s *slowUsage) UsageInput(ctx context.Context, now time.Time) usage.Input {
	s.mu.Lock()
	s.inside++
	s.mu.Unlock()
	<-s.leave
	s.mu.Lock()
	s.inside--
	s.mu.Unlock()
	return s.Reader.UsageInput(ctx, now)
}

func (s *slowUsage) reading() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inside
}

func TestReportsOfUseAreMadeOneAfterTheOther(t *testing.T) {
	m := makeMany(t, 1)
	synctest.Test(t, func(t *testing.T) {
		slow := &slowUsage{Reader: m.cache, leave: make(chan struct{})}
		s := New(Config{Reader: slow, Live: m.live, Now: time.Now})
		ask := func(ctx context.Context) *httptest.ResponseRecorder {
			ctx = withSession(ctx, session{tenancy.Principal{Role: api.RoleAdmin}, func() bool { return true }})
			w := httptest.NewRecorder()
			s.usageReport(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/usage", nil))
			return w
		}
		var asked sync.WaitGroup
		for range 3 {
			asked.Go(func() {
				if w := ask(t.Context()); w.Code != http.StatusOK {
					t.Errorf("a report: %d %s", w.Code, w.Body)
				}
			})
		}
		impatient, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan *httptest.ResponseRecorder, 1)
		synctest.Wait()
		go func() { gaveUp <- ask(impatient) }()
		synctest.Wait()
		if n := slow.reading(); n != 1 {
			t.Errorf("%d reports are made at once, want 1", n)
		}
		cancel()
		if w := <-gaveUp; w.Body.Len() > 0 {
			t.Errorf("a request that was given up is answered: %s", w.Body)
		}
		close(slow.leave)
		asked.Wait()
	})
}
