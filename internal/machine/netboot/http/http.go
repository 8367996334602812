// Package http serves network boot over HTTP: iPXE scripts, loaders for UEFI HTTP boot, and content-addressed blobs with ranges (RFC 9110,
// section 14).
//
// Blobs are no secret on the provisioning network; a script carries a boot token, so only the machine itself gets it: whoever has the address
// that DHCP gave that MAC. It must never serve anything by path. Start with Handler.
package http

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/ipxe"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/loaders"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/presence"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/storm"
)

// Config is what the handler answers from.
type Config struct {
	Network  netboot.Network
	Presence *presence.Presence
	Loaders  loaders.Set
	Blobs    netboot.Blobs
	Tokens   netboot.Tokens
	Storm    *storm.Controller
	// BootServer is HOST:PORT of the boot API, Pin that of the site's CA.
	BootServer, Pin string
	// Neighbor tells the MAC of an address by ARP, "" when it is not known; asked when another server gives the addresses. May be nil.
	Neighbor func(netip.Addr) string
	Now      func() time.Time
	Log      *slog.Logger
}

// Times and sizes that bound what one client can hold.
const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10
	// maxConnections at once: iPXE holds one a machine, the boot agent a few.
	maxConnections = 16384
	// stallTimeout is for each piece of a blob: who takes less than that has gone.
	stallTimeout = 30 * time.Second
	piece        = 1 << 20
	// smallBytes is what is sent at once, without waiting for a turn.
	smallBytes = 64 << 10
)

type handler struct {
	Config
	problems *limiter
}

// Handler serves scripts, loaders and blobs.
func Handler(c Config) http.Handler {
	h := &handler{Config: c, problems: &limiter{last: map[string]time.Time{}}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+ipxe.ScriptPath+"{name}", h.script)
	mux.HandleFunc("GET "+ipxe.LoaderPath+"{name}", h.loader)
	mux.HandleFunc("GET "+ipxe.ImagePath+"{hex}", h.blob)
	return mux
}

type connKey struct{}

// Server is an http.Server for the handler, with its bounds. Its connections are TCP's own, not wrapped: only so the kernel sends files.
func Server(h http.Handler, log *slog.Logger) *http.Server {
	var open atomic.Int64
	inTime := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 { // nobody reads it, but the server waits for it before it answers
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(headerTimeout))
		}
		h.ServeHTTP(w, r)
	})
	return &http.Server{
		Handler: inTime, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ConnState: func(c net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				if open.Add(1) > maxConnections {
					_ = c.Close()
				}
			case http.StateClosed, http.StateHijacked:
				open.Add(-1)
			default:
			}
		},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
}

// source is the client's address.
func source(r *http.Request) netip.Addr {
	a, _ := netip.ParseAddrPort(r.RemoteAddr)
	return a.Addr().Unmap()
}

// script answers a machine that asks what to boot.
func (h *handler) script(w http.ResponseWriter, r *http.Request) {
	mac, ok := ipxe.MAC(r.PathValue("name"))
	if !ok {
		http.NotFound(w, r)
		return
	}
	now := h.Now()
	from := source(r)
	client, ok := h.client(mac, from)
	if !ok {
		h.problem(mac, fmt.Sprintf("%s was refused the boot script of %s, which has another address", from, mac), now)
		http.Error(w, "this script is for another machine", http.StatusForbidden)
		return
	}
	if client.Name == "" && client.Boot == nil {
		http.NotFound(w, r) // strangers are not answered
		return
	}
	h.Presence.Fetching(from, true, now)
	text := h.scriptFor(client, r.URL.Query().Get(ipxe.GenerationQuery), now)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	n, _ := io.WriteString(w, text)
	h.Presence.Sent(from, int64(n))
}

// client is the machine of a MAC if it is at the address the request came from.
func (h *handler) client(mac string, from netip.Addr) (presence.Client, bool) {
	c, ok := h.Presence.Of(mac, from)
	if ok || !h.Network.Proxy || h.Neighbor == nil || h.Neighbor(from) != mac {
		return c, ok
	}
	h.Presence.Bind(mac, from) // its DHCP request to the other server was not heard; ARP tells
	return h.Presence.Of(mac, from)
}

// scriptFor chooses the script: what it shall boot now, and nothing of an earlier life.
func (h *handler) scriptFor(c presence.Client, generation string, now time.Time) string {
	m := ipxe.Machine{MAC: c.MAC, Name: c.Name, Firmware: c.Firmware}
	b := c.Boot
	switch {
	case b == nil && c.Waits:
		return ipxe.Again(h.Network, m, nil)
	case b == nil:
		return ipxe.End(m, "not meant to boot from the network")
	case b.Architecture != "" && c.Architecture != "" && b.Architecture != c.Architecture:
		why := fmt.Sprintf("is %s, but its boot image is for %s", c.Architecture, b.Architecture)
		h.problem(c.MAC, c.MAC+" "+why, now)
		return ipxe.End(m, why)
	case !b.ExpiresAt.IsZero() && now.After(b.ExpiresAt):
		h.problem(c.MAC, fmt.Sprintf("%s asked too late for its boot script; its boot expired at %s", c.MAC, b.ExpiresAt.Format(time.RFC3339)), now)
		return ipxe.End(m, "its boot has expired")
	case generation != "" && generation != strconv.FormatInt(b.Generation, 10):
		return ipxe.Again(h.Network, m, b)
	}
	arguments := ipxe.Arguments(h.Network, b, boot.Arguments{Server: h.BootServer, Pin: h.Pin, Token: h.Tokens(c.MAC, b, c.Port), MAC: c.MAC, Time: now})
	return ipxe.Script(h.Network, m, b, arguments)
}

// loader answers UEFI HTTP boot.
func (h *handler) loader(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	content, ok := h.Loaders[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	from := source(r)
	h.Presence.Fetching(from, false, h.Now())
	// The type tells OVMF that it is an EFI application (UEFI 2.10, section 24.7.3.1; IANA "application/efi").
	w.Header().Set("Content-Type", "application/efi")
	w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	n, _ := w.Write(content)
	h.Presence.Sent(from, int64(n))
}

// blob serves content by digest.
func (h *handler) blob(w http.ResponseWriter, r *http.Request) {
	from := source(r)
	if !h.Network.Proxy && !h.Network.Address.Masked().Contains(from) && !from.IsLoopback() {
		http.Error(w, "images are for machines on the provisioning network", http.StatusForbidden)
		return
	}
	digest := image.Digest("sha256:" + r.PathValue("hex"))
	if err := digest.Check(); err != nil {
		http.NotFound(w, r)
		return
	}
	content, err := h.Blobs.Open(digest)
	if errors.Is(err, fs.ErrNotExist) {
		http.NotFound(w, r)
		return
	}
	if err != nil {
		h.Log.Error("a blob can't be opened", "digest", digest, "error", err)
		http.Error(w, "the blob can't be opened", http.StatusInternalServerError)
		return
	}
	defer func() { _ = content.Close() }()
	h.send(w, r, from, digest, content)
}

// send hands a blob over, in its turn.
func (h *handler) send(w http.ResponseWriter, r *http.Request, from netip.Addr, digest image.Digest, content netboot.Blob) {
	head := w.Header()
	head.Set("Content-Type", "application/octet-stream")
	head.Set("ETag", `"`+digest.Hex()+`"`)
	head.Set("Cache-Control", "public, max-age=31536000, immutable")
	out := &meter{ResponseWriter: w, control: http.NewResponseController(w), sent: func(n int64) { h.Presence.Sent(from, n) }}
	ranged := r.Header.Get("Range") != ""
	if r.Method == http.MethodGet && bulk(r.Header.Get("Range"), content.Size()) {
		class := storm.Load
		if ranged {
			class = storm.Read
		}
		conn, _ := r.Context().Value(connKey{}).(net.Conn)
		transfer, err := h.Storm.Admit(r.Context(), from, class, conn)
		if err != nil {
			return // the client has gone
		}
		defer transfer.Done()
		out.sent = func(n int64) {
			transfer.Sent(n)
			h.Presence.Sent(from, n)
		}
	}
	http.ServeContent(out, r, "", time.Time{}, reader(content))
	_ = out.control.SetWriteDeadline(time.Time{})
	if r.Method == http.MethodGet && !ranged && out.total == content.Size() {
		h.Presence.Delivered(from, digest, h.Now())
	}
}

// bulk reports whether a request is for more than is sent at once. A range that can't be read is bulk: it is answered with all, or an error.
func bulk(ranges string, size int64) bool {
	if size <= smallBytes {
		return false
	}
	spec, ok := strings.CutPrefix(ranges, "bytes=")
	from, to, ok2 := strings.Cut(spec, "-")
	first, err1 := strconv.ParseInt(from, 10, 64)
	last, err2 := strconv.ParseInt(to, 10, 64)
	return !ok || !ok2 || err1 != nil || err2 != nil || last-first >= smallBytes
}

// reader is a blob as ServeContent wants it. A blob that has a file of its own is sent by the kernel (sendfile).
func reader(b netboot.Blob) io.ReadSeeker {
	if f, ok := b.(netboot.File); ok {
		return f.File
	}
	return io.NewSectionReader(b, 0, b.Size())
}

func (h *handler) problem(mac, text string, now time.Time) {
	if h.problems.tell(text, now) {
		h.Presence.Problem(mac, text, now)
	}
}
