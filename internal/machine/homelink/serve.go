package homelink

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/virtioport"
)

// greetEvery is how often the host greets until the guest answers, and greetings how often at most. Only greetings that the hypervisor has taken count,
// which takes none while the guest boots or is frozen. A guest that answers none of them does not hear the host, or the host does not hear it; a new
// connection makes the hypervisor begin anew, too (virtioport.Taken).
const (
	greetEvery = time.Second
	greetings  = 5
)

// errNoAnswer: the guest has not answered greetings that reached its machine.
var errNoAnswer = errors.New("the guest does not answer")

// Handler serves a call: ONC RPC, without its record mark. reply gets the answer, or nil. Serve waits until Handle returns.
type Handler interface {
	Serve(ctx context.Context, call []byte, reply func([]byte)) error
}

// Serve is the host's end: it serves what a guest says over a connection of its port, until that breaks or ctx ends. No call is longer than maxRecord
// bytes; a connection with a longer one is closed.
func Serve(ctx context.Context, guest net.Conn, maxRecord int, h Handler) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = guest.Close() })()
	from := bufio.NewReaderSize(guest, 64<<10)
	l := &link{guest: guest, taken: func() bool { return virtioport.Taken(guest) }, conns: map[uint32]*connection{}, maxRecord: maxRecord}
	if err := l.greet(from); err != nil {
		return err
	}
	buffer := make([]byte, maxFrame)
	for {
		f, err := readFrame(from, nil, buffer)
		if err != nil {
			return err
		}
		if err := l.take(ctx, f, h); err != nil {
			return err
		}
	}
}

// link is the connection to one guest.
type link struct {
	guest net.Conn
	// taken reports whether the hypervisor has read all that was sent to the guest.
	taken     func() bool
	maxRecord int
	// writing is held for a whole reply: those of one connection must not be mixed.
	writing sync.Mutex
	mu      sync.Mutex
	conns   map[uint32]*connection
}

// connection is one of the guest's kernel. Only the reader of the link touches it.
type connection struct {
	// record is what there is of the present call, and left what is missing of its present fragment.
	record []byte
	left   int
	// header is what there is of a record mark (RFC 5531, section 11); last: it is that of the record's last fragment.
	header []byte
	last   bool
}

// greet greets until the guest has sent the greeting back. Where it does not, the connection is closed.
func (l *link) greet(from *bufio.Reader) error {
	greeting := make([]byte, greetingBytes)
	copy(greeting, mark)
	if _, err := rand.Read(greeting[len(mark):]); err != nil {
		return err
	}
	answered := make(chan struct{})
	gaveUp := make(chan error, 1)
	go func() { gaveUp <- l.greetUntil(answered, greeting) }()
	_, err := awaitGreeting(from, greeting)
	close(answered)
	if err != nil {
		_ = l.guest.Close()
	}
	return cmp.Or(<-gaveUp, err)
}

// greetUntil sends the greeting until it is answered. Where it never is, the connection is closed.
func (l *link) greetUntil(answered <-chan struct{}, greeting []byte) error {
	tick := time.NewTicker(greetEvery)
	defer tick.Stop()
	for sent := 0; ; {
		if l.taken() {
			if sent == greetings {
				_ = l.guest.Close()
				return errNoAnswer
			}
			if _, err := l.guest.Write(greeting); err != nil {
				return nil //nolint:nilerr // whoever reads sees the connection's end
			}
			sent++
		}
		select {
		case <-tick.C:
		case <-answered:
			return nil
		}
	}
}

// take takes a frame and has the calls served that it completes.
func (l *link) take(ctx context.Context, f frame, h Handler) error {
	l.mu.Lock()
	c := l.conns[f.connection]
	switch {
	case len(f.data) == 0:
		delete(l.conns, f.connection)
	case c == nil && len(l.conns) < MaxConnections:
		c = &connection{}
		l.conns[f.connection] = c
	}
	l.mu.Unlock()
	switch {
	case len(f.data) == 0:
		return nil
	case c == nil: // one too many
		return l.refuse(f.connection)
	}
	for data := f.data; len(data) > 0; {
		call, rest, ok := c.next(data, l.maxRecord)
		if !ok {
			return l.refuse(f.connection)
		}
		data = rest
		if call == nil {
			continue
		}
		number := f.connection
		if err := h.Serve(ctx, call, func(reply []byte) { l.reply(number, c, reply) }); err != nil {
			return err
		}
	}
	return nil
}

// next takes bytes until a call is complete; ok is false for a call that is too long.
func (c *connection) next(data []byte, maxRecord int) (call, rest []byte, ok bool) {
	if len(c.header) < 4 {
		n := min(4-len(c.header), len(data))
		c.header = append(c.header, data[:n]...)
		data = data[n:]
		if len(c.header) < 4 {
			return nil, nil, true
		}
		word := binary.BigEndian.Uint32(c.header)
		c.last, c.left = word>>31 == 1, int(word&^(1<<31))
		if c.left > maxRecord-len(c.record) {
			return nil, nil, false
		}
	}
	n := min(c.left, len(data))
	c.record, c.left = append(c.record, data[:n]...), c.left-n
	if c.left > 0 {
		return nil, nil, true
	}
	c.header = c.header[:0]
	if c.last {
		call, c.record = c.record, nil
	}
	return call, data[n:], true
}

// refuse closes a connection.
func (l *link) refuse(number uint32) error {
	l.mu.Lock()
	delete(l.conns, number)
	l.mu.Unlock()
	l.writing.Lock()
	defer l.writing.Unlock()
	_, err := l.guest.Write(appendFrame(nil, number, nil))
	return err
}

// reply sends a reply, unless its connection has gone. Where it can't be sent the link is broken.
func (l *link) reply(number uint32, c *connection, reply []byte) {
	if reply == nil {
		return
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	current := l.conns[number] == c
	l.mu.Unlock()
	if !current {
		return
	}
	record := append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(reply)), 1<<31|uint32(len(reply))), reply...)
	out := make([]byte, 0, headerBytes+maxFrame)
	for len(record) > 0 {
		n := min(len(record), maxFrame)
		out = appendFrame(out[:0], number, record[:n])
		if _, err := l.guest.Write(out); err != nil {
			_ = l.guest.Close()
			return
		}
		record = record[n:]
	}
}
