package provisioner

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/machine/power"
)

// Options are what a provisioner works with.
type Options struct {
	// Open makes the switches.
	Open power.Opener
	// Gate bounds and fences what is done; nil makes one. It must outlive the provisioner if another follows in this process.
	Gate *power.Gate
	// ObserveEvery is how often the power of a machine without an order is read, spread by chance; 0: 30 s.
	ObserveEvery time.Duration
	// Backoff is between tries that failed; zero: from 1 s to 30 s.
	Backoff power.Backoff
	// Now is the clock; nil: time.Now. Timers are package time's.
	Now func() time.Time
	// Jitter gives numbers in [0, 1); nil: by chance. It is called by one goroutine at a time.
	Jitter func() float64
	Log    *slog.Logger
}

// Provisioner converges machines' power on what is desired. It may be used from many goroutines.
type Provisioner struct {
	o       Options
	kick    chan struct{} // something is desired that no worker knows
	changed chan struct{}

	mu       sync.Mutex
	term     int64
	desired  map[string]Machine // by UID
	observed map[string]Observed
}

// New makes a provisioner that knows no machine.
func New(o Options) *Provisioner {
	if o.Gate == nil {
		o.Gate = power.NewGate(power.GateOptions{})
	}
	if o.ObserveEvery <= 0 {
		o.ObserveEvery = 30 * time.Second
	}
	if o.Backoff == (power.Backoff{}) {
		o.Backoff = power.Backoff{First: time.Second, Longest: 30 * time.Second}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	jitter := o.Jitter
	var throwing sync.Mutex
	o.Jitter = func() float64 { throwing.Lock(); defer throwing.Unlock(); return jitter() }
	return &Provisioner{
		o: o, kick: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		desired: map[string]Machine{}, observed: map[string]Observed{},
	}
}

// Set replaces what is desired, for all machines. What an older term says is ignored. It does not wait: work on what is no longer desired
// is cancelled soon.
func (p *Provisioner) Set(d Desired) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.Term < p.term {
		return
	}
	p.term = d.Term
	clear(p.desired)
	for _, m := range d.Machines {
		p.desired[m.UID] = m
	}
	signal(p.kick)
}

// Observed tells what is known of each machine desired, by UID in order. A machine that was not looked at yet is unknown.
func (p *Provisioner) Observed() []Observed {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Observed, 0, len(p.observed))
	for _, o := range p.observed {
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b Observed) int { return strings.Compare(a.UID, b.UID) })
	return all
}

// Changed receives after Observed changed in anything but the time of an observation. It holds one signal.
func (p *Provisioner) Changed() <-chan struct{} { return p.changed }

// Run works until ctx ends, as it does when the leadership ends; then everything under way is cancelled, and Run returns when it has ended.
// It may be called again afterwards.
func (p *Provisioner) Run(ctx context.Context) error {
	workers := map[string]*worker{}
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer running.Wait()
	defer cancel()
	for {
		for _, w := range p.assign(workers) {
			own, end := context.WithCancel(ctx)
			w.end = end
			running.Go(func() { defer end(); w.run(own) })
		}
		select {
		case <-p.kick:
		case <-ctx.Done():
			signal(p.kick) // a next Run begins with what is desired
			return ctx.Err()
		}
	}
}

// assign tells the workers what is desired of their machines, ends those of machines that are no longer, and returns new ones.
func (p *Provisioner) assign(workers map[string]*worker) (fresh []*worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, w := range workers {
		if _, ok := p.desired[uid]; !ok {
			w.end()
			delete(workers, uid)
			delete(p.observed, uid)
		}
	}
	for uid, m := range p.desired {
		w := workers[uid]
		if w == nil {
			w = &worker{p: p, uid: uid, news: make(chan struct{}, 1)}
			workers[uid] = w
			fresh = append(fresh, w)
		}
		w.assign(assignment{term: p.term, machine: m})
	}
	return fresh
}

// report takes what a worker knows. A machine that is no longer desired is not reported.
func (p *Provisioner) report(o Observed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.desired[o.UID]; !ok {
		return
	}
	before, known := p.observed[o.UID]
	p.observed[o.UID] = o
	before.ObservedAt = o.ObservedAt
	if !known || before != o {
		signal(p.changed)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
