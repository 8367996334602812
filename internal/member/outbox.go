package member

import (
	"context"
	"sync"
	"time"
)

// outbox holds what a member has to be told next. It is level-triggered: what is put in twice is sent once, so a member that
// reads slowly costs no memory.
type outbox struct {
	// wake has an element when the outbox is not empty.
	wake chan struct{}

	mu      sync.Mutex
	content outboxContent
}

type outboxContent struct {
	jobs, checks, stop bool
	from               map[string]LogFrom
	acks               map[string]LogAck
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

func (o *outbox) setJobs() { o.put(func(c *outboxContent) { c.jobs = true }) }
func (o *outbox) setStop() { o.put(func(c *outboxContent) { c.stop = true }) }

func (o *outbox) setChecks() { o.put(func(c *outboxContent) { c.checks = true }) }

func (o *outbox) logFrom(from LogFrom) {
	o.put(func(c *outboxContent) {
		c.from[from.JobID] = from
		if !c.acks[from.JobID].Discard {
			delete(c.acks, from.JobID)
		}
	})
}

func (o *outbox) logAck(ack LogAck) {
	o.put(func(c *outboxContent) { c.acks[ack.JobID] = ack })
}

func (o *outbox) put(change func(*outboxContent)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.content.from == nil {
		o.content.from, o.content.acks = map[string]LogFrom{}, map[string]LogAck{}
	}
	change(&o.content)
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *outbox) take() outboxContent {
	o.mu.Lock()
	defer o.mu.Unlock()
	content := o.content
	o.content = outboxContent{}
	return content
}

// bucket is a token bucket: it bounds a rate and lets bursts pass.
type bucket struct {
	perSecond, burst float64
	tokens           float64
	last             time.Time
}

// take uses n tokens and returns how long to wait before going on.
func (b *bucket) take(now time.Time, n float64) time.Duration {
	if b.last.IsZero() {
		b.tokens = b.burst
	} else {
		b.tokens = min(b.burst, b.tokens+now.Sub(b.last).Seconds()*b.perSecond)
	}
	b.last = now
	b.tokens -= n
	if b.tokens >= 0 {
		return 0
	}
	return time.Duration(-b.tokens / b.perSecond * float64(time.Second))
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
