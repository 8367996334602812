package controller

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestTheLeadersTimeNeverFallsBehindWhatIsStored(t *testing.T) {
	wall := time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name   string
		newest time.Time
		want   time.Time
	}{
		{"nothing is stored", time.Time{}, wall.Add(time.Minute)},
		{"what is stored is older", wall.Add(-time.Hour), wall.Add(time.Minute)},
		{"the machine's clock was set back", wall.Add(time.Hour), wall.Add(time.Hour + time.Minute)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newClock(func() time.Time { return wall }, tc.newest)
			if got := c.at(wall.Add(time.Minute)); !got.Equal(tc.want) {
				t.Errorf("a minute later it is %s, want %s", got, tc.want)
			}
		})
	}
}

func TestTheLeadersTimeGoesByTheMonotonicClock(t *testing.T) {
	start := time.Now()
	c := newClock(func() time.Time { return start }, time.Time{})
	// A reading keeps its monotonic part whatever the wall clock is set to; without it only the wall clock would be compared.
	if got, want := c.at(start.Add(time.Second)), start.Round(0).Add(time.Second); !got.Equal(want) {
		t.Errorf("a second later it is %s, want %s", got, want)
	}
}

// Times that were told by one clock and compared with another's would be off by what lies between them: a machine that has just spoken would have
// been silent for an hour.
func TestWhatAServerHearsAndDecidesHasOneClock(t *testing.T) {
	l := newLed(t, memory.New())
	cfg := l.lead.cfg
	cfg.Clock = NewSiteClock(cfg.Now, time.Time{})
	ahead := l.now.Add(time.Hour) // the wall clock of the leader before
	l.view(l.leader.CommitNodeSpan(t.Context(), nil, &api.NodeSpan{Node: "n1", From: ahead}, ahead))
	leadership, err := l.repo.Store().Campaign(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	lead := newLeader(cfg, leadership)
	if heard, decided := cfg.Clock.At(l.now), lead.clock.at(l.now); !heard.Equal(decided) || decided.Before(ahead) {
		t.Errorf("what is heard now is of %s, what is decided of %s; want one time, not before %s", heard, decided, ahead)
	}
	clock := NewSiteClock(cfg.Now, ahead)
	clock.lead(time.Time{})
	if at := clock.At(l.now); at.Before(ahead) {
		t.Errorf("it tells %s after %s", at, ahead)
	}
}
