package controller

import "time"

// clock is the leader's time: it starts where the wall clock stands, or at the newest time that is stored if that is later, and goes on
// as the machine's monotonic clock does. So stored times never go backwards, whoever leads, and a wall clock that is set moves no
// deadline while a leader leads.
type clock struct {
	now            func() time.Time
	floor, started time.Time
}

func newClock(now func() time.Time, newest time.Time) clock {
	started := now()
	floor := started.Round(0) // without its monotonic reading: stored times have none
	if newest.After(floor) {
		floor = newest
	}
	return clock{now: now, floor: floor.UTC(), started: started}
}

// SiteTime is the clock of a server that does not lead, or does not know whether it does: made like a leader's, it tells the time at a
// reading of the machine's clock. What is told of stored times, such as how much was used until now, must not follow a wall
// clock that is set.
func SiteTime(now func() time.Time, newest time.Time) func(reading time.Time) time.Time {
	return newClock(now, newest).at
}

// at is the leader's time at a reading of the machine's clock.
func (c clock) at(reading time.Time) time.Time { return c.floor.Add(reading.Sub(c.started)) }
