package homelink

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestAGuestThatIsNotHeardGetsANewConnection has a hypervisor that takes all and brings nothing: QEMU does so once a host's end was replaced while the machine
// was paused.
func TestAGuestThatIsNotHeardGetsANewConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, hypervisor := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, hypervisor) }()
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := Serve(ctx, host, 1000, nil); !errors.Is(err, errNoAnswer) {
			t.Errorf("serving ended with %v", err)
		}
		if took := time.Since(began); took != greetings*greetEvery {
			t.Errorf("the connection was given up after %v, want %v", took, greetings*greetEvery)
		}
		if _, err := hypervisor.Write([]byte{0}); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the hypervisor finds the connection open: %v", err)
		}
	})
}

// TestAGuestThatIsFrozenKeepsItsConnection has a hypervisor that takes nothing for an hour.
func TestAGuestThatIsFrozenKeepsItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, guest := net.Pipe()
		defer func() { _, _ = host.Close(), guest.Close() }()
		var unread atomic.Int32 // greetings
		l := &link{guest: counted{host, &unread}, taken: func() bool { return unread.Load() == 0 }}
		greeted := make(chan error, 1)
		go func() { greeted <- l.greet(bufio.NewReader(host)) }()
		time.Sleep(time.Hour)
		select {
		case err := <-greeted:
			t.Fatalf("the connection was given up: %v", err)
		default:
		}
		if n := unread.Swap(0); n != 1 {
			t.Errorf("%d greetings wait for the guest, want 1", n)
		}
		go func() { _, _ = io.Copy(guest, guest) }()
		if err := <-greeted; err != nil {
			t.Errorf("after it goes on: %v", err)
		}
	})
}

// counted counts what is written to it, and does not wait until that is read.
type counted struct {
	net.Conn
	unread *atomic.Int32
}

func (c counted) Write(p []byte) (int, error) {
	c.unread.Add(1)
	go func() { _, _ = c.Conn.Write(p) }()
	return len(p), nil
}
