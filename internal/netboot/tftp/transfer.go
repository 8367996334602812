package tftp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/ipv4"
)

// transfer sends one file from a port of its own (RFC 1350, section 4: the server's TID).
func (s *Server) transfer(ctx context.Context, r request, content []byte, to netip.AddrPort) error {
	conn, err := s.listen(ctx, 0)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	t := &transfer{request: r, content: content, conn: conn, to: to, sent: s.events.Sent}
	t.prepare()
	if ack := r.oack(len(content)); ack != nil {
		if err := t.until(0, func() error { return t.write(ack) }); err != nil {
			return err
		}
	}
	return t.run()
}

// transfer is one file on its way. Blocks are counted from 1 without end; on the wire their number wraps at 65536.
type transfer struct {
	request request
	content []byte
	conn    *net.UDPConn
	to      netip.AddrPort
	sent    func(netip.Addr, int64)

	acked    int // all blocks up to this one have arrived
	told     int // up to which sent was told
	repeated int // how often the last acknowledgement came again
	batch    *ipv4.PacketConn
	messages []ipv4.Message
	headers  []byte
	buffer   [512]byte
}

func (t *transfer) prepare() {
	t.batch = ipv4.NewPacketConn(t.conn)
	t.headers = make([]byte, 4*t.request.window)
	to := net.UDPAddrFromAddrPort(t.to)
	t.messages = make([]ipv4.Message, t.request.window)
	for i := range t.messages {
		t.messages[i] = ipv4.Message{Buffers: make([][]byte, 2), Addr: to}
	}
}

// blocks is how many blocks the file has: the last one is shorter than the others, if need be empty.
func (t *transfer) blocks() int { return len(t.content)/t.request.block + 1 }

// run sends windows until all is acknowledged (RFC 7440, section 3; a window of 1 is RFC 1350).
func (t *transfer) run() error {
	for t.acked < t.blocks() {
		last := min(t.acked+t.request.window, t.blocks())
		if err := t.until(last, func() error { return t.window(last) }); err != nil {
			return err
		}
	}
	return nil
}

// window sends the blocks after the acknowledged ones up to last, in one system call where the kernel takes them all.
func (t *transfer) window(last int) error {
	n := 0
	for block := t.acked + 1; block <= last; block++ {
		header := t.headers[4*n : 4*n+4]
		binary.BigEndian.PutUint16(header, opData)
		binary.BigEndian.PutUint16(header[2:], uint16(block))
		start := (block - 1) * t.request.block
		t.messages[n].Buffers[0] = header
		t.messages[n].Buffers[1] = t.content[start:min(start+t.request.block, len(t.content))]
		n++
	}
	for messages := t.messages[:n]; len(messages) > 0; {
		wrote, err := t.batch.WriteBatch(messages, 0)
		if err != nil {
			return err
		}
		messages = messages[wrote:]
	}
	if last > t.told && t.sent != nil { // repetitions are not told: it is progress that is counted
		t.sent(t.to.Addr(), int64(min(last*t.request.block, len(t.content))-t.told*t.request.block))
		t.told = last
	}
	return nil
}

func (t *transfer) write(packet []byte) error {
	_, err := t.conn.WriteToUDPAddrPort(packet, t.to)
	return err
}

// until sends, and sends again after a while, until the client acknowledges a block up to last: the last one, or an earlier one of the window,
// after which something was lost.
func (t *transfer) until(last int, send func() error) error {
	wait := firstWait
	if t.request.timeout > 0 {
		wait = time.Duration(t.request.timeout) * time.Second
	}
	for range maxTries {
		if err := send(); err != nil {
			return err
		}
		err := t.await(last, time.Now().Add(wait))
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if t.request.timeout == 0 {
			wait = min(2*wait, lastWait)
		}
	}
	return fmt.Errorf("the client is silent at block %d of %d", t.acked, t.blocks())
}

// await waits for an acknowledgement that moves the transfer on. Old ones, repeated by the network, are passed over: answering each would
// double all that follows (the sorcerer's apprentice, RFC 1123, section 4.2.3.1).
func (t *transfer) await(last int, deadline time.Time) error {
	if err := t.conn.SetReadDeadline(deadline); err != nil {
		return err
	}
	for {
		n, from, err := t.conn.ReadFromUDPAddrPort(t.buffer[:])
		if err != nil {
			return err
		}
		if from.Addr().Unmap() != t.to.Addr() || from.Port() != t.to.Port() || n < 4 {
			continue // another TID (RFC 1350, section 4)
		}
		number := binary.BigEndian.Uint16(t.buffer[2:])
		switch binary.BigEndian.Uint16(t.buffer[:]) {
		case opError:
			return fmt.Errorf("the client gave up: error %d", number)
		case opAck:
			ahead := int(number - uint16(t.acked)) // modulo 65536
			if last == 0 && number == 0 {
				return nil // of the OACK
			}
			if ahead > 0 && ahead <= last-t.acked {
				t.acked += ahead
				t.repeated = 0
				return nil
			}
			if ahead == 0 && t.request.window > 1 && last > 0 {
				if t.repeated++; t.repeated > maxTries {
					return errors.New("the client asks for the same block again and again")
				}
				return nil // the first block of the window was lost: it is sent again
			}
		}
	}
}
