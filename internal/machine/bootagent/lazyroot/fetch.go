package lazyroot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
)

const (
	// maxPeerFaults is how often a peer may fail before it is no longer asked.
	maxPeerFaults = 3
	// maxWrong is how often the server may give wrong content before the image is given up.
	maxWrong = 4
)

// source is where blobs come from.
type source struct {
	url    string
	peer   bool
	faults int
	// idle ends a request that brings nothing; 0: as configured. A neighbour has one.
	idle time.Duration
}

// sources chooses among peers and the server.
type sources struct {
	mu     sync.Mutex
	server *source
	peers  []*source
}

func newSources(server string, peers []string) *sources {
	s := &sources{server: &source{url: server}}
	for _, url := range peers {
		if !strings.HasSuffix(url, "/") {
			url += "/"
		}
		s.peers = append(s.peers, &source{url: url, peer: true})
	}
	return s
}

// pick returns a peer that still answers, chosen by the number so that neighbours spread, else the server.
func (s *sources) pick(number int) *source {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.peers) == 0 {
		return s.server
	}
	return s.peers[number%len(s.peers)]
}

// fault notes that a source failed; wrong content ends a peer at once.
func (s *sources) fault(from *source, wrong bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from.faults++
	if !from.peer || (!wrong && from.faults < maxPeerFaults) {
		return
	}
	for i, p := range s.peers {
		if p == from {
			s.peers = append(s.peers[:i:i], s.peers[i+1:]...)
			return
		}
	}
}

// fault notes that a source failed.
func (m *Image) fault(from *source, wrong bool) {
	m.mu.Lock()
	known := m.neighbourFailed(from, wrong)
	m.mu.Unlock()
	if !known {
		m.sources.fault(from, wrong)
	}
}

// fetch asks a source for the chunks from to before end and takes them as they come. What did not come is not coming any more afterwards;
// whoever waits for it asks again.
func (m *Image) fetch(from, end int, src *source, r *run, limit *pace) {
	got, err := m.request(from, end, src, r, limit)
	wrong := errors.Is(err, image.ErrDigest)
	if err != nil && m.ctx.Err() == nil && !errors.Is(err, errLate) {
		m.fault(src, wrong)
		m.cfg.Log.Warn("a piece of the root can't be read", "from", src.url, "chunk", from+got, "error", err)
		if !src.peer {
			m.serverFailed(wrong, from+got, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !src.peer {
		m.away = err != nil && !wrong
	}
	for c := from + got; c < end; c++ {
		close(m.coming[c].ended)
		delete(m.coming, c)
	}
}

// serverFailed waits before the server is asked again, or gives the image up when its content is wrong.
func (m *Image) serverFailed(wrong bool, chunk int, err error) {
	if wrong {
		m.mu.Lock()
		m.badFrom++
		giveUp := m.badFrom >= maxWrong
		m.mu.Unlock()
		if giveUp {
			m.fail(fmt.Errorf("%w: chunk %d was corrupt %d times: %w", ErrWrongContent, chunk, maxWrong, err))
			return
		}
	}
	select {
	case <-time.After(m.cfg.RetryPause):
	case <-m.ctx.Done():
	}
}

// fail gives the image up.
func (m *Image) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.err = err
		close(m.failed)
	}
}

// errLate: a read waits for what a neighbour is slow to give. It is no fault: others may read from it as well.
var errLate = errors.New("a read is waiting for the chunk")

// hasten ends a neighbour's request once a read has waited for it for a while: the server gives what is read at once, if it is there.
func (m *Image) hasten(ctx context.Context, hurry <-chan struct{}, end context.CancelCauseFunc) {
	select {
	case <-hurry:
	case <-ctx.Done():
		return
	}
	select {
	case <-time.After(m.cfg.AskPause):
		m.mu.Lock()
		defer m.mu.Unlock()
		if !m.away {
			end(errLate)
		}
	case <-ctx.Done():
	}
}

// request returns how many chunks were taken.
func (m *Image) request(from, end int, src *source, r *run, limit *pace) (int, error) {
	first, _ := m.cfg.Chunks.Span(from)
	after := min(int64(end)*image.ChunkBytes, m.cfg.Root.SizeBytes)
	ctx, cancel := context.WithCancelCause(m.ctx)
	defer cancel(nil)
	patience, budget := cmp.Or(src.idle, m.cfg.IdleTimeout), time.Duration(math.MaxInt64)
	idle := time.AfterFunc(patience, func() { cancel(nil) })
	defer idle.Stop()
	if src.idle > 0 {
		budget = neighbourRun * src.idle
		go m.hasten(ctx, r.hurry, cancel)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, src.url+m.cfg.Root.Digest.Hex(), nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", first, after-1))
	resp, err := m.cfg.Client.Do(req)
	if err != nil {
		return 0, late(ctx, err)
	}
	defer resp.Body.Close()
	want := fmt.Sprintf("bytes %d-%d/%d", first, after-1, m.cfg.Root.SizeBytes)
	if got := resp.Header.Get("Content-Range"); resp.StatusCode != http.StatusPartialContent || got != want {
		return 0, fmt.Errorf("the answer to %s was %s %q", want, resp.Status, got)
	}
	buffer := make([]byte, image.ChunkBytes)
	for c := from; c < end; c++ {
		idle.Stop()
		if err := m.yield(r, limit); err != nil {
			return c - from, err
		}
		begun := time.Now()
		idle.Reset(min(patience, budget))
		_, length := m.cfg.Chunks.Span(c)
		data := buffer[:length]
		if _, err := io.ReadFull(resp.Body, data); err != nil {
			return c - from, late(ctx, err)
		}
		budget -= time.Since(begun)
		if err := m.take(c, data, src.peer); err != nil {
			return c - from, err
		}
	}
	return end - from, nil
}

// late is the error of a request: errLate when that is why it was ended.
func late(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errLate) {
		return errLate
	}
	return err
}

// take keeps a chunk if it is what the chunk list says.
func (m *Image) take(c int, data []byte, fromPeer bool) error {
	if err := m.cfg.Chunks.Verify(c, data); err != nil {
		return err
	}
	offset, _ := m.cfg.Chunks.Span(c)
	if _, err := m.cfg.Backing.WriteAt(data, offset); err != nil {
		err = fmt.Errorf("the root can't be stored here: %w", err)
		m.fail(err)
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.present[c] = true
	m.held++
	m.keep(c, len(data))
	if fromPeer {
		m.peerBytes += int64(len(data))
	}
	close(m.coming[c].ended)
	delete(m.coming, c)
	if m.held == m.chunks {
		close(m.whole)
	}
	return nil
}

// FetchBlob reads a whole small blob, from peers first if any, and verifies it. limit bounds its size. While nobody can be reached (a cable is
// out, the server starts anew) all are asked again, until ctx ends; what somebody answers is final.
func FetchBlob(ctx context.Context, client *http.Client, urls []string, blob image.Blob, limit int64) ([]byte, error) {
	if blob.SizeBytes < 0 || blob.SizeBytes > limit {
		return nil, fmt.Errorf("blob %s has %d bytes, more than the %d allowed", blob.Digest, blob.SizeBytes, limit)
	}
	for try := 0; ; try++ {
		var errs []error
		again := true
		for _, url := range urls {
			data, err := fetchBlob(ctx, client, url+blob.Digest.Hex(), blob)
			if err == nil {
				return data, nil
			}
			again = again && Unreached(err)
			errs = append(errs, fmt.Errorf("%s: %w", url, err))
		}
		err := fmt.Errorf("blob %s: %w", blob.Digest, errors.Join(errs...))
		if !again {
			return nil, err
		}
		select {
		case <-time.After(min(time.Second<<min(try, 3), 5*time.Second)):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// Unreached tells whether a transfer failed because of the way there: nobody answered, it broke off, or the server can't right now.
func Unreached(err error) bool {
	var transfer *url.Error
	var network net.Error
	var status *StatusError
	return errors.As(err, &transfer) || errors.As(err, &network) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.As(err, &status) && status.Code >= http.StatusInternalServerError
}

// StatusError is an answer other than OK (RFC 9110, section 15).
type StatusError struct {
	Code int
	Text string
}

func (e *StatusError) Error() string { return "the answer was " + e.Text }

func fetchBlob(ctx context.Context, client *http.Client, url string, blob image.Blob) ([]byte, error) {
	data, err := get(ctx, client, url, blob.SizeBytes)
	if err != nil {
		return nil, err
	}
	if got := image.DigestOf(data); got != blob.Digest {
		return nil, fmt.Errorf("%w: it is %s", image.ErrDigest, got)
	}
	return data, nil
}

// get reads so many bytes.
func get(ctx context.Context, client *http.Client, url string, size int64) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, &StatusError{resp.StatusCode, resp.Status}
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(resp.Body, data); err != nil {
		return nil, err
	}
	return data, nil
}
