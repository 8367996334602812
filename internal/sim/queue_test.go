package sim

import (
	"cmp"
	"container/heap"
	"slices"
	"sync"
	"testing/synctest"
	"time"
)

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
	if now := time.Now(); t.Before(now) {
		t = now
	}
	w.seq++
	e := &event{at: t, seq: w.seq, do: do}
	heap.Push(&w.queue, e)
	return e
}

func (w *world) after(d time.Duration, do func()) *event { return w.at(time.Now().Add(d), do) }

// alarm is one wake-up that can be moved to an earlier time.
type alarm struct{ set *event }

// by makes the alarm ring after d at the latest.
func (a *alarm) by(w *world, d time.Duration, do func()) {
	t := time.Now().Add(max(0, d))
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

// inbox is how other goroutines of the bubble hand the driver something to do.
type inbox struct {
	mu    sync.Mutex
	posts []post
	woken chan struct{}
}

// post is something to do, and for whom: what comes at one moment is done in the order of that, so that a run does not depend on how
// goroutines are scheduled.
type post struct {
	whose string
	do    func()
}

func newInbox() *inbox { return &inbox{woken: make(chan struct{}, 1)} }

func (i *inbox) wake() {
	select {
	case i.woken <- struct{}{}:
	default:
	}
}

func (i *inbox) post(whose string, do func()) {
	i.mu.Lock()
	i.posts = append(i.posts, post{whose, do})
	i.mu.Unlock()
	i.wake()
}

// take returns what has come so far.
func (i *inbox) take() []post {
	i.mu.Lock()
	defer i.mu.Unlock()
	posts := i.posts
	i.posts = nil
	slices.SortStableFunc(posts, func(a, b post) int { return cmp.Compare(a.whose, b.whose) })
	return posts
}

// drive takes one step after the other until nothing is left to happen. Between two steps the real components come to rest.
func (w *world) drive() {
	for {
		w.settle()
		if w.failed() != nil || w.done() {
			return
		}
		next := w.next()
		if next == nil {
			return
		}
		if left := time.Until(next.at); left > 0 {
			w.sleep(left)
			continue
		}
		heap.Pop(&w.queue)
		w.step(next.do)
		if w.since() > longest {
			w.fail("rest", "the site does not come to rest: something is still to happen after %s", longest)
		}
	}
}

// sleep lets time pass until the next event, or until another goroutine has something for the driver.
func (w *world) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.inbox.woken:
	}
}

// next is the next event.
func (w *world) next() *event {
	for w.queue.Len() > 0 {
		if e := w.queue[0]; !e.cancelled {
			return e
		}
		heap.Pop(&w.queue)
	}
	return nil
}

// step does one thing.
func (w *world) step(do func()) {
	if now := time.Now(); now.After(w.moved) {
		w.moved, w.atOnce = now, 0
	}
	if w.atOnce++; w.atOnce > mostAtOnce {
		w.fail("rest", "the site goes round in circles: %d steps at one moment", w.atOnce)
		return
	}
	w.stats.Steps++
	w.noteAnswers()
	do()
}

// settle lets all that goes on at this moment come to rest, and looks at what became of it.
func (w *world) settle() {
	for w.failed() == nil {
		synctest.Wait()
		posts := w.inbox.take()
		if len(posts) == 0 {
			break
		}
		for _, p := range posts {
			w.step(p.do)
		}
	}
	if w.failed() == nil {
		w.check()
	}
}
