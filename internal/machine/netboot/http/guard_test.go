package http

import (
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/silencetest"
)

func TestBesideAnotherServerARPTellsWhoIsAtAnAddress(t *testing.T) {
	const given = "10.77.9.9" // by the other server, which nobody heard
	at := stranger
	b := newBench()
	b.Handler = Handler(Config{
		Network:  netboot.Network{Interface: "boot0", Address: netip.MustParsePrefix("10.77.0.1/16"), HTTPPort: 8069, Proxy: true},
		Presence: b.presence, Tokens: func(string, *netboot.Boot, string) string { return "token/" }, Now: now, Log: slog.New(slog.DiscardHandler),
		Neighbor: func(netip.Addr) string { return at },
	})
	if w := b.get(given, script); w.Code != http.StatusForbidden || strings.Contains(w.Body.String(), "token/") {
		t.Errorf("a stranger that asks for a machine's script: %d %s", w.Code, w.Body)
	}
	at = known
	if w := b.get(given, script); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "token/") {
		t.Errorf("the machine itself: %d %s", w.Code, w.Body)
	}
}

// asked keeps what it was asked for, and has nothing.
type asked []image.Digest

func (a *asked) Open(d image.Digest) (netboot.Blob, error) {
	*a = append(*a, d)
	return nil, fs.ErrNotExist
}

func TestABlobIsAskedForByADigestOnly(t *testing.T) {
	b := newBench()
	var blobs asked
	b.Handler = Handler(Config{
		Network:  netboot.Network{Interface: "boot0", Address: netip.MustParsePrefix("10.77.0.1/16"), HTTPPort: 8069},
		Presence: b.presence, Blobs: &blobs, Now: now, Log: slog.New(slog.DiscardHandler),
	})
	for _, name := range []string{"x", "..%2f..%2fetc%2fpasswd", strings.Repeat("0", 63), strings.Repeat("0", 63) + "g", strings.Repeat("A", 64)} {
		if w := b.get(address, "/images/"+name); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	if len(blobs) > 0 {
		t.Errorf("the store was asked for %q", blobs)
	}
	if b.get(address, "/images/"+b.boot.Kernel.Hex()); len(blobs) != 1 || blobs[0] != b.boot.Kernel {
		t.Errorf("the store was asked for %q, want %q", blobs, b.boot.Kernel)
	}
}

func TestWhoSendsNoBodyHoldsNoConnection(t *testing.T) {
	for _, length := range []string{"Content-Length: 1000", "Transfer-Encoding: chunked"} {
		took := silencetest.Held(t, "GET /images/x HTTP/1.1\r\nHost: x\r\n"+length+"\r\n\r\n", func(_ *testing.T, l net.Listener) {
			server := Server(http.NotFoundHandler(), slog.New(slog.DiscardHandler))
			_ = server.Serve(l)
			_ = server.Close()
		})
		if took > 3*time.Minute {
			t.Errorf("%s: the connection was held for %s", length, took)
		}
	}
}
