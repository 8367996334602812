package agent

import (
	"errors"
	"slices"
	"testing"
	"time"
)

func TestAnErrorThatStaysIsSaidAgainWithGrowingPauses(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var (
		state trouble
		said  []time.Duration
		total int
	)
	refused, other := errors.New("the server refuses this node"), errors.New("connection refused")
	for after := time.Duration(0); after < time.Hour; after += 3 * time.Second {
		if n := state.worthSaying(refused, start.Add(after)); n > 0 {
			said, total = append(said, after.Truncate(time.Second)), total+n
		}
	}
	want := []time.Duration{
		0, 12 * time.Second, 33 * time.Second, 75 * time.Second, 156 * time.Second, 318 * time.Second, 639 * time.Second,
		1239 * time.Second, 1839 * time.Second, 2439 * time.Second, 3039 * time.Second,
	}
	if !slices.Equal(said, want) {
		t.Errorf("said after %v, want after %v", said, want)
	}
	if attempts := 3039/3 + 1; total != attempts {
		t.Errorf("%d attempts are counted, want %d", total, attempts)
	}
	if state.worthSaying(other, start.Add(time.Hour)) != 1 {
		t.Error("another error is not said at once")
	}
	state.reset()
	if state.worthSaying(other, start.Add(time.Hour+time.Second)) != 1 {
		t.Error("the same error is not said at once after the server had taken the agent")
	}
}
