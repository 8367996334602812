package nodeimages_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
	if r.Header.Get("Authorization") != "Bearer secret" {
		http.Error(w, "who are you", http.StatusUnauthorized)
		return
	}
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
	m := image.Manifest{Environment: name, Architecture: "x86_64", Root: root, Layers: layers}
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
		Dir: dir, Keep: 1, Server: s.server.URL + "/agent/v1/images/", Client: s.server.Client(), Bearer: "secret",
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

// until waits until a status of the image passes a test.
func (n *node) until(w nodeimages.Wanted, what string, test func(nodeimages.Status) bool) nodeimages.Status {
	n.t.Helper()
	deadline := time.After(patience)
	for {
		var last nodeimages.Status
		for _, s := range n.Status() {
			if s.Digest == w.Digest {
				last = s
			}
		}
		if test(last) {
			return last
		}
		select {
		case <-n.changed:
		case <-deadline:
			n.t.Fatalf("the image never became %s; last %+v", what, last)
		}
	}
}

func (n *node) whole(w nodeimages.Wanted) {
	n.t.Helper()
	n.until(w, "whole", func(s nodeimages.Status) bool { return s.Whole })
}

func (n *node) failure(w nodeimages.Wanted) string {
	n.t.Helper()
	return n.until(w, "failed", func(s nodeimages.Status) bool { return !s.Whole && s.Message != "" }).Message
}

func TestAnImageIsFetchedVerifiedAndFoundAgain(t *testing.T) {
	s := newSite(t)
	root, layer := s.root(1, 5*image.ChunkBytes+123), s.root(2, 1000)
	w := s.image("one", root, layer)
	n := s.node(t)
	if ok, why := n.Whole(string(w.Digest)); ok || !strings.Contains(why, "is not on this node") {
		t.Errorf("before: %v, %q", ok, why)
	}
	n.Want(s.public(), []nodeimages.Wanted{w})
	n.whole(w)
	check := func(n *node) {
		t.Helper()
		img, err := n.Image(string(w.Digest))
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range []image.Root{root, layer} {
			data, err := os.ReadFile(img.Layers[i].Path)
			if err != nil || image.DigestOf(data) != r.Digest || img.Layers[i].Format != image.EROFS {
				t.Errorf("layer %d is not what was built: %v", i, err)
			}
		}
	}
	check(n)
	n.stop()
	asked := s.asked.Load()
	check(s.nodeAt(t, n.dir))
	if s.asked.Load() != asked {
		t.Error("a store that was opened again asked the server for what it has")
	}
}

func TestAnImageThatIsNotOfThisSiteIsRefused(t *testing.T) {
	s := newSite(t)
	w := s.image("one", s.root(1, 1000))
	cases := []struct {
		name string
		want string
		key  []byte
		w    nodeimages.Wanted
	}{
		{"no key", "the server has not said which key", nil, w},
		{"another key", "not signed by this site", bytes.Repeat([]byte{1}, ed25519.PublicKeySize), w},
		{"another signature", "not signed by this site", s.public(), nodeimages.Wanted{Digest: w.Digest, Signature: make([]byte, ed25519.SignatureSize)}},
		{"no digest", "is no digest", s.public(), nodeimages.Wanted{Digest: "sha256:../../x", Signature: w.Signature}},
		{"unknown", "does not have it", s.public(), nodeimages.Wanted{Digest: image.DigestOf([]byte("unknown")), Signature: w.Signature}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			n := s.node(t)
			n.Want(c.key, []nodeimages.Wanted{c.w})
			if got := n.failure(c.w); !strings.Contains(got, c.want) {
				t.Errorf("it says %q, want %q", got, c.want)
			}
		})
	}
}

func TestWhatTheServerTamperedWithIsRefused(t *testing.T) {
	s := newSite(t)
	root := s.root(1, 3*image.ChunkBytes)
	w := s.image("one", root)
	bad := bytes.Clone(s.blobs[root.Digest.Hex()])
	bad[image.ChunkBytes+5] ^= 1
	s.blobs[root.Digest.Hex()] = bad
	n := s.node(t)
	n.Want(s.public(), []nodeimages.Wanted{w})
	if got := n.failure(w); !strings.Contains(got, "digest mismatch") {
		t.Errorf("it says %q, want a digest mismatch", got)
	}
	if _, err := n.Image(string(w.Digest)); err == nil {
		t.Error("a tampered image can be used")
	}
}

func TestAFetchThatWasInterruptedGoesOnWhereItWas(t *testing.T) {
	s := newSite(t)
	const chunks = 64
	root := s.root(1, chunks*image.ChunkBytes)
	w := s.image("one", root)
	// The server dies after half of the root, in the middle of a chunk.
	var served atomic.Int64
	s.meddle = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Range") != "" && served.Add(1) > 2 {
			panic(http.ErrAbortHandler)
		}
		return false
	}
	n := s.node(t)
	n.Want(s.public(), []nodeimages.Wanted{w})
	n.failure(w)
	n.stop()
	before := s.sent.Load()
	if before == 0 || before >= chunks*image.ChunkBytes {
		t.Fatalf("%d bytes were sent before the break", before)
	}
	// One chunk of what is on disk rots meanwhile.
	part := filepath.Join(n.dir, "partial", root.Digest.Hex())
	f, err := os.OpenFile(part, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("rot"), 100); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	s.mu.Lock()
	s.meddle = nil
	s.mu.Unlock()
	again := s.nodeAt(t, n.dir)
	again.Want(s.public(), []nodeimages.Wanted{w})
	again.whole(w)
	if more := s.sent.Load() - before; more > chunks*image.ChunkBytes-before+image.ChunkBytes {
		t.Errorf("after a restart %d bytes were fetched, with %d of %d here", more, before, chunks*image.ChunkBytes)
	}
}

func TestAPeerWithBadDataIsDroppedAndToldAndTheImageStillComes(t *testing.T) {
	s := newSite(t)
	root := s.root(1, 32*image.ChunkBytes)
	w := s.image("one", root)
	var asked atomic.Int64
	hostile := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/held") {
			_, _ = rw.Write(bytes.Repeat([]byte{0xff}, 4))
			return
		}
		asked.Add(1)
		http.ServeContent(rw, r, "", time.Time{}, bytes.NewReader(make([]byte, root.SizeBytes)))
	}))
	defer hostile.Close()
	w.Peers = []string{hostile.URL + "/images/"}
	n := s.node(t)
	n.Want(s.public(), []nodeimages.Wanted{w})
	n.whole(w)
	if n.log.count("a peer is not asked for an image any more") != 1 {
		t.Error("it was not told, once, that the peer is dropped")
	}
	if bad := asked.Load(); bad > 8 {
		t.Errorf("the peer was asked %d times for bad data", bad)
	}
	img, err := n.Image(string(w.Digest))
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(img.Layers[0].Path)
	if err != nil || image.DigestOf(data) != root.Digest {
		t.Errorf("the image is not what was built: %v", err)
	}
}

func TestAPeerGivesWhatItHoldsOfAnImageThatIsNotWholeYet(t *testing.T) {
	s := newSite(t)
	const chunks = 64
	root := s.root(1, chunks*image.ChunkBytes)
	w := s.image("one", root)
	// The server sends the first half to the first node, and then keeps it waiting; to the second it sends no chunk at all.
	release := make(chan struct{})
	t.Cleanup(sync.OnceFunc(func() { close(release) }))
	var first atomic.Int64
	s.meddle = func(rw http.ResponseWriter, r *http.Request) bool {
		span := r.Header.Get("Range")
		switch {
		case span == "":
			return false
		case r.Header.Get("Node") == "second":
			http.Error(rw, "later", http.StatusServiceUnavailable)
			return true
		case first.Add(1) > 2: // requests of 16 chunks each
			select {
			case <-release:
			case <-r.Context().Done():
			}
			return true
		}
		return false
	}
	one := s.node(t).serve(nodeimages.PeerConfig{})
	one.Want(s.public(), []nodeimages.Wanted{w})
	half := func(st nodeimages.Status) bool { return !st.Whole && st.HeldBytes == chunks*image.ChunkBytes/2 }
	one.until(w, "half there", half)
	for span, want := range map[string]int{"bytes=0-9": http.StatusPartialContent, fmt.Sprintf("bytes=%[1]d-%[1]d", root.SizeBytes-1): http.StatusNotFound} {
		if status, _ := one.get(root.Digest.Hex(), span); status != want {
			t.Errorf("it answers %s with %d, want %d", span, status, want)
		}
	}
	w.Peers = []string{one.url}
	two := s.node(t, func(c *nodeimages.Config) { c.Client = &http.Client{Transport: named{"second"}} })
	two.Want(s.public(), []nodeimages.Wanted{w})
	two.until(w, "half there", half)
}

// named marks requests with who makes them.
type named struct{ node string }

func (n named) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Node", n.node)
	return http.DefaultTransport.RoundTrip(r)
}

func TestAnImageComesFromAPeerThatHasItAll(t *testing.T) {
	s := newSite(t)
	const chunks = 40
	w := s.image("one", s.root(1, chunks*image.ChunkBytes))
	first := s.node(t).serve(nodeimages.PeerConfig{})
	first.Want(s.public(), []nodeimages.Wanted{w})
	first.whole(w)
	sent := s.sent.Load()
	w.Peers = []string{first.url}
	second := s.node(t).serve(nodeimages.PeerConfig{})
	second.Want(s.public(), []nodeimages.Wanted{w})
	second.whole(w)
	if more := s.sent.Load() - sent; more > chunks*image.ChunkBytes/2 {
		t.Errorf("with a peer that has it all, the server sent %d bytes of %d", more, chunks*image.ChunkBytes)
	}
}

func TestWithoutTheServerPeersAreEnough(t *testing.T) {
	s := newSite(t)
	w := s.image("one", s.root(1, 20*image.ChunkBytes))
	first := s.node(t).serve(nodeimages.PeerConfig{BytesPerSecond: 200 << 20})
	first.Want(s.public(), []nodeimages.Wanted{w})
	first.whole(w)
	w.Peers = []string{first.url}
	second := s.node(t, func(c *nodeimages.Config) { c.Server = "http://127.0.0.1:1/" })
	second.Want(s.public(), []nodeimages.Wanted{w})
	second.whole(w)
}

func TestAnImageThatDoesNotFitIsRefusedWithTheNumbersAndFitsOnceThereIsRoom(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: mounting a small file system needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s := newSite(t)
	n := s.nodeAt(t, filepath.Join(dir, "images"))
	big, small := s.image("big", s.root(1, 9<<20)), s.image("small", s.root(2, 5<<20))
	n.Want(s.public(), []nodeimages.Wanted{big})
	if got := n.failure(big); !strings.Contains(got, "it needs 9 MiB more") || !strings.Contains(got, "make room there") {
		t.Errorf("it says %q", got)
	}
	n.Want(s.public(), []nodeimages.Wanted{small})
	n.whole(small)
	// What is not wanted any more makes room for what is.
	other := s.image("other", s.root(3, 5<<20))
	n.Want(s.public(), []nodeimages.Wanted{other})
	n.whole(other)
	if ok, _ := n.Whole(string(small.Digest)); ok {
		t.Error("the image that nothing needs was not dropped for the one that is wanted")
	}
	n.stop()
}

func TestADiskThatFillsMeanwhileEndsTheFetchWithThatReason(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: mounting a small file system needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s := newSite(t)
	w := s.image("one", s.root(1, 5<<20))
	var once sync.Once
	s.meddle = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Range") != "" {
			once.Do(func() { _ = os.WriteFile(filepath.Join(dir, "other"), make([]byte, 6<<20), 0o644) })
		}
		return false
	}
	n := s.nodeAt(t, filepath.Join(dir, "images"))
	n.Want(s.public(), []nodeimages.Wanted{w})
	if got := n.failure(w); !strings.Contains(got, "no space left on device") && !strings.Contains(got, "make room there") {
		t.Errorf("it says %q", got)
	}
	n.stop()
}

func TestImagesThatNothingNeedsAreKeptUpToANumberAndNothingElseIsLeft(t *testing.T) {
	s := newSite(t)
	shared := s.root(9, 1000)
	n := s.node(t, func(c *nodeimages.Config) { c.Keep = 1 })
	var all []nodeimages.Wanted
	for i := range 3 {
		w := s.image(fmt.Sprint("image", i), s.root(uint64(i), 100_000), shared)
		all = append(all, w)
		n.Want(s.public(), []nodeimages.Wanted{w})
		n.whole(w)
	}
	n.Want(s.public(), nil)
	n.stop() // trims before it ends, or did
	n = s.nodeAt(t, n.dir)
	n.Want(s.public(), []nodeimages.Wanted{all[2]})
	n.until(all[2], "whole", func(st nodeimages.Status) bool { return st.Whole })
	if ok, _ := n.Whole(string(all[0].Digest)); ok {
		t.Error("of two images that nothing needs, both were kept, want one")
	}
	n.stop()
	n = s.nodeAt(t, n.dir, func(c *nodeimages.Config) { c.Keep = 0 })
	gone := s.image("gone", s.root(20, 1000))
	n.Want(s.public(), []nodeimages.Wanted{gone})
	n.whole(gone)
	n.stop()
	entries, err := os.ReadDir(filepath.Join(n.dir, "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 3 { // manifest, chunk list and root of the last one
		t.Errorf("%d blobs are left, want 3", len(entries))
	}
	if entries, _ := os.ReadDir(filepath.Join(n.dir, "partial")); len(entries) > 0 {
		t.Errorf("partial files are left: %v", entries)
	}
}

func TestAPeerServesWhatItHoldsAndRefusesTheRest(t *testing.T) {
	s := newSite(t)
	root := s.root(1, 3*image.ChunkBytes)
	w := s.image("one", root)
	n := s.node(t).serve(nodeimages.PeerConfig{Requests: 1})
	n.Want(s.public(), []nodeimages.Wanted{w})
	n.whole(w)
	if err := os.WriteFile(filepath.Join(n.dir, "secret"), []byte("of the node"), 0o600); err != nil {
		t.Fatal(err)
	}
	hexDigits := root.Digest.Hex()
	for _, c := range []struct {
		path, span   string
		status, size int
	}{
		{hexDigits, "", 200, 3 * image.ChunkBytes},
		{hexDigits, "bytes=10-19", 206, 10},
		{hexDigits + "/held", "", 200, 1},
		{w.Digest.Hex(), "", 200, len(s.blobs[w.Digest.Hex()])},
		{image.DigestOf([]byte("x")).Hex(), "", 404, -1},
		{"..%2f..%2fetc%2fpasswd", "", 404, -1},
		{"..%2fsecret", "", 404, -1},
		{"../whole/" + hexDigits, "", 404, -1},
	} {
		status, size := n.get(c.path, c.span)
		if status != c.status || c.size >= 0 && size != c.size {
			t.Errorf("%s %s: %d with %d bytes, want %d with %d", c.path, c.span, status, size, c.status, c.size)
		}
	}
}

func TestTheImageAMachineWasBootedFromNeedsNoFetch(t *testing.T) {
	s := newSite(t)
	root, layer := s.root(1, 3*image.ChunkBytes), s.root(2, 1000)
	w := s.image("one", root, layer)
	booted := t.TempDir()
	for name, d := range map[string]image.Digest{
		"manifest.json": w.Digest, "root": root.Digest, "chunks": root.Chunks.Digest, "root.1": layer.Digest, "chunks.1": layer.Chunks.Digest,
	} {
		content := s.blobs[d.Hex()]
		if strings.HasPrefix(name, "root") {
			content = append(bytes.Clone(content), make([]byte, 512)...) // padded to whole blocks
		}
		if err := os.WriteFile(filepath.Join(booted, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	n := s.node(t, func(c *nodeimages.Config) { c.Booted = booted }).serve(nodeimages.PeerConfig{})
	if _, err := n.Image(string(w.Digest)); err == nil {
		t.Error("it can be used before it is whole")
	}
	if err := os.WriteFile(filepath.Join(booted, "whole"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	n.Want(s.public(), []nodeimages.Wanted{w})
	n.whole(w)
	if s.sent.Load() > 0 {
		t.Error("what the machine was booted from was fetched")
	}
	other := s.node(t, func(c *nodeimages.Config) { c.Server = "http://127.0.0.1:1/" })
	w.Peers = []string{n.url}
	other.Want(s.public(), []nodeimages.Wanted{w})
	other.whole(w)
}
