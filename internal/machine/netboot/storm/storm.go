// Package storm admits bulk transfers to an uplink, so that a thousand machines that boot at once all finish, in about the time the link
// needs for their bytes.
//
// Only some transfers run at a time; the others wait in order, which costs nothing but patience, while a thousand TCP connections in one
// queue lose packets, time out and starve each other. How many run is learned from what the link carries. Small answers are not its
// business: they go out at once. Start with Controller.
package storm

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Class is a kind of transfer. Both get their turns alike.
type Class int

// The classes.
const (
	// Load is a kernel or initrd: machines that have begun go first, so the first ones run early and all end no later.
	Load Class = iota
	// Read is a piece of a root, read by machines that run: in order of arrival, one client not before all others.
	Read
	classes
)

const (
	// readsPerClient bounds one client's pieces at once while others wait.
	readsPerClient = 2
	// loadsPerClient bounds one client's kernels and initrds at once, always: a loader fetches one after the other, and who takes many and
	// reads them slowly must not hold all turns.
	loadsPerClient = 4
	// crowd is how many at once are taken for a storm: from then on they must leave room in the link's queue, where DHCP and TFTP of other
	// machines wait too, and what those lose costs them seconds.
	crowd = 8
	// forgetAfter is how long a client counts as one that has begun.
	forgetAfter = 10 * time.Minute
	tick        = 500 * time.Millisecond
)

// Controller is safe for concurrent use.
type Controller struct {
	sent atomic.Int64

	mu      sync.Mutex
	gauge   gauge
	rate    int64 // bytes per second; 0: no bound but the link's
	active  map[*Transfer]bool
	running [classes]map[netip.Addr]int
	waiting [classes][]*Transfer
	turn    Class
	ranks   map[netip.Addr]rank
	next    uint64
	last    struct {
		sent int64
		at   time.Time
	}
}

// rank is a client's place in the order of beginning.
type rank struct {
	number uint64
	at     time.Time
}

// Transfer is one transfer, waiting or running.
type Transfer struct {
	controller *Controller
	client     netip.Addr
	class      Class
	rank       uint64
	socket     *socket
	admitted   chan struct{}
}

// New is a controller of an idle link.
func New() *Controller {
	return &Controller{
		gauge: gauge{limit: startLimit}, active: map[*Transfer]bool{}, running: [classes]map[netip.Addr]int{{}, {}}, ranks: map[netip.Addr]rank{},
	}
}

// SetRate bounds all transfers together in bytes per second; 0: by what the link carries.
func (c *Controller) SetRate(bytesPerSecond int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rate != bytesPerSecond {
		c.rate = bytesPerSecond
		c.pace()
	}
}

// Admit waits until a transfer may begin; the error is the context's. conn may be nil.
func (c *Controller) Admit(ctx context.Context, client netip.Addr, class Class, conn net.Conn) (*Transfer, error) {
	t := &Transfer{controller: c, client: client, class: class, socket: socketOf(conn), admitted: make(chan struct{})}
	c.mu.Lock()
	t.rank = c.rankOf(client, time.Now())
	c.enqueue(t)
	c.admit()
	c.mu.Unlock()
	select {
	case <-t.admitted:
		return t, nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.waiting[class], t); i >= 0 {
		c.waiting[class] = slices.Delete(c.waiting[class], i, i+1)
	} else {
		c.end(t) // it was admitted while its client gave up
	}
	return nil, ctx.Err()
}

// Sent counts bytes that went out.
func (t *Transfer) Sent(n int64) { t.controller.sent.Add(n) }

// Done ends the transfer and lets the next one begin.
func (t *Transfer) Done() {
	t.controller.mu.Lock()
	defer t.controller.mu.Unlock()
	t.controller.end(t)
}

func (c *Controller) end(t *Transfer) {
	if !c.active[t] {
		return
	}
	delete(c.active, t)
	running := c.running[t.class]
	if running[t.client]--; running[t.client] == 0 {
		delete(running, t.client)
	}
	if c.rate > 0 {
		t.socket.pace(0)
	}
	c.admit()
	c.pace()
}

// rankOf is the client's place: once it has begun it keeps it.
func (c *Controller) rankOf(client netip.Addr, now time.Time) uint64 {
	r, ok := c.ranks[client]
	if !ok || now.Sub(r.at) > forgetAfter {
		c.next++
		r.number = c.next
	}
	r.at = now
	c.ranks[client] = r
	return r.number
}

// enqueue puts a transfer where its rank belongs; pieces of roots go to the end.
func (c *Controller) enqueue(t *Transfer) {
	queue := c.waiting[t.class]
	at := len(queue)
	for t.class == Load && at > 0 && queue[at-1].rank > t.rank {
		at--
	}
	c.waiting[t.class] = slices.Insert(queue, at, t)
}

// admit lets as many begin as may run.
func (c *Controller) admit() {
	began := false
	for len(c.active) < c.gauge.limit {
		class := c.turn
		i := c.choose(class)
		if i < 0 {
			class = 1 - class
			i = c.choose(class)
		}
		if i < 0 {
			break
		}
		c.turn = 1 - class
		t := c.waiting[class][i]
		c.waiting[class] = slices.Delete(c.waiting[class], i, i+1)
		c.active[t] = true
		c.running[class][t.client]++
		close(t.admitted)
		began = true
	}
	if !began {
		return
	}
	if len(c.active) >= crowd {
		for t := range c.active {
			t.socket.shortenQueue()
		}
	}
	c.pace()
}

// choose is the index of the next of a class, -1 for none: the first whose client has not its share already, for pieces of roots else the
// first.
func (c *Controller) choose(class Class) int {
	share := [classes]int{Load: loadsPerClient, Read: readsPerClient}[class]
	for i, t := range c.waiting[class] {
		if c.running[class][t.client] < share {
			return i
		}
	}
	if class == Read && len(c.waiting[Read]) > 0 {
		return 0
	}
	return -1
}

// pace divides a given rate among the running ones; the kernel spaces their packets (SO_MAX_PACING_RATE).
func (c *Controller) pace() {
	if c.rate <= 0 || len(c.active) == 0 {
		return
	}
	each := max(c.rate/int64(len(c.active)), 1)
	for t := range c.active {
		t.socket.pace(each)
	}
}

// Run learns how many transfers the link bears, until the context ends.
func (c *Controller) Run(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			c.measure(now)
		}
	}
}

// measure takes one look at what the link carried since the last.
func (c *Controller) measure(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var again, out uint32
	for t := range c.active {
		a, o := t.socket.losses()
		again, out = again+a, out+o
	}
	sent := c.sent.Load()
	elapsed := now.Sub(c.last.at).Seconds()
	first := c.last.at.IsZero()
	carried := float64(sent-c.last.sent) / elapsed
	c.last.sent, c.last.at = sent, now
	if first || elapsed <= 0 {
		return
	}
	loss := 0.0
	if out > 0 {
		loss = float64(again) / float64(out)
	}
	c.gauge.adjust(carried, loss, len(c.waiting[Load])+len(c.waiting[Read]) > 0)
	c.admit()
	for client, r := range c.ranks {
		if now.Sub(r.at) > forgetAfter {
			delete(c.ranks, client)
		}
	}
}

// State is what the controller does now.
type State struct {
	// Running transfers of at most Limit at once, and those that wait.
	Running, Limit, Waiting int
	// BytesPerSecond is what the link carried lately.
	BytesPerSecond int64
}

// State tells what the controller does now.
func (c *Controller) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return State{
		Running: len(c.active), Limit: c.gauge.limit, Waiting: len(c.waiting[Load]) + len(c.waiting[Read]),
		BytesPerSecond: int64(c.gauge.carried),
	}
}
