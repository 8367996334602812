package transfer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"sync"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/internal/dataset"
)

// Passage is what came from one source without a break, and when.
type Passage struct {
	Source       string
	Bytes        int64
	Began, Ended time.Time
	// Streams are how many connections could send at once.
	Streams int
	// RoundTrip is the shortest time in which a connection was made; 0: none was, or nobody looked.
	RoundTrip time.Duration
}

// pass fetches what is missing from one source, and notes how that went.
func (t *transfer) pass(ctx context.Context, source string) error {
	before, began := t.part.held(), time.Now()
	t.trips.clear()
	err := t.fill(ctx, source)
	if came := t.part.held() - before; came > 0 {
		t.passages = append(t.passages, Passage{
			Source: source, Bytes: came, Began: began, Ended: time.Now(), Streams: t.cfg.Streams, RoundTrip: t.trips.shortest(),
		})
	}
	return err
}

// trips keeps the shortest round trip of several.
type trips struct {
	mu   sync.Mutex
	best time.Duration
}

func (t *trips) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.best = 0
}

func (t *trips) note(took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.best == 0 || took < t.best {
		t.best = took
	}
}

func (t *trips) shortest() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.best
}

// traced is a context in which the connections of an HTTP client are timed: TCP's handshake takes one round trip.
func (t *trips) traced(ctx context.Context) context.Context {
	var mu sync.Mutex
	began := map[string]time.Time{}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		ConnectStart: func(_, address string) {
			mu.Lock()
			defer mu.Unlock()
			began[address] = time.Now()
		},
		ConnectDone: func(_, address string, err error) {
			mu.Lock()
			defer mu.Unlock()
			if at, known := began[address]; known && err == nil {
				t.note(time.Since(at))
			}
		},
	})
}

// probes are how many connections tell a distance: the first one may wait for a neighbor to be found.
const probes = 2

// RoundTrip connects to the server of a URL, and returns the shortest time that this took. Nothing is sent. An address that must not be asked is an error.
func (f *Fetcher) RoundTrip(ctx context.Context, source string) (time.Duration, error) {
	u, err := url.Parse(dataset.ServerOf(source))
	if err != nil || u.Host == "" {
		return 0, fmt.Errorf("%q names no server", source)
	}
	addresses, err := f.allowed(ctx, u.Hostname())
	if err != nil {
		return 0, err
	}
	var best trips
	dialer := &net.Dialer{Timeout: dialTime, Control: func(_, address string, _ syscall.RawConn) error { return f.mayAsk(address) }}
	for _, a := range addresses {
		for range probes {
			began := time.Now()
			conn, failed := dialer.DialContext(ctx, "tcp", net.JoinHostPort(a.String(), u.Port()))
			if failed != nil {
				err = errors.Join(err, failed)
				break
			}
			best.note(time.Since(began))
			_ = conn.Close()
		}
		if best.shortest() > 0 {
			return best.shortest(), nil
		}
	}
	return 0, err
}

// mayAsk returns why an address with a port must not be asked.
func (f *Fetcher) mayAsk(address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	return f.cfg.Allow(at.Addr())
}
