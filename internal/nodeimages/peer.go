package nodeimages

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
)

// PeerPath is the path of a PeerServer below which blobs are by their digits.
const PeerPath = "/images/"

// headerTimeout bounds how long the header of a request may take, or a body that nobody asked for.
const headerTimeout = 5 * time.Second

// PeerConfig bounds what a node spends on others.
type PeerConfig struct {
	// Requests is how many are served at once, Connections how many may be open; others are told to come again. 0: 64 and 256.
	Requests, Connections int
	// BytesPerSecond bounds what is sent in all; 0: no bound.
	BytesPerSecond int64
}

// PeerServer serves the images of a store to other nodes over plain HTTP: content is named by its digest, and who reads verifies it.
//
// GET HEX, with one range or none, answers a blob that is whole, or a range of a root that is held already; GET HEX/held answers the
// bitmap of a root's chunks held: bit i%8 of byte i/8 is chunk i. What is not held is 404; 503 says that there is too much to do.
type PeerServer struct {
	store  *Store
	cfg    PeerConfig
	slots  chan struct{}
	pacer  pacer
	listen net.Listener
	server *http.Server
}

// NewPeerServer makes a server on a listener; Serve serves.
func NewPeerServer(store *Store, listen net.Listener, cfg PeerConfig) *PeerServer {
	if cfg.Requests == 0 {
		cfg.Requests = 64
	}
	if cfg.Connections == 0 {
		cfg.Connections = 256
	}
	p := &PeerServer{store: store, cfg: cfg, slots: make(chan struct{}, cfg.Requests), pacer: pacer{rate: cfg.BytesPerSecond}}
	p.listen = &boundedListener{Listener: listen, slots: make(chan struct{}, cfg.Connections)}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: headerTimeout, WriteTimeout: 2 * time.Minute, IdleTimeout: 30 * time.Second, MaxHeaderBytes: 8 << 10}
	return p
}

// URL is where others find the blobs.
func (p *PeerServer) URL() string { return "http://" + p.listen.Addr().String() + PeerPath }

// Serve serves until ctx ends.
func (p *PeerServer) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = p.server.Close() })
	defer stop()
	if err := p.server.Serve(p.listen); ctx.Err() == nil {
		return fmt.Errorf("serve images to other nodes: %w", err)
	}
	return nil
}

// ServeHTTP answers one request.
func (p *PeerServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 { // nobody reads it, but the server waits for it before it answers
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(headerTimeout))
	}
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	default:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests at once", http.StatusServiceUnavailable)
		return
	}
	name, below := strings.CutPrefix(r.URL.Path, PeerPath)
	name, held := strings.CutSuffix(name, "/held")
	digest := image.Digest("sha256:" + name)
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "GET and HEAD are served", http.StatusMethodNotAllowed)
	case !below || digest.Check() != nil:
		http.NotFound(w, r)
	case held:
		p.bitmap(w, r, digest)
	default:
		p.blob(w, r, digest)
	}
}

// blob sends a whole blob, or a range of a partial one.
func (p *PeerServer) blob(w http.ResponseWriter, r *http.Request, d image.Digest) {
	s := p.store
	s.mu.Lock()
	part := s.partial[d]
	s.mu.Unlock()
	path := s.blob(d)
	if part != nil && !exists(path) {
		offset, length, ok := parseRange(r.Header.Get("Range"), part.root.SizeBytes)
		if !ok || !part.holds(offset, length) {
			http.Error(w, "not held here yet", http.StatusNotFound)
			return
		}
		path = part.path
	}
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		f, err = s.openFile(d)
	}
	if os.IsNotExist(err) && part != nil { // it became whole just now
		f, err = os.Open(s.blob(d))
	}
	content := io.ReadSeeker(f)
	if os.IsNotExist(err) {
		f, content, err = s.openBooted(d)
	}
	if err != nil {
		http.NotFound(w, r)
		return
	}
	defer func() { _ = f.Close() }()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Cache-Control", "no-transform, immutable")
	http.ServeContent(p.pacer.pace(w, r), r, "", time.Time{}, content)
}

func (p *PeerServer) bitmap(w http.ResponseWriter, r *http.Request, d image.Digest) {
	s := p.store
	s.mu.Lock()
	part := s.partial[d]
	whole := s.files[d].Root.SizeBytes
	for _, m := range s.whole {
		for _, root := range m.Roots() {
			if root.Digest == d {
				whole = root.SizeBytes
			}
		}
	}
	s.mu.Unlock()
	if m, err := s.bootedManifest(); err == nil {
		for _, root := range m.Roots() {
			if root.Digest == d {
				whole = root.SizeBytes
			}
		}
	}
	var bits []byte
	switch {
	case whole > 0:
		bits = make([]byte, (chunksOf(whole)+7)/8)
		for i := range bits {
			bits[i] = 0xff
		}
	case part != nil:
		bits = part.bitmap()
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(len(bits)))
	_, _ = w.Write(bits)
}

func chunksOf(size int64) int64 { return (size + image.ChunkBytes - 1) / image.ChunkBytes }

// parseRange reads "bytes=FIRST-LAST", the one form that is served of partial content.
func parseRange(header string, size int64) (offset, length int64, ok bool) {
	span, ok := strings.CutPrefix(header, "bytes=")
	first, last, both := strings.Cut(span, "-")
	begin, err1 := strconv.ParseInt(first, 10, 64)
	end, err2 := strconv.ParseInt(last, 10, 64)
	if !ok || !both || err1 != nil || err2 != nil || begin < 0 || end < begin || begin >= size {
		return 0, 0, false
	}
	return begin, min(end, size-1) - begin + 1, true
}

// boundedListener has at most so many connections; those that come then wait in the kernel's queue.
type boundedListener struct {
	net.Listener
	slots chan struct{}
}

func (l *boundedListener) Accept() (net.Conn, error) {
	l.slots <- struct{}{}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &boundedConn{Conn: conn, done: sync.OnceFunc(func() { <-l.slots })}, nil
}

type boundedConn struct {
	net.Conn
	done func()
}

func (c *boundedConn) Close() error {
	defer c.done()
	return c.Conn.Close()
}

// pacer spreads what is sent over time. The zero value does not.
type pacer struct {
	rate int64 // bytes a second, 0: as they come

	mu   sync.Mutex
	next time.Time // when what was let through so far is paid for
}

func (p *pacer) pace(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	if p.rate <= 0 {
		return w
	}
	return &pacedWriter{ResponseWriter: w, pacer: p, ctx: r.Context()}
}

// take waits until so many bytes may be sent.
func (p *pacer) take(ctx context.Context, bytes int) error {
	p.mu.Lock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	wait := p.next.Sub(now)
	p.next = p.next.Add(time.Duration(float64(bytes) / float64(p.rate) * float64(time.Second)))
	p.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// pacedWriter hides the connection's ReadFrom, so that every piece is counted.
type pacedWriter struct {
	http.ResponseWriter
	pacer *pacer
	ctx   context.Context
}

func (w *pacedWriter) Write(data []byte) (int, error) {
	if err := w.pacer.take(w.ctx, len(data)); err != nil {
		return 0, err
	}
	return w.ResponseWriter.Write(data)
}

var _ io.Writer = (*pacedWriter)(nil)
