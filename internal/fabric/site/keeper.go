package site

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

const (
	// callTimeout bounds one call of an executor.
	callTimeout = 30 * time.Second
	// auditEvery is how often a fabric is read that is as it should be: others may change it.
	auditEvery = 30 * time.Second

	firstPause  = 100 * time.Millisecond
	longestWait = 10 * time.Second
)

// place is one place in one network.
type place struct {
	network int
	at      string
}

// Keeper brings one fabric to what a leader desires and keeps it there. Its methods may be called at once by several goroutines.
type Keeper struct {
	site    Site
	log     *slog.Logger
	changed chan struct{}
	// chart is nil for a site that can't survey its fabric.
	chart *Chart
	told  chan struct{}

	mu       sync.Mutex
	epoch    lifecycle.Epoch // of the newest desired state; zero: none yet
	networks []Network
	wanted   map[place]bool
	// left are the epochs of the desired states that first lacked what an earlier one of the same leader had, until that is in force. What was
	// never desired by this leader is lacking since first.
	left  map[place]lifecycle.Epoch
	first lifecycle.Epoch
	// seen is what was read back last under this leader, problem why nothing was.
	seen    Observation
	here    map[place]bool
	problem error
	// failing is when the problem began. brought: a desired state of this leader's was applied, or could not be. alarms are those that were found then.
	failing time.Time
	brought bool
	alarms  []Alarm
}

// NewKeeper makes a keeper of a fabric, which knows nothing before the first Set and does nothing before Run.
func NewKeeper(s Site, log *slog.Logger) *Keeper {
	k := &Keeper{site: s, log: log, changed: make(chan struct{}, 1), told: make(chan struct{}, 1)}
	if surveyor, ok := s.(Surveyor); ok {
		k.chart = NewChart(surveyor, time.Now, log)
	}
	return k
}

// Chart is what the fabric looks like; nil: its executor can't survey it.
func (k *Keeper) Chart() *Chart { return k.chart }

// Governed is the executor's report on subnet managers; nil: it makes none.
func (k *Keeper) Governed() Governed {
	g, _ := k.site.(Governed)
	return g
}

// Switching is the executor as one on the switches of an Ethernet; nil: it is none.
func (k *Keeper) Switching() Switching {
	s, _ := k.site.(Switching)
	return s
}

// Check returns nil for networks that the fabric could have, as Checker says. An executor that can't say accepts all.
func (k *Keeper) Check(networks []Network) error {
	if checker, ok := k.site.(Checker); ok {
		return checker.Check(networks)
	}
	return nil
}

// Guarded reports whether whole adapters on the fabric can be given away, as Guarded says. An executor that does not say can't be harmed so.
func (k *Keeper) Guarded() bool {
	g, ok := k.site.(Guarded)
	return !ok || g.Guarded()
}

// Audit reads the fabric's own tables now, whoever leads.
func (k *Keeper) Audit(ctx context.Context) (Observation, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return k.site.Observe(ctx)
}

// Set replaces the desired state. The same networks again, under the same leader, are no news. What was read back under a former leader is
// forgotten.
func (k *Keeper) Set(epoch lifecycle.Epoch, networks []Network) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case epoch.Term != k.epoch.Term:
		k.left, k.first, k.seen, k.here, k.problem = map[place]lifecycle.Epoch{}, epoch, Observation{}, nil, nil
		k.brought, k.alarms = false, nil
	case reflect.DeepEqual(networks, k.networks):
		return
	default:
		for p := range k.wanted {
			k.left[p] = epoch
		}
	}
	k.epoch, k.networks, k.wanted = epoch, networks, placesOf(networks)
	for p := range k.wanted {
		delete(k.left, p)
	}
	signal(k.told)
}

func placesOf(networks []Network) map[place]bool {
	places := map[place]bool{}
	for _, n := range networks {
		for _, p := range n.Ports {
			places[place{n.Number, p.At}] = true
		}
	}
	return places
}

// Changed is signalled when something else was read back than before.
func (k *Keeper) Changed() <-chan struct{} { return k.changed }

// Clean returns nil when it was read back, under the leader of the newest desired state, that a network is gone from a place and will not come
// back by an order of an earlier time; else why that is not proved.
func (k *Keeper) Clean(network int, at string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := place{network, at}
	epoch, dropped := k.left[p]
	if !dropped {
		epoch = k.first
	}
	switch {
	case k.epoch == (lifecycle.Epoch{}):
		return fmt.Errorf("nobody has yet been asked to remove network %d from port %s", network, at)
	case k.wanted[p]:
		return fmt.Errorf("port %s is to be in network %d", at, network)
	case k.problem != nil:
		return fmt.Errorf("the fabric can't be read: %w", k.problem)
	default:
		return k.seen.Clean(epoch, network, at)
	}
}

// Attached is what is known of a port that is to be in a network.
type Attached int

// What can be known of a port.
const (
	Unread Attached = iota // its place was not read, or can't be
	Absent                 // it was read, and is not in the network
	Present
)

// Attached returns whether a network was on a place when that was last read, and if not, why.
func (k *Keeper) Attached(network int, at string) (Attached, string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	why, unknown := k.seen.Unknown[at]
	switch {
	case k.here[place{network, at}]:
		return Present, ""
	case k.problem != nil:
		return Unread, fmt.Sprintf("the fabric can't be read: %v", k.problem)
	case k.here == nil:
		return Unread, "the fabric has not been read yet"
	case unknown:
		return Unread, fmt.Sprintf("port %s can't be read: %s", at, why)
	default:
		return Absent, fmt.Sprintf("port %s is not in its network yet", at)
	}
}

// Run carries out what is set until ctx ends. It is for one leadership; another one may follow when it has returned.
func (k *Keeper) Run(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		k.mu.Lock()
		epoch, networks := k.epoch, k.networks
		k.mu.Unlock()
		wait := auditEvery
		if epoch != (lifecycle.Epoch{}) {
			if k.bring(ctx, epoch, networks) {
				pause = firstPause
			} else {
				wait, pause = pause, min(2*pause, longestWait)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-k.told:
			pause = firstPause
		case <-timer.C:
		}
		timer.Stop()
	}
}

// bring applies a desired state unless it is in force and as it should be, and reads back. It reports whether all is as desired.
func (k *Keeper) bring(ctx context.Context, epoch lifecycle.Epoch, networks []Network) bool {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := k.site.Apply(ctx, epoch, networks)
	var seen Observation
	if err == nil {
		seen, err = k.site.Observe(ctx)
	}
	if err != nil && ctx.Err() == nil {
		k.log.WarnContext(ctx, "the fabric is not as it should be; retrying", "error", err)
	}
	var alarms []Alarm
	if governed := k.Governed(); governed != nil {
		alarms = governed.Alarms()
	}
	return k.take(epoch, seen, err, alarms)
}

// take notes what was read back.
func (k *Keeper) take(epoch lifecycle.Epoch, seen Observation, err error, governed []Alarm) (asDesired bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if epoch.Term != k.epoch.Term {
		return false // it was asked for by a former leader
	}
	if (err == nil) != (k.problem == nil) || err == nil && !reflect.DeepEqual(seen, k.seen) {
		signal(k.changed)
	}
	if err != nil && k.problem == nil {
		k.failing = time.Now()
	}
	k.problem = err
	if alarms := k.alarmsNow(governed); !k.brought || !slices.Equal(alarms, k.alarms) {
		k.alarms, k.brought = alarms, true
		signal(k.changed)
	}
	if err != nil {
		return false
	}
	k.seen, k.here = seen, placesOf(seen.Networks)
	for p, since := range k.left {
		if since.Accept(seen.Epoch) == nil {
			delete(k.left, p) // nothing older takes effect any more
		}
	}
	for p := range k.wanted {
		if !k.here[p] {
			return false
		}
	}
	return seen.Epoch == k.epoch && len(k.left) == 0
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
