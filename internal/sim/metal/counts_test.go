package metal

import (
	"maps"
	"slices"
	"sync"
	"testing"
)

// counts are how often what happened, over all sites.
type counts struct {
	mu sync.Mutex
	of map[string]int
}

func newCounts() *counts { return &counts{of: map[string]int{}} }

func (c *counts) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of[what]++
}

func (c *counts) tell(t *testing.T) {
	t.Helper()
	for _, what := range slices.Sorted(maps.Keys(c.of)) {
		t.Logf("%7d %s", c.of[what], what)
	}
}

// mustHave fails for what never happened: then nothing was shown of it.
func (c *counts) mustHave(t *testing.T, all ...string) {
	t.Helper()
	for _, what := range all {
		if c.of[what] == 0 {
			t.Errorf("in no site there was: %s", what)
		}
	}
}
