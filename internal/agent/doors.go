package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// Caches keeps the node's caches of datasets. *cache.Store implements it.
type Caches interface {
	// Run starts what is wanted, and ends what is not, until ctx ends.
	Run(ctx context.Context)
	// Want takes all that the leader wants to be cached here.
	Want(all []dataset.CacheOrder)
	States() []dataset.CacheState
	// Ready reports whether a dataset can be read through its cache, and if it is to be preloaded, whether all of it is there; and if not, why.
	Ready(uid string, preloaded bool) (ok bool, why string)
	// Serve has the cache of a dataset serve a connection until that ends, the cache does, or ctx does. The connection is closed then, by the cache, too.
	Serve(ctx context.Context, uid string, conn net.Conn) error
	// Dial connects to the cache of a dataset.
	Dial(ctx context.Context, uid string) (net.Conn, error)
}

// cacheReady reports whether a member that claims a dataset otherwise than as a copy can start.
func (a *Agent) cacheReady(claim dataset.Claim) (ok bool, why string) {
	switch {
	case claim.Port == 0: // it is read from its sources
		return true, ""
	case a.cfg.Caches == nil:
		return false, "can't be cached: this node's agent keeps no caches"
	default:
		return a.cfg.Caches.Ready(claim.UID, claim.Way == api.DatasetPreloaded)
	}
}

// doors are where a member reaches the caches of its datasets: ports of its own loopback, which nobody else reaches. Who comes in at one reaches the cache of
// that dataset, and no other.
type doors struct {
	open    []*door
	closed  []*door // connections may still be ending
	problem string
}

// close ends all that comes through a member's doors. It does not wait for that: see gone.
func (d *doors) close() {
	for _, each := range d.open {
		each.close()
	}
	*d = doors{closed: append(d.closed, d.open...)}
}

// gone returns what waits until nothing comes through the closed doors any more.
func (d *doors) gone() (wait func()) {
	all := d.closed
	d.closed = nil
	return func() {
		for _, each := range all {
			each.passing.Wait()
		}
	}
}

// mostThroughDoor bounds the connections through one door at a time.
const mostThroughDoor = 256

// door hands the connections of one port to one cache.
type door struct {
	listener net.Listener
	hand     func(context.Context, net.Conn) error
	cancel   context.CancelFunc
	log      *slog.Logger
	passing  sync.WaitGroup
	slots    chan struct{}
}

// openDoors opens the doors of a member that runs, and closes those of one that does not. One that is paused keeps what it has.
func (a *Agent) openDoors(ctx context.Context, m *memberState) {
	switch {
	case m.busy: // what is under way may be its end, which has closed them
		return
	case !alive(m.state) || m.want == nil || m.want.Release || m.part():
		m.doors.close()
		return
	case m.state != driver.StateRunning || len(m.doors.open) > 0 || a.cfg.Caches == nil:
		return
	}
	m.doors.problem = ""
	for _, claim := range m.want.Datasets {
		if claim.Port == 0 {
			continue
		}
		d, err := a.openDoor(ctx, m, claim)
		if err != nil {
			m.doors.close()
			m.doors.problem = fmt.Sprintf("dataset %q can't be reached through its cache: %v", claim.Name, err)
			a.wakeAt(a.cfg.Clock.Now().Add(lookPause))
			return
		}
		m.doors.open = append(m.doors.open, d)
	}
}

func (a *Agent) openDoor(ctx context.Context, m *memberState, claim dataset.Claim) (*door, error) {
	inside, ok := m.driver.(driver.LoopbackListener)
	if !ok {
		return nil, errors.New("members of this stack have no loopback that their node can listen at")
	}
	listener, err := inside.ListenInside(ctx, m.id, claim.Port)
	if err != nil {
		return nil, err
	}
	hand := func(ctx context.Context, conn net.Conn) error { return a.cfg.Caches.Serve(ctx, claim.UID, conn) }
	if claim.Metered {
		meter := a.readings.of(claim.UID, m.id)
		hand = func(ctx context.Context, conn net.Conn) error {
			defer a.post(ctx, func() {}) // the leader gets the new count now
			return meter.pass(ctx, conn, func(ctx context.Context) (net.Conn, error) { return a.cfg.Caches.Dial(ctx, claim.UID) })
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	d := &door{listener: listener, log: a.cfg.Log, cancel: cancel, slots: make(chan struct{}, mostThroughDoor), hand: hand}
	d.passing.Go(func() { d.serve(ctx) })
	return d, nil
}

// serve takes connections until the door is closed.
func (d *door) serve(ctx context.Context) {
	for {
		conn, err := d.listener.Accept()
		if err != nil {
			return
		}
		select {
		case d.slots <- struct{}{}:
			d.passing.Go(func() {
				defer func() { <-d.slots }()
				if err := d.hand(ctx, conn); err != nil { // the reader's client tries again
					d.log.DebugContext(ctx, "a member's connection to a cache has ended", "error", err)
				}
			})
		default: // somebody in the member opens one after the other: that costs the node no more than these
			_ = conn.Close()
		}
	}
}

// close ends the door and all that comes through it, which may take some time.
func (d *door) close() {
	_ = d.listener.Close()
	d.cancel()
}

func (a *Agent) observedCaches() []dataset.CacheState {
	if a.cfg.Caches == nil {
		return nil
	}
	states := a.cfg.Caches.States()
	a.readings.add(states)
	return states
}

// cacheTrouble is what is wrong with the caches that a member reads through, in words; "" for nothing.
func (a *Agent) cacheTrouble(m *memberState, states []dataset.CacheState) string {
	if m.want == nil || len(m.doors.open) == 0 {
		return m.doors.problem
	}
	for _, claim := range m.want.Datasets {
		for i := range states {
			if s := &states[i]; claim.Port != 0 && s.UID == claim.UID && s.Message != "" {
				return fmt.Sprintf("dataset %q: %s", claim.Name, s.Message)
			}
		}
	}
	return ""
}

// closeDoors ends what comes through all doors, when the agent ends.
func (a *Agent) closeDoors() {
	for _, m := range a.members {
		m.doors.close()
	}
	for _, m := range a.members {
		m.doors.gone()()
	}
}
