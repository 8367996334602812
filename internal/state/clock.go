package state

import "time"

// NewestTime is the newest time that the leader's side of the state holds, zero when there is none: a leader whose clock is behind must
// not decide at a time before what was decided. It looks at everything; call it once, when leadership begins.
func (v *View) NewestTime() time.Time {
	var newest time.Time
	see := func(t time.Time) {
		if t.After(newest) {
			newest = t
		}
	}
	maybe := func(t *time.Time) {
		if t != nil {
			see(*t)
		}
	}
	for _, c := range v.Clusters {
		if c.Record == nil {
			continue
		}
		see(c.Record.ChangedAt)
		maybe(c.Record.ReadyAt)
		maybe(c.Record.PlacedAt)
		maybe(c.Record.ExpiredAt)
		for i := range c.Record.Lost {
			see(c.Record.Lost[i].Since)
		}
		for i := range c.chunks {
			maybe(c.chunks[i].Ref.ReleasedAt)
			for j := range c.chunks[i].Assignments {
				see(c.chunks[i].Assignments[j].HeldSince())
			}
		}
	}
	for _, q := range v.Quarantines {
		see(q.Since)
	}
	for m := range v.Machines() {
		if m.Record == nil {
			continue
		}
		see(m.Record.ChangedAt)
		see(m.Record.PowerObservedAt)
		if m.Record.Boot != nil {
			see(m.Record.Boot.DecidedAt)
		}
	}
	for _, vol := range v.Volumes {
		if vol.Record != nil {
			see(vol.Record.HeldSince)
		}
	}
	see(v.UsedUntil)
	for _, s := range v.NodeSpans {
		see(s.From)
		maybe(s.To)
	}
	return newest
}
