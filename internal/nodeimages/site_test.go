package nodeimages_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/nodeimages"
)

// site is a server with one image, and the key that its manifests are signed with.
type site struct {
	t      testing.TB
	key    ed25519.PrivateKey
	server *httptest.Server
	mu     sync.Mutex
	blobs  map[string][]byte
	// asked counts requests, sent bytes of blobs that were asked for by range.
	asked, sent atomic.Int64
	// meddle may answer a request by itself; true when it did.
	meddle func(w http.ResponseWriter, r *http.Request) bool
}

func newSite(t testing.TB) *site {
	t.Helper()
	key, err := image.SigningKey(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, key: key, blobs: map[string][]byte{}}
	s.server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.server.Close)
	return s
}

func (s *site) serve(w http.ResponseWriter, r *http.Request) {
	s.asked.Add(1)
	s.mu.Lock()
	data, ok := s.blobs[strings.TrimPrefix(r.URL.Path, "/agent/v1/images/")]
	meddle := s.meddle
	s.mu.Unlock()
	if meddle != nil && meddle(w, r) {
		return
	}
	if !ok {
		http.NotFound(w, r)
		return
	}
	counted := &counter{ResponseWriter: w}
	http.ServeContent(counted, r, "", time.Time{}, bytes.NewReader(data))
	if r.Header.Get("Range") != "" {
		s.sent.Add(counted.bytes)
	}
}

type counter struct {
	http.ResponseWriter
	bytes int64
}

func (c *counter) Write(data []byte) (int, error) {
	n, err := c.ResponseWriter.Write(data)
	c.bytes += int64(n)
	return n, err
}

// keep stores a blob at the server.
func (s *site) keep(data []byte) image.Blob {
	d := image.DigestOf(data)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blobs[d.Hex()] = data
	return image.Blob{Digest: d, SizeBytes: int64(len(data))}
}

// root makes content of so many bytes that is another one for each seed.
func (s *site) root(seed uint64, size int) image.Root {
	data := make([]byte, size)
	random := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = random.Read(data)
	blob, list, err := image.MakeChunks(bytes.NewReader(data))
	if err != nil {
		s.t.Fatal(err)
	}
	s.keep(data)
	return image.Root{Blob: blob, Format: image.EROFS, Chunks: s.keep(list), ChunkBytes: image.ChunkBytes}
}

// image makes an image and returns how the leader names it.
func (s *site) image(name string, root image.Root, layers ...image.Root) nodeimages.Wanted {
	return s.manifest(image.Manifest{Environment: name, Architecture: "x86_64", Root: root, Layers: layers})
}

// manifest signs an image and returns how the leader names it.
func (s *site) manifest(m image.Manifest) nodeimages.Wanted {
	data, digest, err := m.Encode()
	if err != nil {
		s.t.Fatal(err)
	}
	s.keep(data)
	return nodeimages.Wanted{Digest: digest, Signature: image.Sign(s.key, data)}
}

func (s *site) public() []byte { return image.PublicKey(s.key) }

// node is a store that runs.
type node struct {
	*nodeimages.Store
	t       testing.TB
	dir     string
	changed chan struct{}
	log     *lines
	stop    func()
	url     string
}

func (s *site) node(t testing.TB, adjust ...func(*nodeimages.Config)) *node {
	return s.nodeAt(t, t.TempDir(), adjust...)
}

func (s *site) nodeAt(t testing.TB, dir string, adjust ...func(*nodeimages.Config)) *node {
	t.Helper()
	n := &node{t: t, dir: dir, changed: make(chan struct{}, 1), log: &lines{out: t.Output()}}
	cfg := nodeimages.Config{
		Dir: dir, Keep: 1, Server: s.server.URL + "/agent/v1/images/", Client: s.server.Client(),
		Changed: func() {
			select {
			case n.changed <- struct{}{}:
			default:
			}
		},
		Log: slog.New(slog.NewTextHandler(n.log, nil)),
	}
	for _, change := range adjust {
		change(&cfg)
	}
	var err error
	if n.Store, err = nodeimages.Open(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { n.Run(ctx) })
	n.stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(n.stop)
	return n
}

// lines is a log that can be searched.
type lines struct {
	mu  sync.Mutex
	all strings.Builder
	out io.Writer
}

func (l *lines) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.Write(data)
	return l.out.Write(data)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.all.String(), text)
}

// serve lets other nodes fetch from this one.
func (n *node) serve(cfg nodeimages.PeerConfig) *node {
	n.t.Helper()
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		n.t.Fatal(err)
	}
	return n.serveAt(listen, cfg)
}

func (n *node) serveAt(listen net.Listener, cfg nodeimages.PeerConfig) *node {
	n.t.Helper()
	peer := nodeimages.NewPeerServer(n.Store, listen, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = peer.Serve(ctx) })
	n.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	n.url = peer.URL()
	return n
}

// get asks a node's peer server for a path below its URL, and returns the status and how many bytes came.
func (n *node) get(path, span string) (int, int) {
	n.t.Helper()
	request, err := http.NewRequestWithContext(n.t.Context(), http.MethodGet, n.url+path, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	if span != "" {
		request.Header.Set("Range", span)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		n.t.Fatal(err)
	}
	defer answer.Body.Close()
	var body bytes.Buffer
	_, _ = body.ReadFrom(answer.Body)
	return answer.StatusCode, body.Len()
}

// patience ends a test that hangs.
const patience = 30 * time.Second

// until waits until a status of the image passes a test. It looks without being told too: a node tells of bytes in steps only.
func (n *node) until(w nodeimages.Wanted, what string, test func(nodeimages.Status) bool) (last nodeimages.Status) {
	n.t.Helper()
	came := n.eventually(func() bool {
		last = nodeimages.Status{}
		for _, s := range n.Status() {
			if s.Digest == w.Digest {
				last = s
			}
		}
		return test(last)
	})
	if !came {
		n.t.Fatalf("the image never became %s; last %+v", what, last)
	}
	return last
}

// eventually waits until a test passes; false: it never did.
func (n *node) eventually(test func() bool) bool {
	deadline := time.After(patience)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for !test() {
		select {
		case <-n.changed:
		case <-look.C:
		case <-deadline:
			return false
		}
	}
	return true
}

func (n *node) whole(w nodeimages.Wanted) {
	n.t.Helper()
	n.until(w, "whole", func(s nodeimages.Status) bool { return s.Whole })
}

func (n *node) failure(w nodeimages.Wanted) string {
	n.t.Helper()
	return n.until(w, "failed", func(s nodeimages.Status) bool { return !s.Whole && s.Message != "" }).Message
}
