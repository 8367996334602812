package agent

import (
	"fmt"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/dataset"
)

func TestAReaderWaitsFromItsRequestToTheLastBytesBeforeTheNext(t *testing.T) {
	start := time.Date(2026, 11, 29, 1, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	var w waits
	w.asked(at(0), time.Time{}) // nothing has come yet
	w.asked(at(200), at(100))   // it worked for 100 ms
	w.asked(at(210), at(100))   // two requests at once are one wait
	w.asked(at(400), at(300))
	w.answered(at(450))
	if w.count != 3 || w.total != 250*time.Millisecond {
		t.Errorf("%d waits of %v in all, want 100, 100 and 50 ms", w.count, w.total)
	}
	var silent waits
	silent.asked(at(0), time.Time{})
	silent.asked(at(100), time.Time{})
	if silent.answered(time.Time{}) || silent.count != 0 {
		t.Errorf("nobody knows when answers came: %d waits", silent.count)
	}
}

func TestReadingsOutliveTheirMembersAndAreBounded(t *testing.T) {
	all := readings{}
	first := all.of("d1", "m0")
	first.opened()
	for i := range 2 * mostReadings {
		m := all.of("d1", fmt.Sprint("m", i))
		if i == 0 {
			continue // it reads on
		}
		m.opened()
		m.ended(10, &waits{count: 1, total: time.Second}, time.Now())
	}
	states := []dataset.CacheState{{UID: "d1", Readings: []dataset.Reading{{Member: "old"}}}, {UID: "d2"}}
	all.add(states)
	if got := states[0].Readings; len(got) != mostReadings || got[0].Member != "m0" || got[0].Open != 1 || got[1].Bytes != 10 || got[1].WaitedSeconds != 1 {
		t.Errorf("%d readings, of these %+v, want the one that goes on and the newest others", len(got), got[:2])
	}
	if states[1].Readings != nil {
		t.Errorf("of a dataset that nobody reads: %+v", states[1].Readings)
	}
	gone := all.of("d9", "m1")
	gone.opened()
	all.add(states)
	if len(all["d9"]) != 1 {
		t.Error("the count of a connection that is open is forgotten")
	}
	gone.ended(5, &waits{}, time.Now())
	all.add(states)
	if _, kept := all["d9"]; kept || len(all) != 1 {
		t.Errorf("counts of datasets that the node no longer caches are kept: %d datasets", len(all))
	}
	if all.of("d1", "m0") != first {
		t.Error("a member's count begins anew while it reads")
	}
}
