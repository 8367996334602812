package member

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// health knows why the member, once it was ready, can't be used: reasons come from the group's checks and from the member agent's
// own probe. Nothing is known before begin.
type health struct {
	ctx context.Context
	// run runs a check once.
	run     func(context.Context, api.Check) error
	changed func()

	mu      sync.Mutex
	began   bool
	reasons map[string]string
	wanted  []api.Check
	checks  map[string]*runningCheck
}

// runningCheck is a check that is tried again and again.
type runningCheck struct {
	check api.Check
	end   context.CancelFunc
	// ending reports that it was asked to end; it stays known, so that one of the same name waits for it.
	ending bool
	ended  chan struct{} // closed when nothing of it runs any more
}

func newHealth(ctx context.Context, run func(context.Context, api.Check) error, changed func()) *health {
	return &health{ctx: ctx, run: run, changed: changed, reasons: map[string]string{}, checks: map[string]*runningCheck{}}
}

// begin starts the checks: the member is ready.
func (h *health) begin() {
	h.mu.Lock()
	h.began = true
	h.start()
	h.mu.Unlock()
	h.changed()
}

// setChecks brings the checks to the list; those that are the same go on.
func (h *health) setChecks(list []api.Check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wanted = list
	if h.began {
		h.start()
	}
}

// start ends the checks that are not wanted any more and starts those that do not run; h.mu is held.
func (h *health) start() {
	wanted := map[string]api.Check{}
	for _, check := range h.wanted {
		wanted[check.Name] = check
	}
	for name, running := range h.checks {
		if check, ok := wanted[name]; ok && !running.ending && reflect.DeepEqual(check, running.check) {
			delete(wanted, name)
			continue
		}
		running.ending = true
		running.end()
		h.set(checkReason(name), "")
	}
	for name, check := range wanted {
		ctx, end := context.WithCancel(h.ctx)
		started := &runningCheck{check: check, end: end, ended: make(chan struct{})}
		before := h.checks[name]
		h.checks[name] = started
		go func() {
			defer close(started.ended)
			if before != nil {
				<-before.ended
			}
			h.trial(ctx, check).loop(ctx)
		}()
	}
}

func checkReason(name string) string { return "check " + name }

// trial makes what tries a check until ctx ends.
func (h *health) trial(ctx context.Context, check api.Check) *trial {
	return &trial{
		what: "check " + `"` + check.Name + `"`, interval: time.Duration(check.Interval), timeout: time.Duration(check.Timeout),
		failures: check.Failures, now: time.Now,
		run: func(ctx context.Context) error { return h.run(ctx, check) },
		report: func(reason string) {
			h.mu.Lock()
			defer h.mu.Unlock()
			if ctx.Err() == nil { // else it is another's place
				h.set(checkReason(check.Name), reason)
			}
		},
	}
}

// report notes a reason of the member agent's own, empty when there is none.
func (h *health) report(source, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.set(source, reason)
}

// set notes a reason, empty for none; h.mu is held.
func (h *health) set(source, reason string) {
	if h.reasons[source] == reason {
		return
	}
	if reason == "" {
		delete(h.reasons, source)
	} else {
		h.reasons[source] = reason
	}
	h.changed()
}

// status returns what there is to tell, nil before the member was ready.
func (h *health) status() *Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.began {
		return nil
	}
	reasons := make([]string, 0, len(h.reasons))
	for _, source := range slices.Sorted(maps.Keys(h.reasons)) {
		reasons = append(reasons, h.reasons[source])
	}
	return &Health{Healthy: len(reasons) == 0, Message: strings.Join(reasons, "; ")}
}
