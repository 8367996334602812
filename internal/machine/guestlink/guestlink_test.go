package guestlink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// machine is a guest that notes its setups and whose ports are those of this process.
type machine struct {
	setups  chan Setup
	volumes Volumes
	fail    error
}

func (m *machine) Volumes(_ context.Context, v Volumes) error {
	m.volumes = v
	return m.fail
}

func (m *machine) Setup(_ context.Context, s Setup) error {
	if m.fail != nil {
		return m.fail
	}
	m.setups <- s
	return nil
}

func (m *machine) Dial(ctx context.Context, port int) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp4", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port)).String())
}

// connect returns a guest and the host's end of it.
func connect(t *testing.T) (*machine, *Client) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{setups: make(chan Setup, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, listener, m) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; !errors.Is(err, context.Canceled) {
			t.Errorf("Serve ended with %v", err)
		}
	})
	c := NewClient(func(ctx context.Context) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", listener.Addr().String())
	})
	t.Cleanup(c.Close)
	return m, c
}

func TestASetupArrivesWhole(t *testing.T) {
	m, c := connect(t)
	want := Setup{
		Hostname:   "c1-0",
		Interfaces: []Interface{{MAC: "02:6e:00:01:00:02", Name: "eth0", Address: netip.MustParsePrefix("10.64.0.2/20"), MTU: 1450, Gateway: netip.MustParseAddr("10.64.0.1"), Routes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}},
		Home:       "/home",
		Dirs:       []Dir{{Path: "/home/hpc", Mode: 0o700, UID: 1000, GID: 1000}},
		Files:      []File{{Path: "/etc/hosts", Content: make([]byte, 300<<10), Mode: 0o644}},
		Program:    []string{ProgramInGuest},
	}
	for range 2 {
		if err := c.Setup(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, <-m.setups, cmp.Comparer(bytes.Equal), cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{})); diff != "" {
			t.Error(diff)
		}
	}
}

func TestAGuestsComplaintIsShortAndFitForATerminal(t *testing.T) {
	m, c := connect(t)
	m.fail = errors.New("no disk \x1b[2J" + strings.Repeat("x", 5000))
	err := c.Setup(t.Context(), Setup{})
	if err == nil || !strings.Contains(err.Error(), "the guest refuses its setup: no disk  [2Jxxx") || len(err.Error()) > 1100 {
		t.Errorf("got %v", err)
	}
}

func TestVolumesArriveAndWhatIsInTheirWayComesBack(t *testing.T) {
	m, c := connect(t)
	want := Volumes{All: []Volume{{Path: "/volumes/data"}, {Path: "/ref", ReadOnly: true}}, Gone: true}
	if err := c.Volumes(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, m.volumes); diff != "" {
		t.Error(diff)
	}
	m.fail = fmt.Errorf("%w: files of /ref are still open", ErrBusy)
	if err := c.Volumes(t.Context(), want); !errors.Is(err, ErrBusy) || err.Error() != m.fail.Error() {
		t.Errorf("a volume in use: %v", err)
	}
	m.fail = errors.New("no such export")
	if err := c.Volumes(t.Context(), want); err == nil || errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "the guest can't change its volumes: no such export") {
		t.Errorf("another problem: %v", err)
	}
	old, host := net.Pipe()
	go func() {
		_ = (&http.Server{Handler: http.NotFoundHandler(), Protocols: onlyHTTP2()}).Serve(&once{conn: old})
	}()
	before := NewClient(func(context.Context) (net.Conn, error) { return host, nil })
	defer before.Close()
	if err := before.Volumes(t.Context(), want); !errors.Is(err, ErrOld) {
		t.Errorf("a guest that knows no volumes: %v", err)
	}
}

// once is a listener with one connection.
type once struct{ conn net.Conn }

func (o *once) Accept() (net.Conn, error) {
	if o.conn == nil {
		return nil, net.ErrClosed
	}
	conn := o.conn
	o.conn = nil
	return conn, nil
}
func (*once) Close() error   { return nil }
func (*once) Addr() net.Addr { return address{} }

func TestASetupThatNobodyTakesEndsWithItsContextAndWithTheClient(t *testing.T) {
	silent, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	dial := func(ctx context.Context) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", silent.Addr().String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := NewClient(dial).Setup(ctx, Setup{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it is cancelled", err)
	}
	c := NewClient(dial)
	ended := make(chan error, 1)
	go func() { ended <- c.Setup(t.Context(), Setup{}) }()
	for read := 0; read == 0; { // until it is the second client's connection, which waits for an answer then
		conn, err := silent.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		read, _ = conn.Read(make([]byte, 1))
	}
	c.Close()
	if err := <-ended; err == nil {
		t.Error("a setup outlived its client")
	}
}

func TestAPortOfAGuestIsReached(t *testing.T) {
	_, c := connect(t)
	echo, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		for {
			conn, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	port := echo.Addr().(*net.TCPAddr).Port
	first, err := c.Dial(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := c.Dial(t.Context(), port) // beside the first, over the same connection
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	if err := second.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(second); string(got) != "ping" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if _, err := second.Write([]byte("x")); err == nil {
		t.Error("a closed connection takes more")
	}
	_ = echo.Close()
	if conn, err := c.Dial(t.Context(), port); err == nil {
		conn.Close()
		t.Error("a port without a listener was reached")
	}
	if _, err := c.Dial(t.Context(), 70000); err == nil || !strings.Contains(err.Error(), "is not a port") {
		t.Errorf("port 70000: %v", err)
	}
}
