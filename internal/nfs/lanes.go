package nfs

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A tree may stop answering, as one of another node does while that node is away: the kernel keeps each thread that touches it. So each tree has a lane,
// with threads of its own, and nothing that one tree's threads hold while they wait is needed by another's. A lane takes no more calls than it has
// threads.
//
// Whoever reads calls from the guest waits for a free thread while the lane finishes calls, which slows the guest down to what its disks can do. Where
// nothing was finished for a while, it waits no more: calls of that tree are refused with JUKEBOX until something is finished. Linux's client then
// tries again after five seconds, and gives its own threads back meanwhile. Saying nothing would cost it ten seconds or more, and a place in its
// table of calls; JUKEBOX at once would cost it five seconds whenever it writes more than eight pieces of a file at a time.

// DefaultPatience is how long a call waits for a thread of a tree that finishes nothing.
const DefaultPatience = time.Second

// job is a call that is under way.
type job struct {
	data  []byte
	call  *call
	reply func([]byte) // by which the latest sending of the call is answered; lane.mu is held
}

// lane serves the calls of one tree.
type lane struct {
	patience time.Duration
	jobs     chan *job
	// silent: all threads have a call, and nothing was finished for as long as patience lasts.
	silent atomic.Bool

	mu sync.Mutex
	// underWay are the calls that have a thread or wait for one.
	underWay map[*job]bool
}

func newLane(patience time.Duration) *lane {
	return &lane{patience: patience, jobs: make(chan *job), underWay: map[*job]bool{}}
}

// take has a call served, and refuses it where the tree does not answer. It returns ctx's error when that ends first.
func (l *lane) take(ctx context.Context, j *job) error {
	if l.joins(j) {
		return nil
	}
	select { // a thread that is free goes before anything else
	case l.jobs <- j:
		return nil
	default:
	}
	if l.silent.Load() {
		l.refuse(j)
		return nil
	}
	timer := time.NewTimer(l.patience)
	defer timer.Stop()
	select {
	case l.jobs <- j:
		return nil
	case <-timer.C:
		l.silent.Store(true)
		l.refuse(j)
		return nil
	case <-ctx.Done():
		l.finish(j)
		return ctx.Err()
	}
}

// joins reports whether a call is under way already. Then it is answered once that is: a client sends again what was not answered, under the same
// number. Were it refused or served beside the first, the client could hear that a rename failed which was done, or have an old write done
// after a new one.
func (l *lane) joins(j *job) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for other := range l.underWay {
		if bytes.Equal(other.data, j.data) {
			other.reply = j.reply
			return true
		}
	}
	l.underWay[j] = true
	return false
}

// finish takes a call off those under way, and returns by what it is answered.
func (l *lane) finish(j *job) (reply func([]byte)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.underWay, j)
	return j.reply
}

// refuse answers a call without touching its tree.
func (l *lane) refuse(j *job) { l.finish(j)(j.call.refusal()) }

// work serves calls on a thread of its own, whose IDs are the caller's of each. The thread ends with it.
func (l *lane) work(ctx context.Context) {
	runtime.LockOSThread()
	t := &thread{}
	for {
		select {
		case j := <-l.jobs:
			data := j.call.answer(t, j.data)
			l.silent.Store(false)
			l.finish(j)(data)
		case <-ctx.Done():
			return
		}
	}
}
