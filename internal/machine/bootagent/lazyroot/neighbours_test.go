package lazyroot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
)

// beside opens an image that knows a neighbour, and what that holds.
func beside(t *testing.T, data []byte, server, neighbour string, change func(*Config)) *Image {
	t.Helper()
	m := open(t, data, change, server)
	m.Neighbours([]string{neighbour})
	m.askOne(m.neighbours[0])
	return m
}

func TestWhatANeighbourHoldsIsNotAskedOfTheServer(t *testing.T) {
	data := content(60)
	first, second := serve(t, data), serve(t, data)
	a := open(t, data, nil, first.URL)
	for _, c := range []int{3, 20, 21, 22, 40, 60} { // the last one is short
		read(t, a, data, c*image.ChunkBytes, 1)
	}
	shared := httptest.NewServer(a.Handler())
	defer shared.Close()
	left := beside(t, data, second.URL, shared.URL, nil)
	for r, from, end, _ := left.nextRun(0); r != nil; r, from, end, _ = left.nextRun(end) {
		for c := from; c < end; c++ {
			if a.present[c] {
				t.Errorf("the server is to be asked for chunk %d, which a neighbour holds", c)
			}
		}
	}
	b := beside(t, data, second.URL, shared.URL, nil)
	if err := b.Fill(); err != nil {
		t.Fatal(err)
	}
	read(t, b, data, 0, len(data))
	held := int64(len(data))
	for _, asked := range second.asked() {
		var from, to int64
		if _, err := fmt.Sscanf(asked, "%d-%d", &from, &to); err != nil {
			t.Fatal(err)
		}
		held -= to + 1 - from
	}
	if got := b.Progress().PeerBytes; held != got || got < 5*image.ChunkBytes+1234 {
		t.Errorf("%d bytes came from the neighbour, and all but %d from the server", got, held)
	}
}

func TestTwoThatBootAtOnceReadTheImageAboutOnceFromTheServer(t *testing.T) {
	data := content(200)
	// The server is slow: it gives a run each time that somebody has asked a neighbour what it holds.
	o := serve(t, data)
	turn := make(chan struct{}, 1000)
	o.spoil = func(http.ResponseWriter, *http.Request, []byte) bool {
		<-turn
		return false
	}
	var images []*Image
	var urls []string
	for range 2 {
		m := open(t, data, func(c *Config) { c.AskPause = 10 * time.Millisecond }, o.URL)
		h := m.Handler()
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, heldSuffix) {
				select {
				case turn <- struct{}{}:
				default:
				}
			}
			h.ServeHTTP(w, r)
		}))
		defer s.Close()
		images, urls = append(images, m), append(urls, s.URL)
	}
	ends := make(chan error, 2)
	for i, m := range images {
		m.Neighbours(urls[1-i : 2-i])
		go func() { ends <- m.Fill() }()
	}
	var fromPeers int64
	for range images {
		if err := <-ends; err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range images {
		read(t, m, data, 0, len(data))
		fromPeers += m.Progress().PeerBytes
	}
	// Without neighbours it is nothing, and with them half of the two at best: each may be given a run before it hears of the other's.
	if fromPeers < int64(len(data))/4 {
		t.Errorf("of two images of %d bytes only %d bytes came from the other machine", len(data), fromPeers)
	}
}

func TestANeighbourGivesOnlyWhatItHolds(t *testing.T) {
	data := content(10)
	o := serve(t, data)
	m := open(t, data, nil, o.URL)
	read(t, m, data, 3*image.ChunkBytes, 1)
	s := httptest.NewServer(m.Handler())
	defer s.Close()
	get := func(path, ranges string, headers ...string) (int, []byte) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/"+m.cfg.Root.Digest.Hex()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if ranges != "" {
			req.Header.Set("Range", ranges)
		}
		for _, name := range headers {
			req.Header.Set(name, `"x"`)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, body
	}
	if status, bits := get("/held", ""); status != http.StatusOK || !bytes.Equal(bits, []byte{1 << 3, 0}) {
		t.Errorf("it says it holds %08b (%d)", bits, status)
	}
	from := 3 * image.ChunkBytes
	if status, got := get("", fmt.Sprintf("bytes=%d-%d", from, from+99)); status != http.StatusPartialContent || !bytes.Equal(got, data[from:from+100]) {
		t.Errorf("what it holds: %d, %d bytes", status, len(got))
	}
	// Whatever else is asked for, no more than that: a disk holds what was on it before.
	one := fmt.Sprintf("bytes=%d-%d", from, from+99)
	for _, got := range [][]byte{second(get("", one+",0-10")), second(get("", one+",0-", "If-Range")), second(get("", one, "If-Range"))} {
		if len(got) > 0 && !bytes.Equal(got, data[from:from+100]) && !bytes.Equal(got, []byte("not here\n")) {
			t.Errorf("it gives %d bytes besides what it was asked for and holds", len(got))
		}
	}
	for _, ranges := range []string{"", "bytes=0-10", fmt.Sprintf("bytes=%d-%d", from, from+image.ChunkBytes), "bytes=-5", fmt.Sprintf("bytes=%d-", from), "bytes=5-3", "bytes=99999999-99999999"} {
		if status, _ := get("", ranges); status != http.StatusNotFound {
			t.Errorf("range %q: %d", ranges, status)
		}
	}
}

func TestANeighbourThatLiesOrStopsHoldsNobodyUp(t *testing.T) {
	data := content(40)
	for name, give := range map[string]func(http.ResponseWriter, *http.Request){
		"wrong content": func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(make([]byte, len(data))))
		},
		"nothing comes": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"an error":      func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusNotFound) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := serve(t, data)
			mux := http.NewServeMux()
			mux.HandleFunc("/{image}/held", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bytes.Repeat([]byte{0xff}, 10)) })
			mux.HandleFunc("/{image}", give)
			liar := httptest.NewServer(mux)
			t.Cleanup(func() { liar.CloseClientConnections(); liar.Close() })
			m := beside(t, data, o.URL, liar.URL, func(c *Config) { c.IdleTimeout = 50 * time.Millisecond })
			if err := m.Fill(); err != nil {
				t.Fatal(err)
			}
			read(t, m, data, 0, len(data))
			if n := m.Progress().PeerBytes; n != 0 {
				t.Errorf("%d bytes were taken from it", n)
			}
		})
	}
}

func second[A, B any](_ A, b B) B { return b }

// holdsAll serves an image of which it says it holds everything; give answers for its chunks.
func holdsAll(t *testing.T, give http.HandlerFunc) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/{image}/held", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bytes.Repeat([]byte{0xff}, 100)) })
	mux.HandleFunc("/{image}", give)
	s := httptest.NewServer(mux)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s.URL
}

// slowly gives what is asked for in small pieces, for ever.
func slowly(data []byte, pause time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var first, last int
		_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &first, &last)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, len(data)))
		w.WriteHeader(http.StatusPartialContent)
		for ; first <= last; first += 8 << 10 {
			_, _ = w.Write(data[first:min(first+8<<10, last+1)])
			_ = http.NewResponseController(w).Flush()
			select {
			case <-time.After(pause):
			case <-r.Context().Done():
				return
			}
		}
	}
}

func TestFillingEndsWithTheImageWhateverNeighboursHold(t *testing.T) {
	data := content(40)
	o := serve(t, data)
	asked := make(chan struct{}, 100)
	m := beside(t, data, o.URL, holdsAll(t, func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}), nil)
	ends := make(chan error, 1)
	go func() { ends <- m.Fill() }()
	<-asked
	m.Close()
	select {
	case err := <-ends:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(patience / 3):
		t.Fatal("it goes on for an image that was closed")
	}
}

func TestASlowNeighbourIsLeft(t *testing.T) {
	data := content(200)
	o := serve(t, data)
	// A chunk comes in good time, a run does not.
	m := beside(t, data, o.URL, holdsAll(t, slowly(data, 2*time.Millisecond)), func(c *Config) { c.IdleTimeout = 400 * time.Millisecond })
	if err := m.Fill(); err != nil {
		t.Fatal(err)
	}
	read(t, m, data, 0, len(data))
	if n := m.Progress().PeerBytes; n == 0 || n > int64(len(data))/2 {
		t.Errorf("%d of %d bytes were waited for", n, len(data))
	}
}

func TestAReadDoesNotWaitForASlowNeighbour(t *testing.T) {
	data := content(40)
	o := serve(t, data)
	m := beside(t, data, o.URL, holdsAll(t, slowly(data, 50*time.Millisecond)), func(c *Config) { c.AskPause = 20 * time.Millisecond })
	r, from, end, n := m.neighboursRun()
	go m.fetch(from, end, n.source, r, nil)
	begun := time.Now()
	read(t, m, data, (end-1)*image.ChunkBytes, 10)
	if took := time.Since(begun); took > neighbourIdle {
		t.Errorf("it took %v, while the server was there", took)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.neighbours) != 1 || n.faults != 0 {
		t.Errorf("to be slow for a read is counted as %d faults", n.faults)
	}
}

func TestNeighboursGiveWhatIsReadWhileTheServerIsAway(t *testing.T) {
	data := content(40)
	o, other := serve(t, data), serve(t, data)
	o.spoil = func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	a := open(t, data, nil, other.URL)
	read(t, a, data, 20*image.ChunkBytes, 10*image.ChunkBytes)
	s := httptest.NewServer(a.Handler())
	defer s.Close()
	m := beside(t, data, o.URL, s.URL, nil)
	for c := 20; c < 30; c++ {
		read(t, m, data, c*image.ChunkBytes, 10)
	}
	// What nobody has is waited for until the server is back.
	waits := make(chan error, 1)
	go func() {
		_, err := m.ReadAt(make([]byte, 10), 0)
		waits <- err
	}()
	for n := len(o.asked()); len(o.asked()) < n+3; {
		runtime.Gosched()
	}
	o.mu.Lock()
	o.spoil = nil
	o.mu.Unlock()
	if err := <-waits; err != nil {
		t.Fatal(err)
	}
}
