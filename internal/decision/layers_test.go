package decision

import (
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

func TestTheNumberOfTheLayersThatAllHaveOnlyGrows(t *testing.T) {
	t.Parallel()
	c := running()
	c = then(c, apply(t, c, time.Hour, lifecycle.NoteLayers{Number: 2}))
	if got := c.Record.LayersNumber; got != 2 {
		t.Errorf("all members have layers %d, want 2", got)
	}
	for _, number := range []int64{1, 2} {
		if _, err := Apply(c, []lifecycle.ClusterOperation{lifecycle.NoteLayers{Number: number}}, t0.Add(2*time.Hour)); err == nil || !strings.Contains(err.Error(), "already have layers 2") {
			t.Errorf("layers %d are noted after layers 2: %v", number, err)
		}
	}
}
