package bootagent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/bootagent/lazyroot"
	"github.com/nearmetal/nearmetal/internal/silencetest"
)

func TestStrangersTakeFewConnectionsOfTheProcessThatServesTheRoot(t *testing.T) {
	blob, list, err := image.MakeChunks(bytes.NewReader([]byte("a root")))
	if err != nil {
		t.Fatal(err)
	}
	root := image.Root{Blob: blob, ChunkBytes: image.ChunkBytes, Chunks: image.Blob{Digest: image.DigestOf(list), SizeBytes: int64(len(list))}}
	chunks, err := image.ParseChunks(list, root)
	if err != nil {
		t.Fatal(err)
	}
	m := lazyroot.New(lazyroot.Config{Root: root, Chunks: chunks})
	defer m.Close()
	port, err := give(m)
	if err != nil {
		t.Fatal(err)
	}
	taken := func() (net.Conn, bool) {
		c, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = fmt.Fprintf(c, "GET /%s/held HTTP/1.1\r\nHost: x\r\n\r\n", root.Digest.Hex())
		n, _ := c.Read(make([]byte, 1000))
		return c, n > 0
	}
	var one net.Conn
	for i := range maxTakers {
		c, ok := taken()
		if !ok {
			t.Fatalf("connection %d is refused", i+1)
		}
		one = c
	}
	if _, ok := taken(); ok {
		t.Errorf("more than %d connections are served", maxTakers)
	}
	// Who leaves makes room.
	_ = one.Close()
	for end := time.Now().Add(30 * time.Second); ; {
		if _, ok := taken(); ok {
			return
		}
		if time.Now().After(end) {
			t.Fatal("after one has left nobody is served")
		}
	}
}

func TestWhoAsksAndDoesNotGoOnHoldsNoConnectionOfTheRoot(t *testing.T) {
	for name, said := range map[string]string{
		"nothing": "", "half a header": "GET / HTTP/1.1\r\nHost: x\r\n", "a body unasked": "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
		"a whole request": "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			took := silencetest.Held(t, said, func(_ *testing.T, l net.Listener) {
				server := takers(http.NotFoundHandler())
				_ = server.Serve(l)
				_ = server.Close()
			})
			if took > 3*time.Minute {
				t.Errorf("the connection was held for %s", took)
			}
		})
	}
}

func TestARootThatIsNoLongerServedIsNotOfferedToOthers(t *testing.T) {
	theirs, ours := net.Pipe()
	s := &rootServer{control: ours, whole: make(chan struct{}), failed: make(chan struct{}), heard: make(chan struct{})}
	ended := make(chan struct{})
	go func() { s.listen(); close(ended) }()
	if err := json.NewEncoder(theirs).Encode(serveEvent{Port: 4000}); err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(theirs).Encode(serveEvent{Whole: true}); err != nil {
		t.Fatal(err)
	}
	<-s.whole
	if port := s.sharePort(); port != 4000 {
		t.Errorf("while it is served it is offered at %d", port)
	}
	_ = theirs.Close()
	<-ended
	if port := s.sharePort(); port != 0 {
		t.Errorf("after its process has ended it is offered at %d", port)
	}
}
