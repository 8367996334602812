package metal

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/power/fake"
)

// How long a site is troubled, and how long it may take to come to rest afterwards: two attempts at a boot and a stop, each to its deadline.
const (
	troubled = 75 * time.Minute
	settling = 45 * time.Minute
)

// world is a site and its machines.
type world struct {
	t    *testing.T
	seed uint64
	ctx  context.Context
	seen *counts

	store *witness
	bmcs  *fake.Site
	boxes []*box

	mu     sync.Mutex
	clocks *rand.Rand
	site   *site // nil while the server is down
	risen  time.Time
	calm   bool
}

func newWorld(t *testing.T, seed uint64, seen *counts) *world {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	w := &world{t: t, seed: seed, ctx: ctx, seen: seen, bmcs: fake.NewSite()}
	w.store = newWitness(w)
	w.clocks = w.random("clocks")
	r := w.random("boxes")
	for i := range 2 + r.IntN(4) {
		w.boxes = append(w.boxes, newBox(w, i, r.IntN(4) == 0))
	}
	return w
}

// random is a source of its own for each purpose, so that one does not change with another.
func (w *world) random(purpose string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(purpose))
	return rand.New(rand.NewPCG(w.seed, h.Sum64()))
}

func span(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)+1))
}

// pause waits, and tells whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// live is the whole life of the site.
func (w *world) live() {
	w.start()
	w.images()
	for _, b := range w.boxes {
		w.enrol(b)
	}
	w.trouble()
	w.becomeCalm()
	w.checkRest()
	w.checkAllCanBeHad()
	w.kill()
	for _, b := range w.boxes {
		b.machine.Set(api.PowerOff)
		b.lives.Wait()
	}
}

// trouble lets users, operators and everything that goes wrong loose for a while.
func (w *world) trouble() {
	ctx, cancel := context.WithTimeout(w.ctx, troubled)
	defer cancel()
	var parts sync.WaitGroup
	for purpose, part := range map[string]func(context.Context, *rand.Rand){
		"users": w.users, "faults": w.faults, "servers": w.servers, "watch": func(ctx context.Context, _ *rand.Rand) { w.watch(ctx) },
	} {
		r := w.random(purpose)
		parts.Go(func() { part(ctx, r) })
	}
	parts.Wait()
}

// becomeCalm ends all that goes wrong, and lets the site come to rest. Where nothing but a person can switch a machine off, a person does
// that with those that stand idle.
func (w *world) becomeCalm() {
	w.mu.Lock()
	w.calm = true
	w.mu.Unlock()
	for _, b := range w.boxes {
		b.mend()
	}
	w.start()
	w.trace("calm")
	pause(w.ctx, settling)
}

func (w *world) isCalm() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calm
}

// trace tells what happens, for who runs the test with -v.
func (w *world) trace(format string, args ...any) {
	w.t.Helper()
	w.t.Logf("%s "+format, append([]any{time.Now().Format("15:04:05.000")}, args...)...)
}
