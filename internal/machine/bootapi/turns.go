package bootapi

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"

	"github.com/nearmetal/nearmetal/internal/machine/boot"
)

// What one machine may ask for. A machine that boots has two or three requests open, and sends a few a second; each token that is exchanged
// costs the server a hash of a password and a write.
const (
	mostAtOnce        = 6
	requestsPerSecond = 20
	requestsAtFirst   = 60
	// manyAskers is how many addresses are kept before those at rest are first dropped.
	manyAskers = 1024
)

// turns bounds what each address may ask for, so that a machine that floods the server keeps no other waiting.
type turns struct {
	mu     sync.Mutex
	askers map[netip.Addr]*asker
	// many is at how many of them those at rest are dropped next.
	many int
}

type asker struct {
	open int
	pace *rate.Limiter
}

// begin tells whether a request of an address may be served now. If so, end is to be called after it.
func (t *turns) begin(from netip.Addr) (end func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.askers[from]
	if a == nil {
		t.forget()
		a = &asker{pace: rate.NewLimiter(requestsPerSecond, requestsAtFirst)}
		t.askers[from] = a
	}
	if a.open >= mostAtOnce || !a.pace.Allow() {
		return nil, false
	}
	a.open++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		a.open--
	}, true
}

// forget drops the addresses that may ask as much as a new one, each time that their number has doubled. The lock is held.
func (t *turns) forget() {
	if len(t.askers) < max(manyAskers, t.many) {
		return
	}
	for from, a := range t.askers {
		if a.open == 0 && a.pace.Tokens() >= requestsAtFirst {
			delete(t.askers, from)
		}
	}
	t.many = 2 * len(t.askers)
}

// inTurn serves each machine a bounded part of the time.
func inTurn(h http.Handler) http.Handler {
	t := &turns{askers: map[netip.Addr]*asker{}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, _ := netip.ParseAddrPort(r.RemoteAddr) // those without an address share their turns
		end, ok := t.begin(from.Addr().Unmap())
		if !ok {
			w.Header().Set("Content-Type", "application/problem+json")
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			_ = json.NewEncoder(w).Encode(boot.Problem{Status: http.StatusTooManyRequests, Title: http.StatusText(http.StatusTooManyRequests), Detail: "this machine asks too often; retry in a second"})
			return
		}
		defer end()
		h.ServeHTTP(w, r)
	})
}
