package power

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"
)

// Gate is what every operation on a power switch goes through: one at a time for each BMC, few over all, and no order of a machine after a
// newer one was seen, however late it arrives. It may be used from many goroutines. Machines are known by UID, which is never used
// twice, so what a gate remembers of a machine that is gone does no harm and keeps late orders away.
type Gate struct {
	orders, observations chan struct{}

	mu      sync.Mutex
	newest  map[string]Fence                  // by UID
	running map[string]map[*underway]struct{} // by UID: what may have to be called off
	lines   map[string]*line                  // by address
}

// underway is an order that waits or is carried out.
type underway struct {
	fence  Fence
	cancel context.CancelCauseFunc
}

// line is where the operations on one BMC wait. It exists while there are some.
type line struct {
	turn  chan struct{} // holds one token while nobody has the BMC
	users int
	// orders wait or are carried out; poll calls off the poll that is, nil: there is none.
	orders int
	poll   context.CancelCauseFunc
}

// GateOptions bound a gate. Orders and observations are counted apart: a thousand BMCs that answer slowly must not keep an order waiting.
type GateOptions struct {
	// Orders and Observations are how many of each may go on at once over all BMCs; 0: 128 and 32.
	Orders, Observations int
}

// NewGate makes a gate that has seen no order.
func NewGate(o GateOptions) *Gate {
	if o.Orders <= 0 {
		o.Orders = 128
	}
	if o.Observations <= 0 {
		o.Observations = 32
	}
	return &Gate{
		orders: make(chan struct{}, o.Orders), observations: make(chan struct{}, o.Observations),
		newest: map[string]Fence{}, running: map[string]map[*underway]struct{}{}, lines: map[string]*line{},
	}
}

// Key is whose power an operation is about.
type Key struct {
	// UID is the machine's.
	UID string
	// Address is the BMC's, shared by all machines behind it. Machines without one, such as those woken by a packet, don't wait for each other.
	Address string
}

// KeyOf is the key of a machine's operations.
func KeyOf(uid string, t Target) Key {
	address := strings.ToLower(strings.TrimSuffix(t.Control.Address, "/"))
	if address == "" {
		address = "machine " + uid
	}
	return Key{UID: uid, Address: address}
}

// Order runs op when it is its turn, with a context that ends after the deadline, counted from its turn, or as soon as a newer order of the
// machine is seen. It returns ErrStale for an order older than the newest seen, at once or when a newer one comes while it waits or is
// carried out; several operations may belong to one fence. The next operation on the BMC begins when op has returned, not before.
func (g *Gate) Order(ctx context.Context, key Key, fence Fence, deadline time.Duration, op func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	leave, err := g.enter(key.UID, fence, cancel)
	if err != nil {
		return err
	}
	defer leave()
	defer g.first(key.Address)()
	return g.inTurn(ctx, key.Address, g.orders, deadline, op)
}

// Observe runs op when it is its turn. What it does must not change the power: it has no fence.
func (g *Gate) Observe(ctx context.Context, key Key, deadline time.Duration, op func(context.Context) error) error {
	return g.inTurn(ctx, key.Address, g.observations, deadline, op)
}

// Poll runs op when it is its turn, as Observe does, but gives way: it returns ErrYielded at once while an order for the BMC waits or is carried
// out, and when one comes while op runs, whose context then ends. One poll of a BMC goes on at a time; another returns ErrYielded.
func (g *Gate) Poll(ctx context.Context, key Key, deadline time.Duration, op func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l := g.join(key.Address)
	defer g.part(key.Address, l)
	g.mu.Lock()
	if l.orders > 0 || l.poll != nil {
		g.mu.Unlock()
		return ErrYielded
	}
	l.poll = cancel
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		l.poll = nil
		g.mu.Unlock()
	}()
	err := g.inTurn(ctx, key.Address, g.observations, deadline, op)
	if err != nil && errors.Is(context.Cause(ctx), ErrYielded) {
		return ErrYielded
	}
	return err
}

// first notes an order for a BMC, and calls off the poll there.
func (g *Gate) first(address string) (done func()) {
	l := g.join(address)
	g.mu.Lock()
	l.orders++
	if l.poll != nil {
		l.poll(ErrYielded)
	}
	g.mu.Unlock()
	return func() {
		g.mu.Lock()
		l.orders--
		g.mu.Unlock()
		g.part(address, l)
	}
}

// enter notes an order and calls off the older ones of its machine.
func (g *Gate) enter(uid string, fence Fence, cancel context.CancelCauseFunc) (leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if newest, ok := g.newest[uid]; ok && fence.Older(newest) {
		return nil, fmt.Errorf("the order of term %d, generation %d arrived after the order of term %d, generation %d: %w",
			fence.Term, fence.Generation, newest.Term, newest.Generation, ErrStale)
	}
	g.newest[uid] = fence
	for other := range g.running[uid] {
		if other.fence.Older(fence) {
			other.cancel(ErrStale)
		}
	}
	if g.running[uid] == nil {
		g.running[uid] = map[*underway]struct{}{}
	}
	u := &underway{fence: fence, cancel: cancel}
	g.running[uid][u] = struct{}{}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.running[uid], u)
		if len(g.running[uid]) == 0 {
			delete(g.running, uid)
		}
	}, nil
}

// inTurn waits for the BMC first and for one of the slots then: those that wait for a slow BMC take no slot from others.
func (g *Gate) inTurn(ctx context.Context, address string, slots chan struct{}, deadline time.Duration, op func(context.Context) error) error {
	l := g.join(address)
	defer g.part(address, l)
	select {
	case <-l.turn:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { l.turn <- struct{}{} }()
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-slots }()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	limited, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	err := op(limited)
	if err != nil && errors.Is(context.Cause(ctx), ErrStale) {
		return ErrStale
	}
	return err
}

func (g *Gate) join(address string) *line {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.lines[address]
	if l == nil {
		l = &line{turn: make(chan struct{}, 1)}
		l.turn <- struct{}{}
		g.lines[address] = l
	}
	l.users++
	return l
}

func (g *Gate) part(address string, l *line) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(g.lines, address)
	}
}

// Fences are the newest order seen of each machine, by UID.
func (g *Gate) Fences() map[string]Fence {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.newest)
}
