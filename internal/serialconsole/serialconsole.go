// Package serialconsole shares a machine's serial console among people: one reader takes what the machine prints and keeps the end of it in files,
// any number watch, and one at a time types.
//
// It must never hold up the machine: what a watcher does not read in time is skipped for that watcher. It never interprets what is printed, and
// grows no file beyond its bound. Start with Open.
package serialconsole

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Config is what a Console is made of.
type Config struct {
	// Dial connects to the machine's serial port. It is called again whenever the connection ends.
	Dial func(ctx context.Context) (net.Conn, error)
	// File is where the end of what was printed is kept: in File and File+".1", each of at most half of KeptBytes.
	File string
}

// KeptBytes bounds what is kept of a console, ShownBytes what of it is shown first to somebody who attaches.
const (
	KeptBytes  = 128 << 10
	ShownBytes = 16 << 10
)

// waitingBytes bounds what waits for one watcher.
const waitingBytes = 256 << 10

// firstRetry and lastRetry bound the pause between attempts to connect to the machine.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = time.Second
)

// BusyError: somebody else types on the console.
type BusyError struct {
	// By is who, "" if that is not known.
	By string
}

func (e *BusyError) Error() string {
	who := e.By
	if who == "" {
		who = "somebody"
	}
	return who + " types on this console"
}

// Console is one machine's serial console.
type Console struct {
	cfg    Config
	cancel context.CancelFunc
	ended  chan struct{}

	mu       sync.Mutex
	log      log
	port     net.Conn // nil while there is no connection
	watchers []*Watcher
	writer   *Watcher // nil while nobody types
	closed   bool
}

// Open begins to read a machine's console and returns at once. Close ends it.
func Open(cfg Config) *Console {
	ctx, cancel := context.WithCancel(context.Background())
	c := &Console{cfg: cfg, cancel: cancel, ended: make(chan struct{}), log: log{path: cfg.File}}
	go c.read(ctx)
	return c
}

// read connects to the machine and takes what it prints, until Close.
func (c *Console) read(ctx context.Context) {
	defer close(c.ended)
	pause := firstRetry
	for ctx.Err() == nil {
		conn, err := c.cfg.Dial(ctx)
		if err == nil {
			c.follow(ctx, conn)
			pause = firstRetry
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, lastRetry)
		case <-ctx.Done():
		}
	}
}

// follow takes what comes over one connection until that ends.
func (c *Console) follow(ctx context.Context, conn net.Conn) {
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	c.connected(conn)
	defer c.connected(nil)
	buffer := make([]byte, 32<<10)
	for {
		n, err := conn.Read(buffer)
		if n > 0 {
			c.printed(buffer[:n])
		}
		if err != nil {
			return
		}
	}
}

func (c *Console) connected(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.port = conn
}

// printed keeps what the machine printed and passes it on.
func (c *Console) printed(p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log.append(p)
	for _, w := range c.watchers {
		w.put(p)
	}
}

// Kept returns the end of what the machine has printed.
func (c *Console) Kept() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Kept(c.cfg.File)
}

// Attach begins with the end of what was printed and goes on with what is printed from then on. An api.ConsoleRequest says whether its caller types,
// too: a *BusyError refuses that while somebody else does, unless the request takes over.
func (c *Console) Attach(r api.ConsoleRequest) (*Watcher, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, net.ErrClosed
	}
	if r.Write && c.writer != nil {
		if !r.Force {
			return nil, &BusyError{By: c.writer.by}
		}
		who := r.By
		if who == "" {
			who = "somebody else"
		}
		former := c.writer
		former.put(notice(who + " took this console over"))
		c.detach(former)
	}
	w := &Watcher{console: c, by: r.By, more: make(chan struct{}, 1)}
	kept := Kept(c.cfg.File)
	if r.KeptOnly {
		w.waiting, w.over = kept, true
		return w, nil
	}
	w.put(kept[max(0, len(kept)-ShownBytes):])
	if r.Write {
		c.writer = w
	}
	c.watchers = append(c.watchers, w)
	return w, nil
}

// detach lets a watcher read what waits for it, and nothing more. mu is held.
func (c *Console) detach(w *Watcher) {
	if c.writer == w {
		c.writer = nil
	}
	c.watchers = slices.DeleteFunc(c.watchers, func(other *Watcher) bool { return other == w })
	w.end()
}

// Close ends all watchers' streams, once they have read what waits for them, and returns when nothing reads the machine's console any more.
func (c *Console) Close() {
	c.mu.Lock()
	c.closed = true
	for _, w := range slices.Clone(c.watchers) {
		c.detach(w)
	}
	c.mu.Unlock()
	c.cancel()
	<-c.ended
}

// errNotConnected: there is no way to the machine now.
var errNotConnected = errors.New("the machine's serial port is not connected")

// write types.
func (c *Console) write(w *Watcher, p []byte) (int, error) {
	c.mu.Lock()
	port, may := c.port, c.writer == w
	c.mu.Unlock()
	switch {
	case !may:
		return 0, io.ErrClosedPipe
	case port == nil:
		return 0, errNotConnected
	}
	return port.Write(p) // waits while the machine reads nothing; it ends with the connection
}

// Watcher is one end of a console: an io.ReadWriteCloser with CloseWrite.
type Watcher struct {
	console *Console
	by      string
	more    chan struct{} // there is something to read, or the end

	mu      sync.Mutex
	waiting []byte
	skipped int
	over    bool
}

func (w *Watcher) put(p []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	if len(w.waiting)+len(p) > waitingBytes {
		w.skipped += len(w.waiting)
		w.waiting = nil
	}
	w.waiting = append(w.waiting, p...)
	w.wake()
}

func (w *Watcher) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.wake()
}

func (w *Watcher) wake() {
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// Read returns what the machine printed; io.EOF when the console is closed, or somebody took it over.
func (w *Watcher) Read(p []byte) (int, error) {
	for len(p) > 0 {
		w.mu.Lock()
		if w.skipped > 0 {
			w.waiting = append(notice(fmt.Sprintf("%d bytes were skipped", w.skipped)), w.waiting...)
			w.skipped = 0
		}
		n := copy(p, w.waiting)
		w.waiting = w.waiting[n:]
		over := w.over
		w.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		if over {
			return 0, io.EOF
		}
		<-w.more
	}
	return 0, nil
}

// Write types, if the request asked for that.
func (w *Watcher) Write(p []byte) (int, error) { return w.console.write(w, p) }

// CloseWrite leaves the keyboard to others; reading goes on.
func (w *Watcher) CloseWrite() error {
	w.console.mu.Lock()
	defer w.console.mu.Unlock()
	if w.console.writer == w {
		w.console.writer = nil
	}
	return nil
}

// Close ends the stream.
func (w *Watcher) Close() error {
	w.console.mu.Lock()
	defer w.console.mu.Unlock()
	w.console.detach(w)
	return nil
}

// notice is a line that the machine has not printed.
func notice(text string) []byte { return []byte("\r\n[nearmetal: " + text + "]\r\n") }
