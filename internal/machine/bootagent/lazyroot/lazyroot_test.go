package lazyroot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
)

// content is an image of some chunks and a bit, different everywhere.
func content(chunks int) []byte {
	data := make([]byte, chunks*image.ChunkBytes+1234)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	return data
}

func rootOf(t *testing.T, data []byte) (image.Root, *image.Chunks) {
	t.Helper()
	blob, list, err := image.MakeChunks(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	root := image.Root{Blob: blob, ChunkBytes: image.ChunkBytes, Chunks: image.Blob{Digest: image.DigestOf(list), SizeBytes: int64(len(list))}}
	chunks, err := image.ParseChunks(list, root)
	if err != nil {
		t.Fatal(err)
	}
	return root, chunks
}

// origin serves one image; spoil may change an answer: true means it has answered itself.
type origin struct {
	*httptest.Server
	mu     sync.Mutex
	ranges []string
	spoil  func(w http.ResponseWriter, r *http.Request, data []byte) bool
}

func serve(t *testing.T, data []byte) *origin {
	t.Helper()
	o := &origin{}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		o.ranges = append(o.ranges, strings.TrimPrefix(r.Header.Get("Range"), "bytes="))
		spoil := o.spoil
		o.mu.Unlock()
		if spoil != nil && spoil(w, r, data) {
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}))
	t.Cleanup(o.Close)
	return o
}

func (o *origin) asked() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.ranges)
}

// patience ends a test that hangs.
const patience = 30 * time.Second

func open(t *testing.T, data []byte, change func(*Config), server string, peers ...string) *Image {
	t.Helper()
	root, chunks := rootOf(t, data)
	file, err := os.Create(filepath.Join(t.TempDir(), "root"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Root: root, Chunks: chunks, Backing: file, Server: server + "/", Peers: peers, Client: &http.Client{Transport: &http.Transport{}},
		RetryPause: time.Millisecond, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	m := New(cfg)
	end := time.AfterFunc(patience, m.Close)
	t.Cleanup(func() { end.Stop(); m.Close(); _ = file.Close() })
	return m
}

func read(t *testing.T, m *Image, data []byte, off, length int) {
	t.Helper()
	got := make([]byte, length)
	if n, err := m.ReadAt(got, int64(off)); err != nil || n != length {
		t.Fatalf("read %d bytes at %d: got %d, %v", length, off, n, err)
	}
	want := make([]byte, length)
	if off < len(data) {
		copy(want, data[off:])
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("the %d bytes at %d are not those of the image", length, off)
	}
}

func TestOnlyWhatIsReadIsFetched(t *testing.T) {
	data := content(40)
	o := serve(t, data)
	m := open(t, data, nil, o.URL)
	read(t, m, data, 20*image.ChunkBytes+7, 100)
	read(t, m, data, 20*image.ChunkBytes+500, 100)
	read(t, m, data, 30*image.ChunkBytes-1, 2)
	if p := m.Progress(); p.ReadBytes != 3*image.ChunkBytes || p.HeldBytes != 3*image.ChunkBytes || !slices.Equal(p.Touched, []int32{20, 29, 30}) {
		t.Errorf("progress is %+v, want 3 chunks: 20, 29, 30", p)
	}
	want := []string{
		fmt.Sprintf("%d-%d", 20*image.ChunkBytes, 21*image.ChunkBytes-1),
		fmt.Sprintf("%d-%d", 29*image.ChunkBytes, 31*image.ChunkBytes-1),
	}
	if got := o.asked(); !slices.Equal(got, want) {
		t.Errorf("asked for %v, want %v: neighbours in one request, nothing twice", got, want)
	}
	// The last chunk is short; a device's last block goes past it.
	read(t, m, data, len(data)-100, 4096)
}

func TestASequentialReaderIsReadAheadOf(t *testing.T) {
	data := content(40)
	o := serve(t, data)
	m := open(t, data, nil, o.URL)
	for c := range 40 {
		read(t, m, data, c*image.ChunkBytes, image.ChunkBytes)
	}
	if n := len(o.asked()); n > 12 {
		t.Errorf("40 chunks in order took %d requests: %v", n, o.asked())
	}
}

func TestFillingEndsWithAWholeImageAndFetchesNothingTwice(t *testing.T) {
	data := content(40)
	o := serve(t, data)
	m := open(t, data, nil, o.URL)
	read(t, m, data, 17*image.ChunkBytes, 10)
	if err := m.Fill(); err != nil {
		t.Fatal(err)
	}
	<-m.Whole()
	o.Close()
	read(t, m, data, 0, len(data))
	sum := 0
	for _, r := range o.asked() {
		var from, to int
		_, _ = fmt.Sscanf(r, "%d-%d", &from, &to)
		sum += to - from + 1
	}
	if sum != len(data) {
		t.Errorf("%d bytes were asked for, want the image's %d: %v", sum, len(data), o.asked())
	}
	if p := m.Progress(); p.HeldBytes != p.RootBytes {
		t.Errorf("progress is %+v", p)
	}
}

func TestManyReadersAndTheBackgroundAtOnce(t *testing.T) {
	data := content(60)
	o, p1, p2 := serve(t, data), serve(t, data), serve(t, data)
	m := open(t, data, nil, o.URL, p1.URL, p2.URL)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := m.Fill(); err != nil {
			t.Error(err)
		}
	})
	for n := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(n), 2))
			for range 100 {
				off := r.IntN(len(data) - 5000)
				got := make([]byte, 5000)
				if _, err := m.ReadAt(got, int64(off)); err != nil || !bytes.Equal(got, data[off:off+5000]) {
					t.Errorf("read at %d: %v", off, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if len(o.asked()) > 0 || len(p1.asked()) == 0 || len(p2.asked()) == 0 {
		t.Errorf("with two peers the server was asked %d times, the peers %d and %d", len(o.asked()), len(p1.asked()), len(p2.asked()))
	}
}

func TestAPeerThatLiesOrFailsIsLeftForTheServer(t *testing.T) {
	for name, spoil := range map[string]func(http.ResponseWriter, *http.Request, []byte) bool{
		"wrong content": func(w http.ResponseWriter, r *http.Request, data []byte) bool {
			wrong := bytes.Clone(data)
			for i := range wrong {
				wrong[i] ^= 1
			}
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(wrong))
			return true
		},
		"no such blob":    func(w http.ResponseWriter, r *http.Request, _ []byte) bool { http.NotFound(w, r); return true },
		"no ranges":       func(w http.ResponseWriter, _ *http.Request, data []byte) bool { _, _ = w.Write(data); return true },
		"ends in between": func(http.ResponseWriter, *http.Request, []byte) bool { panic(http.ErrAbortHandler) },
		"other range": func(w http.ResponseWriter, _ *http.Request, data []byte) bool {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-9/%d", len(data)))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(data[:10])
			return true
		},
		"says nothing": func(_ http.ResponseWriter, r *http.Request, _ []byte) bool { <-r.Context().Done(); return true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := content(20)
			o, peer := serve(t, data), serve(t, data)
			peer.spoil = spoil
			m := open(t, data, func(c *Config) { c.IdleTimeout = 200 * time.Millisecond }, o.URL, peer.URL)
			read(t, m, data, 100, 5*image.ChunkBytes)
			if err := m.Fill(); err != nil {
				t.Fatal(err)
			}
			read(t, m, data, 0, len(data))
			if n := len(peer.asked()); n == 0 || n > maxPeerFaults+1 {
				t.Errorf("the bad peer was asked %d times, want 1 to %d", n, maxPeerFaults+1)
			}
		})
	}
}

func TestWhatCameFromPeersAndWasRightIsCounted(t *testing.T) {
	data := content(40)
	o, peer := serve(t, data), serve(t, data)
	if m := open(t, data, nil, o.URL); m.Fill() != nil || m.Progress().PeerBytes != 0 {
		t.Errorf("without peers %d bytes came from them, %v", m.Progress().PeerBytes, m.Err())
	}
	if m := open(t, data, nil, o.URL, peer.URL); m.Fill() != nil || m.Progress().PeerBytes != int64(len(data)) {
		t.Errorf("of %d bytes that all came from a peer %d are counted, %v", len(data), m.Progress().PeerBytes, m.Err())
	}
	// The first three chunks of each answer are right, the fourth is not.
	peer.spoil = func(w http.ResponseWriter, r *http.Request, data []byte) bool {
		var from int
		_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
		wrong := bytes.Clone(data)
		wrong[from+3*image.ChunkBytes] ^= 1
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(wrong))
		return true
	}
	m := open(t, data, nil, o.URL, peer.URL)
	read(t, m, data, 0, 8*image.ChunkBytes)
	if got := m.Progress().PeerBytes; got != 3*image.ChunkBytes {
		t.Errorf("%d bytes are counted as a peer's, want the three chunks that were right: %d", got, 3*image.ChunkBytes)
	}
}

func TestAServerThatGivesOtherContentIsGivenUpInWords(t *testing.T) {
	data := content(3)
	o := serve(t, data)
	wrong := content(3)
	wrong[image.ChunkBytes+5] ^= 1
	o.spoil = func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(wrong))
		return true
	}
	m := open(t, data, nil, o.URL)
	read(t, m, data, 0, 10)
	got := make([]byte, 10)
	_, err := m.ReadAt(got, image.ChunkBytes)
	if !errors.Is(err, ErrWrongContent) || !errors.Is(err, image.ErrDigest) || !strings.Contains(err.Error(), "chunk 1") {
		t.Fatalf("got %v, want one that names chunk 1 and a digest mismatch", err)
	}
	<-m.Failed()
	if !bytes.Equal(got, make([]byte, 10)) {
		t.Error("bytes that were not verified were given out")
	}
	// What is local and right is still read.
	read(t, m, data, 0, 10)
}

// It says nothing of the content: such a server is asked again, and not given up for a wrong image.
func TestAnAnswerThatIsNotTheRangeAskedForIsNotRead(t *testing.T) {
	data := content(3)
	o := serve(t, data)
	var mu sync.Mutex
	whole := 0
	o.spoil = func(w http.ResponseWriter, _ *http.Request, data []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		if whole++; whole > 2*maxWrong {
			return false
		}
		_, _ = w.Write(data) // 200, from the beginning
		return true
	}
	read(t, open(t, data, nil, o.URL), data, image.ChunkBytes, 10)
}

func TestAServerThatIsAwayForAWhileIsWaitedFor(t *testing.T) {
	data := content(5)
	o := serve(t, data)
	var mu sync.Mutex
	failures := 0
	o.spoil = func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		if failures++; failures > 10 {
			return false
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	m := open(t, data, nil, o.URL)
	read(t, m, data, 0, len(data))
}

func TestReadsGoBeforeTheBackground(t *testing.T) {
	data := content(200)
	o := serve(t, data)
	// The background is at most one chunk a second: whoever waits for it would be noticed.
	m := open(t, data, func(c *Config) { c.RateBytesPerSecond = image.ChunkBytes }, o.URL)
	filling := make(chan error, 1)
	go func() { filling <- m.Fill() }()
	begun := time.Now()
	for c := range 20 {
		// The first of these are in the very run that the background has asked for.
		read(t, m, data, c*image.ChunkBytes, 10)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("20 reads beside a slow background took %v", took)
	}
	m.Close()
	if err := <-filling; !errors.Is(err, context.Canceled) {
		t.Errorf("a closed image's filling ends with %v", err)
	}
}

func TestASmallBlobIsTakenFromWhoeverHasItRight(t *testing.T) {
	data := []byte("chunk list")
	blob := image.Blob{Digest: image.DigestOf(data), SizeBytes: int64(len(data))}
	bad, good := serve(t, []byte("other list")), serve(t, data)
	got, err := FetchBlob(t.Context(), http.DefaultClient, []string{bad.URL + "/", good.URL + "/"}, blob, 100)
	if err != nil || string(got) != string(data) {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := FetchBlob(t.Context(), http.DefaultClient, []string{bad.URL + "/"}, blob, 100); !errors.Is(err, image.ErrDigest) {
		t.Errorf("other content: got %v, want a digest mismatch", err)
	}
	if _, err := FetchBlob(t.Context(), http.DefaultClient, []string{good.URL + "/"}, blob, 3); err == nil {
		t.Error("a blob above the limit was fetched")
	}
	good.spoil = func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		_, _ = io.WriteString(w, "chunk")
		return true
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := FetchBlob(ctx, http.DefaultClient, []string{good.URL + "/"}, blob, 100); err == nil {
		t.Error("a blob that ends early was taken")
	}
}

func TestASmallBlobIsAskedForUntilSomebodyCanBeReached(t *testing.T) {
	data := []byte("chunk list")
	blob := image.Blob{Digest: image.DigestOf(data), SizeBytes: int64(len(data))}
	o := serve(t, data)
	busy := true
	o.spoil = func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		if busy {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		was := busy
		busy = false
		return was
	}
	closed := httptest.NewServer(nil)
	closed.Close()
	got, err := FetchBlob(t.Context(), http.DefaultClient, []string{closed.URL + "/", o.URL + "/"}, blob, 100)
	if err != nil || string(got) != string(data) || len(o.asked()) != 2 {
		t.Errorf("got %q, %v after %d requests", got, err, len(o.asked()))
	}
}
