package dhcp

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
)

const (
	// leaseTime is told to all clients. Nothing depends on it for known machines, whose addresses don't end; for strangers it bounds how
	// long an address that nobody uses any more is taken.
	leaseTime = time.Hour
	// quarantineTime is how long an address is not given after a client found somebody else on it (RFC 2131, section 4.3.3).
	quarantineTime = 10 * time.Minute
	// offerTime is how long an address stays with a client that never asked for what it was offered, once there are no others.
	offerTime = time.Minute
)

// Pool is the strangers' range: who has which address until when. Not safe for concurrent use.
type Pool struct {
	within  netboot.Range
	leases  map[string]*held // by MAC
	holders map[netip.Addr]string
	refused map[netip.Addr]time.Time // in quarantine until then
	next    int                      // where the search goes on
	// fullUntil saves searching a full range again and again.
	fullUntil time.Time
}

type held struct {
	api.Lease
	// asked: the client has requested it; one only offered is given to others first. After a restart all count as requested.
	asked bool
	since time.Time
}

// ErrExhausted: the strangers' range has no address left.
var ErrExhausted = fmt.Errorf("no address is left")

// NewPool is a pool with those leases; leases out of the range are not taken over.
func NewPool(within netboot.Range, leases []api.Lease) *Pool {
	p := &Pool{
		within: within, leases: map[string]*held{}, holders: map[netip.Addr]string{}, refused: map[netip.Addr]time.Time{},
	}
	for _, l := range leases {
		// Of two on one address the later one is true: it was given when the other had expired.
		other := p.leases[p.holders[l.Address]]
		if within.Contains(l.Address) && (other == nil || other.ExpiresAt.Before(l.ExpiresAt)) {
			p.Put(l, true, time.Time{})
		}
	}
	return p
}

// Of is the lease of a MAC, if it has not expired.
func (p *Pool) Of(mac string, now time.Time) (api.Lease, bool) {
	h := p.leases[mac]
	if h == nil || !now.Before(h.ExpiresAt) {
		return api.Lease{}, false
	}
	return h.Lease, true
}

// Choose picks the address for a MAC: the one it has or had, else the one it asks for, else the next one that is free. It takes nothing.
// The error wraps ErrExhausted.
func (p *Pool) Choose(mac string, wanted netip.Addr, now time.Time) (api.Lease, error) {
	if h := p.leases[mac]; h != nil && p.free(h.Address, mac, now) {
		wanted = h.Address
	}
	if p.within.Contains(wanted) && p.free(wanted, mac, now) {
		return p.lease(mac, wanted, now), nil
	}
	if now.Before(p.fullUntil) {
		return api.Lease{}, p.exhausted()
	}
	for i := range p.within.Size() {
		at := (p.next + i) % p.within.Size()
		if a := p.within.At(at); p.free(a, mac, now) {
			p.next = at + 1
			return p.lease(mac, a, now), nil
		}
	}
	for a, holder := range p.holders {
		if h := p.leases[holder]; !h.asked && now.Sub(h.since) > offerTime && !now.Before(p.refused[a]) {
			return p.lease(mac, a, now), nil
		}
	}
	p.fullUntil = now.Add(time.Second)
	return api.Lease{}, p.exhausted()
}

func (p *Pool) exhausted() error {
	return fmt.Errorf("%w in the strangers' range %s; widen the range, or enroll machines", ErrExhausted, p.within)
}

func (p *Pool) lease(mac string, address netip.Addr, now time.Time) api.Lease {
	return api.Lease{MAC: mac, Address: address, ExpiresAt: now.Add(leaseTime)}
}

func (p *Pool) free(a netip.Addr, mac string, now time.Time) bool {
	if now.Before(p.refused[a]) {
		return false
	}
	holder, taken := p.holders[a]
	return !taken || holder == mac || !now.Before(p.leases[holder].ExpiresAt)
}

// Put takes a lease; one that another MAC had on the address ends.
func (p *Pool) Put(l api.Lease, asked bool, now time.Time) {
	if holder, ok := p.holders[l.Address]; ok && holder != l.MAC {
		delete(p.leases, holder)
	}
	if h := p.leases[l.MAC]; h != nil && h.Address != l.Address {
		delete(p.holders, h.Address)
	}
	p.leases[l.MAC] = &held{Lease: l, asked: asked, since: now}
	p.holders[l.Address] = l.MAC
}

// Remove ends the lease of a MAC.
func (p *Pool) Remove(mac string) {
	if h := p.leases[mac]; h != nil {
		delete(p.holders, h.Address)
		delete(p.leases, mac)
		p.fullUntil = time.Time{}
	}
}

// Holder is the MAC that has, or had last, an address.
func (p *Pool) Holder(a netip.Addr) string { return p.holders[a] }

// Quarantine gives an address to nobody until then.
func (p *Pool) Quarantine(a netip.Addr, until, now time.Time) {
	for other, end := range p.refused {
		if !now.Before(end) {
			delete(p.refused, other)
		}
	}
	if p.within.Contains(a) {
		p.refused[a] = until
	}
}

// asked takes note that a client has requested the address it was offered.
func (p *Pool) asked(mac string) {
	if h := p.leases[mac]; h != nil {
		h.asked = true
	}
}
