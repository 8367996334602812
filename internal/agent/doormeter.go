package agent

import (
	"context"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/dataset"
)

// mostReadings bounds the members whose readings of a dataset are reported, those that are gone among them.
const mostReadings = 64

// readings are what members have read through the doors of this node, by the UID of the dataset. They outlive their members: what one has read is known when
// it has ended.
type readings map[string][]*meter

// of is the meter of a member at a dataset.
func (r readings) of(uid, member string) *meter {
	for _, m := range r[uid] {
		if m.read.Member == member {
			return m
		}
	}
	m := &meter{read: dataset.Reading{Member: member}}
	all := append(r[uid], m)
	if len(all) > mostReadings {
		at := max(0, slices.IndexFunc(all, func(m *meter) bool { return m.now().Open == 0 })) // the oldest that has ended
		all = slices.Delete(all, at, at+1)
	}
	r[uid] = all
	return m
}

// add adds readings to the states of caches. What was read of a dataset that the node no longer caches is forgotten.
func (r readings) add(states []dataset.CacheState) {
	maps.DeleteFunc(r, func(uid string, all []*meter) bool {
		known := slices.ContainsFunc(states, func(s dataset.CacheState) bool { return s.UID == uid })
		return !known && !slices.ContainsFunc(all, func(m *meter) bool { return m.now().Open > 0 })
	})
	for i := range states {
		states[i].Readings = nil
		for _, m := range r[states[i].UID] {
			if now := m.now(); now.Open > 0 || now.Bytes > 0 {
				states[i].Readings = append(states[i].Readings, now)
			}
		}
	}
}

// meter counts what one member reads of one dataset.
type meter struct {
	mu   sync.Mutex
	read dataset.Reading
}

func (m *meter) now() dataset.Reading {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.read
}

func (m *meter) opened() {
	m.mu.Lock()
	m.read.Open++
	m.mu.Unlock()
}

// ended adds a connection that has ended.
func (m *meter) ended(bytes int64, w *waits, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.read.Open--
	m.read.Bytes += bytes
	m.read.Waits += w.count
	m.read.WaitedSeconds += w.total.Seconds()
	m.read.At = at
}

// waits are the times in which the reader of a connection waits for answers: from a request to the last bytes that came before the next one. Nobody sees those
// bytes pass, since the kernel moves them: it says when they came.
type waits struct {
	since time.Time
	count int64
	total time.Duration
}

// asked notes that the reader asks for something now, and that the last bytes came to it at a time; zero: nobody knows.
func (w *waits) asked(now, last time.Time) {
	if w.answered(last) || w.since.IsZero() {
		w.since = now
	}
}

// answered ends a wait if bytes came since it began.
func (w *waits) answered(last time.Time) bool {
	if w.since.IsZero() || !last.After(w.since) {
		return false
	}
	w.count++
	w.total += last.Sub(w.since)
	w.since = time.Time{}
	return true
}

// lastReceived is when bytes came last on a connection, by the kernel (tcp(7), TCP_INFO), to a few milliseconds; zero: it is none of TCP.
func lastReceived(conn net.Conn, now time.Time) time.Time {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return time.Time{}
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return time.Time{}
	}
	var info *unix.TCPInfo
	if raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }) != nil || err != nil {
		return time.Time{}
	}
	return now.Add(-time.Duration(info.Last_data_recv) * time.Millisecond)
}

// requestBytes is how much of what a reader asks is passed on at once.
const requestBytes = 32 << 10

// carryRequests copies what a reader asks to its cache until the reader ends, and notes each time. Requests are small; the answers are what the kernel moves.
func carryRequests(cache, inside net.Conn, w *waits) {
	buffer := make([]byte, requestBytes)
	for {
		n, err := inside.Read(buffer)
		if n > 0 {
			now := time.Now()
			w.asked(now, lastReceived(cache, now))
			if _, failed := cache.Write(buffer[:n]); failed != nil {
				_, _ = cache.Close(), inside.Close()
				return
			}
		}
		if err != nil {
			break
		}
	}
	if half, ok := cache.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// pass carries a connection to the cache and back, until one side ends it, and counts it.
func (m *meter) pass(ctx context.Context, inside net.Conn, dial func(context.Context) (net.Conn, error)) error {
	defer func() { _ = inside.Close() }()
	cache, err := dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = cache.Close() }()
	stop := context.AfterFunc(ctx, func() { _, _ = inside.Close(), cache.Close() })
	defer stop()
	m.opened()
	var back sync.WaitGroup
	var bytes int64
	var waited waits
	back.Go(func() { bytes = carryAnswers(inside, cache) })
	carryRequests(cache, inside, &waited)
	back.Wait()
	now := time.Now()
	waited.answered(lastReceived(cache, now))
	m.ended(bytes, &waited, now)
	return nil
}

// carryAnswers copies until the cache ends, and says so to the reader. The kernel moves the bytes (splice(2)). It returns how much came.
func carryAnswers(inside, cache net.Conn) (bytes int64) {
	bytes, err := io.Copy(inside, cache)
	if err != nil {
		_, _ = inside.Close(), cache.Close()
		return bytes
	}
	if half, ok := inside.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	return bytes
}
