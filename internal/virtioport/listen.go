package virtioport

import (
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lookEvery is how often it is looked whether the host has come: the driver has no event for it that can be waited for with others.
const lookEvery = 250 * time.Millisecond

// Listen returns a listener whose Accept returns the port each time that the host's end has come anew, and not before the connection that it
// returned last is closed.
func Listen(name string) net.Listener { return listen(name, Open) }

func listen(name string, open func(name string) (net.Conn, error)) net.Listener {
	l := &listener{name: name, open: open, free: make(chan struct{}, 1), closed: make(chan struct{})}
	l.free <- struct{}{}
	return l
}

type listener struct {
	name   string
	open   func(name string) (net.Conn, error)
	free   chan struct{} // holds an element while no connection is open
	closed chan struct{}
	once   sync.Once
}

// Accept waits for the host, and for the kernel to release the port: after close(2) returned, another thread's system call, such as the poll of an
// event loop, may hold the file for a moment, and longer where the processor of that thread has to wait for its host.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.free:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	for {
		conn, err := l.open(l.name)
		if err == nil {
			return &accepted{Conn: conn, listener: l}, nil
		}
		if !errors.Is(err, ErrNoHost) && !errors.Is(err, unix.EBUSY) {
			return nil, err
		}
		select {
		case <-time.After(lookEvery):
		case <-l.closed:
			return nil, net.ErrClosed
		}
	}
}

// Close ends Accept; an open connection stays.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr returns the port.
func (l *listener) Addr() net.Addr { return address(l.name) }

type accepted struct {
	net.Conn
	listener *listener
	once     sync.Once
}

// Close lets Accept go on.
func (a *accepted) Close() error {
	err := a.Conn.Close()
	a.once.Do(func() { a.listener.free <- struct{}{} })
	return err
}
