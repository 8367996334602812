package sim

import (
	"maps"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/admission"
	"github.com/nearmetal/nearmetal/internal/situation"
)

// promise is what the head of the queue was told: it starts at a time at the latest, unless something disturbs.
type promise struct {
	uid       string
	by        time.Time
	disturbed int64
}

// forecastSlack is how much later than forecast a start may be: what was expected to take ReleaseTime may take somewhat longer.
const forecastSlack = 20 * time.Second

// checkQueue checks, on sites where nothing goes wrong, that the head of the queue starts when it was told to: that nobody behind it was
// let in front of it. Elsewhere what is expected to be clean soon may take its time.
func (w *world) checkQueue(site *situation.Site) {
	in, ok := w.asked(site)
	if !ok {
		return
	}
	decisions := admission.Plan(in)
	c := w.checks
	for _, r := range in.Requests {
		if r.Kind != admission.KindCreate {
			c.disturbed.Add(1) // replacements, spares and scale-ups may take what the head waits for
		}
	}
	head := promise{}
	for _, d := range decisions {
		r := in.Requests[d.Request]
		switch {
		case r.Kind != admission.KindCreate:
		case d.Verdict == admission.Admit && head == (promise{}) && r.UID != c.promise.uid:
			c.disturbed.Add(1) // it comes before the head by right
		case d.Verdict == admission.Wait && d.Undecided:
			return // nodes are not heard of
		case d.Verdict == admission.Wait && d.Position == 1:
			head = promise{uid: r.UID, by: d.Earliest, disturbed: c.disturbed.Load()}
		}
	}
	kept := c.promise.uid == head.uid && c.promise.disturbed == c.disturbed.Load() && !c.promise.by.IsZero()
	if kept && site.Now.After(c.promise.by.Add(forecastSlack)) {
		w.fail("queue", "the head of the queue, %s, was to start by %s, and now, at %s, still waits", head.uid, c.promise.by.Sub(w.epoch), site.Now.Sub(w.epoch))
	}
	if kept && !head.by.IsZero() {
		w.happened("promise kept")
		if head.by.After(c.promise.by.Add(forecastSlack)) {
			w.fail("queue", "the head of the queue, %s, was to start by %s, and now waits until %s", head.uid, c.promise.by.Sub(w.epoch), head.by.Sub(w.epoch))
		}
		if head.by.Before(c.promise.by) {
			c.promise.by = head.by
		}
		return
	}
	if !kept || c.promise.uid != head.uid {
		c.promise = head
	}
}

// checkOvertaken checks, on sites where nothing goes wrong, that one that has just got its room went before nobody who came first, is its equal
// and asks for no more, nor for longer: whatever is free for the one would have done for the other.
func (m *mirror) checkOvertaken(placed *api.ClusterIntent) {
	for _, name := range m.names() {
		e := m.clusters[name]
		if e.intent == nil || e.record != nil && e.record.Phase != api.ClusterQueued || e.intent.DeleteRequestedAt != nil {
			continue
		}
		if e.intent.CreatedAt.Before(placed.CreatedAt) && isEqual(e.intent, placed) && asksForNoMore(e.intent.Spec, placed.Spec) {
			m.w.fail("queue", "cluster %s has got its room before %s, which came first and asks for no more", placed.Name, name)
		}
	}
}

// isEqual reports whether only their age puts one before the other.
func isEqual(a, b *api.ClusterIntent) bool {
	return a.Project == b.Project && a.User == b.User && a.Spec.Priority == b.Spec.Priority && a.Spec.Queue == b.Spec.Queue
}

// asksForNoMore reports whether wherever b fits a does, for as long.
func asksForNoMore(a, b api.ClusterSpec) bool {
	if len(a.Groups) != 1 || len(b.Groups) != 1 || b.TimeLimit != 0 && (a.TimeLimit == 0 || a.TimeLimit > b.TimeLimit) {
		return false
	}
	g, h := a.Groups[0], b.Groups[0]
	return g.Size <= h.Size && g.Cores <= h.Cores && g.Memory <= h.Memory && maps.Equal(g.NodeSelector, h.NodeSelector)
}

// asked is what admission is asked by now; false when nothing is.
func (w *world) asked(site *situation.Site) (admission.Input, bool) {
	needs := site.Needs()
	if len(needs) == 0 {
		return admission.Input{}, false
	}
	room := situation.Room{Offers: w.offers()}
	free, err := room.Update(site.View, site.Available)
	if err != nil {
		w.must(err)
		return admission.Input{}, false
	}
	return site.Admission(needs, free), true
}
