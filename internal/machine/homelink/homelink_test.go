package homelink_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/internal/machine/homelink"
)

const patience = 20 * time.Second

const maxRecord = 100_000

// echo answers each call with itself.
type echo struct{}

func (echo) Serve(_ context.Context, call []byte, reply func([]byte)) error {
	go reply(bytes.Clone(call))
	return nil
}

// port is a guest's port: it hands out the host's connections.
type port struct {
	hosts  chan net.Conn
	closed chan struct{}
}

func newPort() port { return port{make(chan net.Conn), make(chan struct{})} }

func (p port) Accept() (net.Conn, error) {
	select {
	case c := <-p.hosts:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p port) Close() error   { close(p.closed); return nil }
func (p port) Addr() net.Addr { return &net.UnixAddr{} }

// guest carries connections to the address that it returns.
func guest(t *testing.T, p port, allowed func(net.Addr) bool) string {
	t.Helper()
	local, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- homelink.Carry(ctx, p, local, allowed) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("carrying ended: %v", err)
		}
	})
	return local.Addr().String()
}

func everybody(net.Addr) bool { return true }

// pair are two ends of a connection that holds what is written for a while, as sockets do.
func pair(t *testing.T) (host, guest net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if host, err = net.Dial("tcp4", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if guest, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = host.Close(), guest.Close() })
	return host, guest
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn
}

// exchange sends a record in two fragments and reads it back.
func exchange(conn net.Conn, size int) error {
	call := bytes.Repeat([]byte{7, 1, 3}, size/3+1)[:size]
	out := binary.BigEndian.AppendUint32(nil, uint32(size/2))
	out = append(out, call[:size/2]...)
	out = binary.BigEndian.AppendUint32(out, 1<<31|uint32(size-size/2))
	out = append(out, call[size/2:]...)
	if _, err := conn.Write(out); err != nil {
		return err
	}
	got := make([]byte, 4+size)
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if binary.BigEndian.Uint32(got) != 1<<31|uint32(size) || !bytes.Equal(got[4:], call) {
		return errors.New("another answer than what was sent")
	}
	return nil
}

func TestConnectionsAreCarriedBesideEachOtherAndAnswered(t *testing.T) {
	p := newPort()
	address := guest(t, p, everybody)
	host, end := pair(t)
	go func() { _ = homelink.Serve(t.Context(), host, maxRecord, echo{}) }()
	p.hosts <- end
	one, other := dial(t, address), dial(t, address)
	for _, size := range []int{4, 40, 99_000, maxRecord} {
		for _, conn := range []net.Conn{one, other} {
			if err := exchange(conn, size); err != nil {
				t.Errorf("%d bytes: %v", size, err)
			}
		}
	}
}

func TestAfterTheHostsEndWasReplacedOldConnectionsAreClosedAndNewOnesCarried(t *testing.T) {
	p := newPort()
	address := guest(t, p, everybody)
	host, end := pair(t)
	go func() { _ = homelink.Serve(t.Context(), host, maxRecord, echo{}) }()
	p.hosts <- end
	conn := dial(t, address)
	if err := exchange(conn, 1000); err != nil {
		t.Fatal(err)
	}
	_ = host.Close()
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		t.Errorf("a connection over the old end: %v, want its end", err)
	}
	waiting := dial(t, address) // before there is a host again
	host, end = pair(t)
	go func() { _ = homelink.Serve(t.Context(), host, maxRecord, echo{}) }()
	p.hosts <- end
	if err := exchange(waiting, 1000); err != nil {
		t.Error(err)
	}
}

// TestASessionBeginsAnewInTheMidstOfAMessage has another server at the host's end without the guest noticing, as happens to a frozen machine.
func TestASessionBeginsAnewInTheMidstOfAMessage(t *testing.T) {
	const mark = "NMhome\xff\xff"
	greeting := mark + "0123456789abcdef"
	for name, old := range map[string]string{
		"between frames":              greeting,
		"with greetings repeated":     greeting + greeting + greeting,
		"in the midst of a frame":     greeting + greeting + "\x00\x00\x00\x01\x00\x00\x10\x00x",
		"in the midst of a header":    greeting + "\x00\x00\x00",
		"with a frame that is none":   greeting + "\x00\x00\x00\x01\xff\x00\x10\x00x",
		"in the midst of a greeting":  greeting + mark + "0123",
		"before there was a greeting": mark[:5],
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, local := newPort(), newPort()
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					_ = homelink.Carry(ctx, p, local, everybody)
				}()
				defer func() { cancel(); <-ended }()
				host, end := net.Pipe()
				defer host.Close()
				p.hosts <- end
				if len(old) >= len(greeting) {
					go func() { _, _ = io.CopyN(io.Discard, host, int64(len(greeting))) }() // the answer to the old server
				}
				if _, err := host.Write([]byte(old)); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				go func() {
					for ctx.Err() == nil { // QEMU connects again where a server closes its end
						_ = host.SetDeadline(time.Time{})
						_ = homelink.Serve(ctx, open{host}, maxRecord, echo{})
					}
				}()
				for {
					conn, end := net.Pipe()
					local.hosts <- end
					err := exchange(conn, 1000)
					_ = conn.Close()
					if err == nil {
						return
					}
				}
			})
		})
	}
}

// open is a connection whose guest does not notice that a server closes it.
type open struct{ net.Conn }

func (o open) Close() error { return o.SetDeadline(time.Unix(1, 0)) }

func TestAConnectionThatIsNotAllowedIsClosed(t *testing.T) {
	p := newPort()
	address := guest(t, p, func(net.Addr) bool { return false })
	host, end := pair(t)
	go func() { _ = homelink.Serve(t.Context(), host, maxRecord, echo{}) }()
	p.hosts <- end
	if err := exchange(dial(t, address), 100); err == nil {
		t.Error("it was carried")
	}
}

// raw is the guest's end without a guest: what a hostile one sends.
func raw(t *testing.T, h homelink.Handler) net.Conn {
	t.Helper()
	host, end := pair(t)
	go func() { _ = homelink.Serve(t.Context(), host, maxRecord, h) }()
	_ = end.SetDeadline(time.Now().Add(patience))
	greeting := make([]byte, 24)
	if _, err := io.ReadFull(end, greeting); err != nil {
		t.Fatal(err)
	}
	if _, err := end.Write(append([]byte("rubbish before"), greeting...)); err != nil {
		t.Fatal(err)
	}
	return end
}

func send(t *testing.T, conn net.Conn, connection uint32, data []byte) {
	t.Helper()
	out := binary.BigEndian.AppendUint32(nil, connection)
	out = binary.BigEndian.AppendUint32(out, uint32(len(data)))
	if _, err := conn.Write(append(out, data...)); err != nil {
		t.Fatal(err)
	}
}

// closed reads the next frame, which closes a connection.
func closed(t *testing.T, conn net.Conn) uint32 {
	t.Helper()
	var header [8]byte
	if _, err := io.ReadFull(conn, header[:]); err != nil {
		t.Fatal(err)
	}
	if n := binary.BigEndian.Uint32(header[4:]); n != 0 {
		t.Fatalf("a frame of %d bytes, want one that closes a connection", n)
	}
	return binary.BigEndian.Uint32(header[:])
}

func TestACallThatIsTooLongClosesItsConnection(t *testing.T) {
	conn := raw(t, echo{})
	send(t, conn, 5, binary.BigEndian.AppendUint32(nil, 1<<31|(maxRecord+1)))
	if got := closed(t, conn); got != 5 {
		t.Errorf("connection %d is closed, want 5", got)
	}
	// In many fragments, too.
	for range 20 {
		send(t, conn, 6, append(binary.BigEndian.AppendUint32(nil, 10_000), make([]byte, 10_000)...))
	}
	if got := closed(t, conn); got != 6 {
		t.Errorf("connection %d is closed, want 6", got)
	}
}

func TestAGuestHasAFewConnections(t *testing.T) {
	conn := raw(t, echo{})
	half := binary.BigEndian.AppendUint32(nil, 1<<31|100)
	for n := range uint32(homelink.MaxConnections) {
		send(t, conn, n, half)
	}
	for n := uint32(1000); n < 1010; n++ {
		send(t, conn, n, half)
		if got := closed(t, conn); got != n {
			t.Errorf("connection %d is closed, want %d", got, n)
		}
	}
	send(t, conn, 3, nil) // it closes one of its own
	send(t, conn, 2000, append(binary.BigEndian.AppendUint32(nil, 1<<31|4), "call"...))
	var got [16]byte
	if _, err := io.ReadFull(conn, got[:]); err != nil || string(got[12:]) != "call" {
		t.Errorf("after another was closed a new connection is answered %q, %v", got, err)
	}
}
