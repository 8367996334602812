package controller

import (
	"testing"
	"time"
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
