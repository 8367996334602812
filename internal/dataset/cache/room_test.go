package cache

import (
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
)

const mib = 1 << 20

func TestANewCacheTakesRoomFromIdleOnesInTheirOrder(t *testing.T) {
	resting := []idle{{"old", 300 * mib}, {"new", 400 * mib}}
	for name, c := range map[string]struct {
		taken, need int64
		idle        []idle
		size        int64
		goes        []string
		enough      bool
	}{
		"there is room beside them":              {0, 200 * mib, resting, 200 * mib, nil, true},
		"the longest unused makes room":          {0, 500 * mib, resting, 500 * mib, []string{"old"}, true},
		"all make room":                          {0, 900 * mib, resting, 900 * mib, []string{"old", "new"}, true},
		"it gets what is left":                   {700 * mib, 900 * mib, nil, 300 * mib, nil, true},
		"what is left is too little for a cache": {990 * mib, 900 * mib, nil, 10 * mib, nil, false},
	} {
		size, goes, enough := divide(1000*mib, c.taken, c.need, c.idle)
		if size != c.size || !slices.Equal(goes, c.goes) || enough != c.enough {
			t.Errorf("%s: %d MiB, %v, %t; want %d MiB, %v, %t", name, size/mib, goes, enough, c.size/mib, c.goes, c.enough)
		}
	}
}

func TestACacheIsLargeEnoughForItsDatasetBelowTheHighWatermark(t *testing.T) {
	order := &dataset.CacheOrder{Files: []api.DatasetFile{{SizeBytes: 900 * mib}, {SizeBytes: 100 * mib}}}
	if got := need(order, mib, 90, 1<<40); got/100*90 < 1004*mib {
		t.Errorf("%d MiB for 1000 MiB: at 90%% it would remove files", got/mib)
	}
	if got := need(order, mib, 90, 500*mib); got != 500*mib {
		t.Errorf("more than there is: %d MiB", got/mib)
	}
	order.Files[1].SizeBytes = 0
	if got := need(order, mib, 90, 1<<40); got != 1<<40 {
		t.Errorf("of unknown size: %d MiB", got/mib)
	}
}
