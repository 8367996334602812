package guestlink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearmetal/nearmetal/internal/virtioport"
)

// Client is the host's end of one guest. It connects when it is first used and keeps the connection. It is safe for concurrent use.
type Client struct {
	transport *http.Transport
	mu        sync.Mutex
	conns     []net.Conn
	closed    bool
	// unheard counts connections that were closed because the guest was not heard, inARow those since it was heard last.
	unheard, inARow atomic.Int64
}

// NewClient returns a client of the guest that dial connects to.
func NewClient(dial func(ctx context.Context) (net.Conn, error)) *Client {
	c := &Client{}
	c.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := dial(ctx)
			if err != nil {
				return nil, err
			}
			return c.keep(conn)
		},
		Protocols: onlyHTTP2(), MaxConnsPerHost: 1, DisableCompression: true,
	}
	return c
}

// keep notes a connection for Close. One that came before it has ended: there is one at a time.
func (c *Client) keep(conn net.Conn) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.Join(net.ErrClosed, conn.Close())
	}
	h := &heard{Conn: conn, first: make(chan struct{}), closed: make(chan struct{})}
	c.conns = append(c.conns[:0], h)
	go c.await(h)
	return h, nil
}

// A guest answers the first words of a connection at once, unless it has not opened its port, or is frozen: then its hypervisor takes none. Where words
// that were taken bring nothing for so many looks, the hypervisor has lost what the guest says, and a new connection brings it back (virtioport.Taken).
// A guest on a busy host may also be slow. So each connection after one that was not heard gets twice the looks, mostDoublings times.
const (
	lookEvery     = time.Second
	mostLooks     = 5
	mostDoublings = 4
)

// await closes a connection over which the guest is not heard.
func (c *Client) await(h *heard) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	most := mostLooks << min(c.inARow.Load(), mostDoublings)
	for looks := 0; looks < most; {
		select {
		case <-tick.C:
		case <-h.first:
			c.inARow.Store(0)
			return
		case <-h.closed:
			return
		}
		if virtioport.Taken(h.Conn) {
			looks++
		}
	}
	c.inARow.Add(1)
	c.unheard.Add(1)
	_ = h.Close()
}

// heard is a connection that notes when the guest is heard.
type heard struct {
	net.Conn
	hear, end     sync.Once
	first, closed chan struct{}
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	if n > 0 {
		h.hear.Do(func() { close(h.first) })
	}
	return n, err
}

// Close ends the connection.
func (h *heard) Close() error {
	h.end.Do(func() { close(h.closed) })
	return h.Conn.Close()
}

// Close ends the connection, and with it everything that goes over it.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.transport.CloseIdleConnections()
}

// maxComplaint bounds what is read of a guest's reason.
const maxComplaint = 1000

// base names nobody: there is one guest at the other end.
const base = "http://guest"

// Setup gives the guest its setup and returns when that is in force. It waits for a guest that is still booting, until ctx ends.
func (c *Client) Setup(ctx context.Context, s Setup) error {
	body, err := json.Marshal(s)
	if err != nil {
		return err
	}
	answer, err := c.put(ctx, setupPath, body)
	if err != nil {
		return fmt.Errorf("the guest does not take its setup: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the guest refuses its setup: %s", complaint(answer))
	}
	return nil
}

// Volumes has the guest mount and unmount, and returns when it has. It returns an error with ErrBusy and the guest's words while files of a volume that goes
// are open, and ErrOld where the guest knows no volumes.
func (c *Client) Volumes(ctx context.Context, v Volumes) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	answer, err := c.put(ctx, volumesPath, body)
	if err != nil {
		return fmt.Errorf("the guest does not take its volumes: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	switch answer.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusConflict:
		return fmt.Errorf("%w: %s", ErrBusy, strings.TrimPrefix(complaint(answer), ErrBusy.Error()+": "))
	case http.StatusNotFound:
		return ErrOld
	}
	return fmt.Errorf("the guest can't change its volumes: %s", complaint(answer))
}

// put sends what is to be in force, again where the guest was not heard: what arrives twice does no harm.
func (c *Client) put(ctx context.Context, path string, body []byte) (*http.Response, error) {
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodPut, base+path, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		unheard := c.unheard.Load()
		answer, err := c.transport.RoundTrip(request)
		if err == nil || ctx.Err() != nil || c.unheard.Load() == unheard {
			return answer, err
		}
	}
}

// complaint is what a guest says is wrong, fit for a terminal.
func complaint(answer *http.Response) string {
	text, _ := io.ReadAll(io.LimitReader(answer.Body, maxComplaint))
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(bytes.TrimSpace(text)), "?"))
	if clean == "" {
		return answer.Status
	}
	return clean
}

// Dial connects to a TCP port of the guest.
func (c *Client) Dial(ctx context.Context, port int) (net.Conn, error) {
	// The connection outlives the call.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	read, write := io.Pipe()
	request, err := http.NewRequestWithContext(life, http.MethodPost, base+dialPath+"?port="+strconv.Itoa(port), read)
	if err == nil {
		var answer *http.Response
		if answer, err = c.transport.RoundTrip(request); err == nil {
			if answer.StatusCode == http.StatusOK && stop() {
				return &stream{Reader: answer.Body, body: answer.Body, write: write, end: end}, nil
			}
			err = errors.New(complaint(answer))
			_ = answer.Body.Close()
		}
	}
	end()
	_ = write.Close()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return nil, err
}

// stream is a connection to a guest's port.
type stream struct {
	io.Reader
	body  io.Closer
	write *io.PipeWriter
	end   context.CancelFunc
	once  sync.Once
}

func (s *stream) Write(p []byte) (int, error) { return s.write.Write(p) }

// CloseWrite ends what is sent.
func (s *stream) CloseWrite() error { return s.write.Close() }

// Close ends both ways.
func (s *stream) Close() error {
	s.once.Do(func() {
		_ = s.write.Close()
		s.end()
		_ = s.body.Close()
	})
	return nil
}

func (s *stream) LocalAddr() net.Addr  { return address{} }
func (s *stream) RemoteAddr() net.Addr { return address{} }

// Deadlines are not supported: whoever wants an end closes.
func (s *stream) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (s *stream) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (s *stream) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

// address is that of a guest, by its port.
type address struct{}

func (address) Network() string { return "virtio-serial" }
func (address) String() string  { return Port }
