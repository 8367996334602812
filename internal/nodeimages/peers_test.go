package nodeimages_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/nodeimages"
)

func TestAPeerWithBadDataIsDroppedAndToldAndTheImageStillComes(t *testing.T) {
	s := newSite(t)
	root := s.root(1, 32*image.ChunkBytes)
	w := s.image("one", root)
	var asked atomic.Int64
	lied := make(chan struct{})
	tell := sync.OnceFunc(func() { close(lied) })
	t.Cleanup(tell)
	hostile := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/held") {
			_, _ = rw.Write(bytes.Repeat([]byte{0xff}, 4))
			return
		}
		asked.Add(1)
		http.ServeContent(rw, r, "", time.Time{}, bytes.NewReader(make([]byte, root.SizeBytes)))
		tell()
	}))
	defer hostile.Close()
	// A server that is quick would have sent all before the peer is asked.
	s.meddle = holdChunks(lied)
	w.Peers = []string{hostile.URL + "/images/"}
	n := s.node(t)
	n.Want(s.public(), []nodeimages.Wanted{w})
	n.whole(w)
	if n.log.count("a peer was dropped") != 1 {
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
	s.meddle = func(rw http.ResponseWriter, r *http.Request) bool {
		var begin int64
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &begin); err != nil {
			return false // the manifest or the chunk list
		}
		switch {
		case r.Header.Get("Node") == "second":
			http.Error(rw, "later", http.StatusServiceUnavailable)
			return true
		case begin >= chunks*image.ChunkBytes/2:
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

// holdChunks has the server keep chunks back until an event; manifest and chunk list it sends.
func holdChunks(until <-chan struct{}) func(http.ResponseWriter, *http.Request) bool {
	return func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Range") != "" {
			select {
			case <-until:
			case <-r.Context().Done():
			}
		}
		return false
	}
}

func TestAnImageComesFromAPeerThatHasItAll(t *testing.T) {
	s := newSite(t)
	const chunks, claimed = 40, 4 // claimed are those of one request to the server
	w := s.image("one", s.root(1, chunks*image.ChunkBytes))
	first := s.node(t).serve(nodeimages.PeerConfig{})
	first.Want(s.public(), []nodeimages.Wanted{w})
	first.whole(w)
	sent := s.sent.Load()
	// How much a server sends that does not wait depends on how soon the peer is asked.
	release := make(chan struct{})
	end := sync.OnceFunc(func() { close(release) })
	t.Cleanup(end)
	s.mu.Lock()
	s.meddle = holdChunks(release)
	s.mu.Unlock()
	w.Peers = []string{first.url}
	second := s.node(t).serve(nodeimages.PeerConfig{})
	second.Want(s.public(), []nodeimages.Wanted{w})
	second.until(w, "there but for what the server was asked for", func(st nodeimages.Status) bool {
		return st.HeldBytes >= (chunks-claimed)*image.ChunkBytes
	})
	end()
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
