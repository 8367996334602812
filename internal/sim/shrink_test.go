package sim

import (
	"errors"
	"testing"
	"time"
)

// mostShrinks bounds the runs that a shrinking takes.
const mostShrinks = 400

// shrink makes a failing run smaller: fewer clusters, fewer machines, an earlier end, fewer kinds of things that happen, as long as the
// same check finds the same. It returns the smallest failing run found and its failure.
func shrink(t *testing.T, cfg Config, failed *Violation) *Violation {
	t.Helper()
	s := &shrinker{t: t, cfg: cfg, best: failed}
	for smaller := true; smaller; {
		smaller = s.shorten() || s.fewerLives() || s.fewerNodes() || s.fewerBoxes() || s.fewerKinds()
	}
	t.Logf("made smaller in %d runs", s.runs)
	return s.best
}

type shrinker struct {
	t    *testing.T
	cfg  Config
	best *Violation
	runs int
}

// try runs with other settings and tells whether the same check finds the same.
func (s *shrinker) try(settings Settings) bool {
	if s.runs++; s.runs > mostShrinks || settings == s.best.Settings {
		return false
	}
	cfg := s.cfg
	cfg.Settings, cfg.Trace = settings, nil
	_, err := run(s.t, cfg)
	var v *Violation
	if !errors.As(err, &v) || !v.sameAs(s.best) {
		return false
	}
	s.best = v
	return true
}

func (s *shrinker) fewerLives() bool {
	smaller := false
	for step := s.best.Settings.Lives / 2; step > 0; {
		next := s.best.Settings
		next.Lives -= step
		if next.Lives > 0 && s.try(next) {
			smaller = true
			step = min(step, next.Lives/2)
		} else {
			step /= 2
		}
	}
	return smaller
}

func (s *shrinker) fewerNodes() bool {
	for n := 1; n < mostNodes && (s.best.Settings.Nodes == 0 || n < s.best.Settings.Nodes); n++ {
		next := s.best.Settings
		next.Nodes = n
		if s.try(next) {
			return true
		}
	}
	return false
}

func (s *shrinker) fewerBoxes() bool {
	next := s.best.Settings
	next.Boxes = 1
	return s.best.Settings.Boxes != 1 && s.try(next)
}

func (s *shrinker) fewerKinds() bool {
	var has []Kind
	for k := range kinds {
		if s.best.Settings.Kinds.Has(k) {
			has = append(has, k)
		}
	}
	return s.without(has)
}

// without leaves these kinds out: all at once, and else as many of either half as it can. Few kinds have a part in a failure.
func (s *shrinker) without(some []Kind) bool {
	if len(some) == 0 {
		return false
	}
	next := s.best.Settings
	next.Kinds = next.Kinds.Without(some...)
	if s.try(next) {
		return true
	}
	if len(some) == 1 {
		return false
	}
	one, other := s.without(some[:len(some)/2]), s.without(some[len(some)/2:])
	return one || other
}

// shorten lets it become calm soon after, or long before, the failure.
func (s *shrinker) shorten() bool {
	smaller := false
	for _, part := range []int64{100, 90, 75, 50, 25} {
		next := s.best.Settings
		next.Until = (s.best.After * time.Duration(part) / 100).Round(time.Second)
		if next.Until > 0 && (s.best.Settings.Until == 0 || next.Until < s.best.Settings.Until) {
			smaller = s.try(next) || smaller
		}
	}
	return smaller
}
