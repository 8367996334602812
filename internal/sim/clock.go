package sim

import (
	"container/heap"
	"time"
)

// epoch is when every simulation begins.
var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// longest bounds the virtual time of a run: what is not at its end by then never gets there.
const longest = 24 * time.Hour

// mostAtOnce bounds how much happens while the clock stands still.
const mostAtOnce = 10_000

// event is something that happens at a time.
type event struct {
	at        time.Time
	seq       int64
	do        func()
	cancelled bool
}

// queue orders events by time, and those of one time as they were scheduled.
type queue []*event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if q[i].at.Equal(q[j].at) {
		return q[i].seq < q[j].seq
	}
	return q[i].at.Before(q[j].at)
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(*event)) }
func (q *queue) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return e
}

func (w *world) at(t time.Time, do func()) *event {
	if t.Before(w.now) {
		t = w.now
	}
	w.seq++
	e := &event{at: t, seq: w.seq, do: do}
	heap.Push(&w.queue, e)
	return e
}

func (w *world) after(d time.Duration, do func()) *event { return w.at(w.now.Add(d), do) }

// alarm is one wake-up that can be moved to an earlier time.
type alarm struct{ set *event }

// by makes the alarm ring after d at the latest.
func (a *alarm) by(w *world, d time.Duration, do func()) {
	t := w.now.Add(max(0, d))
	if a.set != nil && !a.set.at.After(t) {
		return
	}
	if a.set != nil {
		a.set.cancelled = true
	}
	a.set = w.at(t, func() {
		a.set = nil
		do()
	})
}

// drive takes one step after the other until nothing is left to happen.
func (w *world) drive() {
	for w.queue.Len() > 0 && w.err == nil {
		e := heap.Pop(&w.queue).(*event)
		if e.cancelled {
			continue
		}
		if e.at.After(w.now) {
			w.now, w.atOnce = e.at, 0
		}
		if w.atOnce++; w.atOnce > mostAtOnce {
			w.fail("rest", "the site goes round in circles: %d steps at one moment", w.atOnce)
			return
		}
		if w.now.Sub(epoch) > longest {
			w.fail("rest", "the site does not come to rest: something is still to happen after %s", longest)
			return
		}
		w.stats.Steps++
		w.noteAnswers()
		e.do()
		if w.err == nil {
			w.check()
		}
	}
}

// siteClock is the clock of a leader: the time of its machine when it took over, or the newest time stored if that is later, and from
// there on what really passes. The machine's clock may jump; the leader's does not.
type siteClock struct {
	base time.Time
	read time.Time // the world's time at base
}

func (c siteClock) now(w *world) time.Time { return c.base.Add(w.now.Sub(c.read)) }

// newSiteClock starts a leader's clock.
func (w *world) newSiteClock() siteClock {
	base := w.now.Add(w.skew)
	if newest := w.store.newestTime(); newest.After(base) && w.cfg.Without != GuardClock {
		base = newest
	}
	return siteClock{base: base, read: w.now}
}
