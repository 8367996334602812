package sim

import (
	"time"

	"github.com/nearmetal/nearmetal/internal/admission"
)

// promise is what the head of the queue was told: it starts at a time at the latest, unless something disturbs.
type promise struct {
	uid       string
	by        time.Time
	disturbed int
}

// forecastSlack is how much later than forecast a start may be: what was expected to take ReleaseTime may take somewhat longer.
const forecastSlack = 20 * time.Second

// checkQueue checks, on sites where nothing goes wrong, that the head of the queue starts when it was told to: that nobody behind it was
// let in front of it. Elsewhere what is expected to be clean soon may take its time.
func (p *pass) checkQueue(in admission.Input, decisions []admission.Decision) {
	if p.w.cfg.Kinds&^QuietKinds() != 0 {
		return
	}
	c := &p.w.checks
	for _, r := range in.Requests {
		if r.Kind != admission.KindCreate {
			c.disturbed++ // replacements, spares and scale-ups may take what the head waits for
		}
	}
	head := promise{}
	for _, d := range decisions {
		r := in.Requests[d.Request]
		switch {
		case r.Kind != admission.KindCreate:
		case d.Verdict == admission.Admit && head == (promise{}) && r.UID != c.promise.uid:
			c.disturbed++ // it comes before the head by right
		case d.Verdict == admission.Wait && d.Undecided:
			return // nodes are not heard of
		case d.Verdict == admission.Wait && d.Position == 1:
			head = promise{uid: r.UID, by: d.Earliest, disturbed: c.disturbed}
		}
	}
	kept := c.promise.uid == head.uid && c.promise.disturbed == c.disturbed && !c.promise.by.IsZero()
	if kept && p.at.After(c.promise.by.Add(forecastSlack)) {
		p.w.fail("queue", "the head of the queue, %s, was to start by %s, and now, at %s, still waits", head.uid, c.promise.by.Sub(epoch), p.at.Sub(epoch))
	}
	if kept && !head.by.IsZero() {
		p.w.happened("promise kept")
		if head.by.Before(c.promise.by) {
			c.promise.by = head.by
		}
		return
	}
	if !kept || c.promise.uid != head.uid {
		c.promise = head
	}
}
