package http

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// meter counts what is sent, piece by piece, and gives each piece its time. It keeps ReadFrom, by which a file goes out without
// passing through this process.
type meter struct {
	http.ResponseWriter
	control *http.ResponseController
	sent    func(int64)
	total   int64
}

// Unwrap is for http.ResponseController.
func (m *meter) Unwrap() http.ResponseWriter { return m.ResponseWriter }

func (m *meter) count(n int64) {
	m.total += n
	m.sent(n)
}

func (m *meter) Write(p []byte) (int, error) {
	_ = m.control.SetWriteDeadline(time.Now().Add(stallTimeout))
	n, err := m.ResponseWriter.Write(p)
	m.count(int64(n))
	return n, err
}

// ReadFrom sends the content in pieces.
func (m *meter) ReadFrom(from io.Reader) (int64, error) {
	inner, ok := m.ResponseWriter.(io.ReaderFrom)
	limited, ok2 := from.(*io.LimitedReader)
	if !ok || !ok2 {
		return io.Copy(struct{ io.Writer }{m}, from)
	}
	total := int64(0)
	for limited.N > 0 {
		_ = m.control.SetWriteDeadline(time.Now().Add(stallTimeout))
		// Not the reader itself: it must be a LimitedReader of a file for the kernel to send it.
		n, err := inner.ReadFrom(&io.LimitedReader{R: limited.R, N: min(limited.N, piece)})
		total += n
		limited.N -= n
		m.count(n)
		if err != nil || n == 0 {
			return total, err
		}
	}
	return total, nil
}

// limiter lets the same words through once a minute; its memory is bounded.
type limiter struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func (l *limiter) tell(words string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.last[words]; ok && now.Sub(at) < time.Minute {
		return false
	}
	if len(l.last) >= 1024 {
		for w, at := range l.last {
			if now.Sub(at) >= time.Minute {
				delete(l.last, w)
			}
		}
		if len(l.last) >= 1024 {
			return false
		}
	}
	l.last[words] = now
	return true
}
