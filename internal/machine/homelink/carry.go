package homelink

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
)

// Carry is the guest's end: it carries what local accepts over what port accepts until ctx ends. A connection waits until the host is there. Accept
// of port returns the host's next connection once the one before is closed. allowed says which connections are carried.
func Carry(ctx context.Context, port, local net.Listener, allowed func(net.Addr) bool) error {
	c := &carrier{begun: make(chan struct{})}
	defer context.AfterFunc(ctx, func() { _, _ = port.Close(), local.Close() })()
	go func() {
		for {
			conn, err := local.Accept()
			if err != nil {
				return
			}
			if !allowed(conn.RemoteAddr()) {
				_ = conn.Close()
				continue
			}
			go c.carry(ctx, conn)
		}
	}()
	for {
		host, err := port.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("the home's port: %w", err)
		}
		stop := context.AfterFunc(ctx, func() { _ = host.Close() })
		c.serve(host)
		stop()
		_ = host.Close()
	}
}

// carrier carries connections over the present session.
type carrier struct {
	mu sync.Mutex
	// now is the session, nil while there is none; begun is closed when there is one.
	now   *session
	begun chan struct{}
	last  uint32
}

// session is one connection of the host, after the greeting.
type session struct {
	host    net.Conn
	writing sync.Mutex
	// conns are guarded by the carrier.
	conns map[uint32]net.Conn
}

// serve serves one connection of the host until it breaks. The host's server may be another one from one byte to the next, so that the end of a frame
// never comes: a greeting begins a session wherever it is found.
func (c *carrier) serve(host net.Conn) {
	from := bufio.NewReaderSize(host, 64<<10)
	for {
		greeting, err := awaitGreeting(from, nil)
		if err != nil {
			return
		}
		for greeting != nil {
			if _, err := host.Write(greeting); err != nil {
				return
			}
			greeting, err = c.session(host, from, greeting)
			if errors.Is(err, errNoFrame) {
				_, err = host.Write(lost)
			}
			if err != nil {
				return
			}
		}
	}
}

// session passes on what the host sends after a greeting. It returns the next greeting where that follows a frame.
func (c *carrier) session(host net.Conn, from *bufio.Reader, greeting []byte) (next []byte, err error) {
	s := &session{host: host, conns: map[uint32]net.Conn{}}
	c.mu.Lock()
	c.now = s
	close(c.begun)
	c.mu.Unlock()
	defer c.end(s)
	buffer := make([]byte, maxFrame)
	for {
		// The host may have sent its greeting again before it had the answer.
		if start, err := from.Peek(len(mark)); err == nil && string(start) == mark {
			if next, err = awaitGreeting(from, nil); err != nil || !bytes.Equal(next, greeting) {
				return next, err
			}
			continue
		}
		f, err := readFrame(from, host, buffer)
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		conn := s.conns[f.connection]
		c.mu.Unlock()
		if conn == nil {
			continue
		}
		if len(f.data) == 0 {
			_ = conn.Close()
		} else if _, err := conn.Write(f.data); err != nil {
			_ = conn.Close()
		}
	}
}

// end closes all connections of a session.
func (c *carrier) end(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now, c.begun = nil, make(chan struct{})
	for _, conn := range s.conns {
		_ = conn.Close()
	}
}

// join gives a connection its number in the present session, once there is one.
func (c *carrier) join(ctx context.Context, conn net.Conn) (*session, uint32) {
	for {
		c.mu.Lock()
		if c.now != nil {
			c.last++
			c.now.conns[c.last] = conn
			s, number := c.now, c.last
			c.mu.Unlock()
			return s, number
		}
		begun := c.begun
		c.mu.Unlock()
		select {
		case <-begun:
		case <-ctx.Done():
			return nil, 0
		}
	}
}

// carry sends what a connection says to the host.
func (c *carrier) carry(ctx context.Context, conn net.Conn) {
	defer func() { _ = conn.Close() }()
	s, number := c.join(ctx, conn)
	if s == nil {
		return
	}
	defer func() {
		c.mu.Lock()
		delete(s.conns, number)
		c.mu.Unlock()
		_ = s.send(number, nil)
	}()
	buffer := make([]byte, maxFrame)
	for {
		n, err := conn.Read(buffer)
		if n > 0 && s.send(number, buffer[:n]) != nil || err != nil {
			return
		}
	}
}

func (s *session) send(number uint32, data []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	_, err := s.host.Write(appendFrame(make([]byte, 0, headerBytes+len(data)), number, data))
	return err
}
