package nbd

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
)

// The numbers of the transmission: proto.md, "Transmission phase", "Request types" and "Error values".
const (
	magicRequest = 0x25609513
	magicReply   = 0x67446698

	commandRead, commandWrite, commandDisconnect, commandFlush = 0, 1, 2, 3
	commandFUA                                                 = 1 << 0

	errnoPermission, errnoIO, errnoInvalid, errnoNoSpace = 1, 5, 22, 28
)

const (
	requestBytes = 28
	replyBytes   = 16
	// mostRequests is how many of a client's requests are under way at once, mostBytes how many bytes their data has in all.
	mostRequests = 32
	mostBytes    = 64 << 20
	// readAhead is what is taken from the connection at once, if there is as much.
	readAhead = 64 << 10
)

// request is one of a client. data is what is to be written, or has been read.
type request struct {
	command, flags uint16
	cookie, offset uint64
	length         uint32
	data           []byte
}

// transmission is the state of one connection.
type transmission struct {
	conn   net.Conn
	export Export
	// sending is held while a reply is sent.
	sending sync.Mutex
	under   sync.WaitGroup
	// places are for requests, room for their bytes.
	places chan struct{}
	room   *budget
	data   sync.Pool
}

// transmit serves requests until the client leaves, and returns when all of them are done.
func transmit(conn net.Conn, export Export) error {
	t := &transmission{conn: conn, export: export, places: make(chan struct{}, mostRequests), room: newBudget(mostBytes)}
	defer t.under.Wait()
	in := bufio.NewReaderSize(conn, readAhead)
	for {
		r, err := t.receive(in)
		if err != nil {
			return err
		}
		if r.command == commandDisconnect {
			return errLeft
		}
		t.places <- struct{}{}
		t.under.Go(func() {
			defer func() { <-t.places }()
			t.carryOut(r)
		})
	}
}

// receive reads the next request, with its data.
func (t *transmission) receive(in *bufio.Reader) (*request, error) {
	var head [requestBytes]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, err
	}
	if binary.BigEndian.Uint32(head[:]) != magicRequest {
		return nil, errors.New("the client sent no request")
	}
	r := &request{
		flags: binary.BigEndian.Uint16(head[4:]), command: binary.BigEndian.Uint16(head[6:]), cookie: binary.BigEndian.Uint64(head[8:]),
		offset: binary.BigEndian.Uint64(head[16:]), length: binary.BigEndian.Uint32(head[24:]),
	}
	if r.command != commandRead && r.command != commandWrite {
		return r, nil
	}
	if r.length > maxPayload {
		// What would follow a write can't be told from the next request.
		return nil, fmt.Errorf("the client asked for %d bytes at once; at most %d are possible", r.length, maxPayload)
	}
	t.room.take(int(r.length))
	r.data = t.buffer(int(r.length))
	if r.command == commandWrite {
		if _, err := io.ReadFull(in, r.data); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// buffer returns memory for data.
func (t *transmission) buffer(length int) []byte {
	if b, ok := t.data.Get().(*[]byte); ok && cap(*b) >= length {
		return (*b)[:length]
	}
	return make([]byte, length)
}

// carryOut does what was requested, and replies.
func (t *transmission) carryOut(r *request) {
	err := t.do(r)
	head := make([]byte, 0, replyBytes)
	head = binary.BigEndian.AppendUint32(head, magicReply)
	head = binary.BigEndian.AppendUint32(head, numberOf(err))
	head = binary.BigEndian.AppendUint64(head, r.cookie)
	out := net.Buffers{head}
	if r.command == commandRead && err == nil {
		out = append(out, r.data)
	}
	t.sending.Lock()
	_, err = out.WriteTo(t.conn)
	t.sending.Unlock()
	if err != nil {
		_ = t.conn.Close() // which receive sees
	}
	if r.data != nil {
		t.data.Put(&r.data)
		t.room.give(int(r.length))
	}
}

// numbered is an error with the number by which clients hear of it.
type numbered struct {
	number uint32
	text   string
}

func (e numbered) Error() string { return e.text }

// do reads, writes or flushes.
func (t *transmission) do(r *request) error {
	writes := r.command == commandWrite
	if writes || r.command == commandRead {
		if r.offset > uint64(t.export.SizeBytes) || uint64(r.length) > uint64(t.export.SizeBytes)-r.offset {
			if writes {
				return numbered{errnoNoSpace, "a write past the end"}
			}
			return numbered{errnoInvalid, "a read past the end"}
		}
	}
	if writes && t.export.ReadOnly {
		return numbered{errnoPermission, "a write to what is read-only"}
	}
	switch r.command {
	case commandRead:
		if r.flags != 0 {
			return numbered{errnoInvalid, "a read with flags"}
		}
		_, err := t.export.Device.ReadAt(r.data, int64(r.offset))
		return err
	case commandWrite:
		if r.flags&^commandFUA != 0 {
			return numbered{errnoInvalid, "a write with unknown flags"}
		}
		if _, err := t.export.Device.WriteAt(r.data, int64(r.offset)); err != nil {
			return err
		}
		if r.flags&commandFUA == 0 {
			return nil
		}
		return t.export.Device.Sync()
	case commandFlush:
		if t.export.ReadOnly {
			return nil
		}
		return t.export.Device.Sync()
	default:
		return numbered{errnoInvalid, "an unknown request"}
	}
}

// numberOf is the number of an error in replies, 0 for none.
func numberOf(err error) uint32 {
	var known numbered
	switch {
	case err == nil:
		return 0
	case errors.As(err, &known):
		return known.number
	case errors.Is(err, syscall.ENOSPC):
		return errnoNoSpace
	default:
		return errnoIO
	}
}

// budget bounds the bytes that requests have in memory. One request takes from it at a time.
type budget struct {
	mu   sync.Mutex
	left int
	more *sync.Cond
}

func newBudget(bytes int) *budget {
	b := &budget{left: bytes}
	b.more = sync.NewCond(&b.mu)
	return b
}

func (b *budget) take(bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.left < bytes {
		b.more.Wait()
	}
	b.left -= bytes
}

func (b *budget) give(bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += bytes
	b.more.Signal()
}
