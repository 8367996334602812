package controller

import (
	"sync/atomic"
	"time"
)

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

// SiteClock is a server's clock, whether it leads or not: made like a leader's, it tells the time at a reading of the machine's clock. What is
// told of stored times, such as how much was used until now, must not follow a wall clock that is set. It is made anew as the server begins to
// lead, so that what it hears and what it decides have one clock.
type SiteClock struct {
	now     func() time.Time
	present atomic.Pointer[clock]
}

// NewSiteClock starts where the wall clock stands, or at the newest time that is stored.
func NewSiteClock(now func() time.Time, newest time.Time) *SiteClock {
	s := &SiteClock{now: now}
	c := newClock(now, newest)
	s.present.Store(&c)
	return s
}

// SiteTime is At of a SiteClock.
func SiteTime(now func() time.Time, newest time.Time) func(reading time.Time) time.Time {
	return NewSiteClock(now, newest).At
}

// At is the time at a reading of the machine's clock.
func (s *SiteClock) At(reading time.Time) time.Time { return s.present.Load().at(reading) }

// lead makes it a leader's. Times go on from those told so far.
func (s *SiteClock) lead(newest time.Time) clock {
	if told := s.At(s.now()); told.After(newest) {
		newest = told
	}
	c := newClock(s.now, newest)
	s.present.Store(&c)
	return c
}

// at is the leader's time at a reading of the machine's clock.
func (c clock) at(reading time.Time) time.Time { return c.floor.Add(reading.Sub(c.started)) }
