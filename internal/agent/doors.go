package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

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
	problem string
}

// close ends all that comes through a member's doors.
func (d *doors) close() {
	for _, each := range d.open {
		each.close()
	}
	*d = doors{}
}

// mostThroughDoor bounds the connections through one door at a time.
const mostThroughDoor = 256

// door passes the connections of one port on to one cache.
type door struct {
	listener net.Listener
	dial     func(context.Context) (net.Conn, error)
	cancel   context.CancelFunc
	passing  sync.WaitGroup
	slots    chan struct{}
	// meter counts what is read through it. counted is called when a connection has ended, and so has its count.
	meter   *meter
	counted func(context.Context)
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
	ctx, cancel := context.WithCancel(ctx)
	d := &door{listener: listener, cancel: cancel, slots: make(chan struct{}, mostThroughDoor), dial: func(ctx context.Context) (net.Conn, error) {
		return a.cfg.Caches.Dial(ctx, claim.UID)
	}, meter: a.readings.of(claim.UID, m.id), counted: func(ctx context.Context) { a.post(ctx, func() {}) }}
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
				d.pass(ctx, conn)
			})
		default: // somebody in the member opens one after the other: that costs the node no more than these
			_ = conn.Close()
		}
	}
}

// pass carries a connection to the cache and back, until one side ends it. The kernel moves the bytes (splice(2)).
func (d *door) pass(ctx context.Context, inside net.Conn) {
	defer func() { _ = inside.Close() }()
	cache, err := d.dial(ctx)
	if err != nil {
		return // the reader's client tries again
	}
	defer func() { _ = cache.Close() }()
	stop := context.AfterFunc(ctx, func() { _, _ = inside.Close(), cache.Close() })
	defer stop()
	d.meter.opened()
	var back sync.WaitGroup
	var bytes int64
	var waited waits
	back.Go(func() { bytes = carry(inside, cache) })
	carryRequests(cache, inside, &waited)
	back.Wait()
	now := time.Now()
	waited.answered(lastReceived(cache, now))
	d.meter.ended(bytes, &waited, now)
	d.counted(ctx)
}

// carry copies until the source ends, and says so to the destination. What went wrong ends both. It returns how much came.
func carry(to, from net.Conn) (bytes int64) {
	bytes, err := io.Copy(to, from)
	if err != nil {
		_, _ = to.Close(), from.Close()
		return bytes
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	return bytes
}

// close ends the door and all that comes through it.
func (d *door) close() {
	_ = d.listener.Close()
	d.cancel()
	d.passing.Wait()
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
}
