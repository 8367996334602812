package tftp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"
)

// Patience of one transfer. How long an acknowledgement is waited for follows what they take (RFC 6298); it is doubled at each repetition.
const (
	firstWait = 500 * time.Millisecond // while nothing is measured
	leastWait = 200 * time.Millisecond // a client may have to write to its memory what it got
	lastWait  = 4 * time.Second
	maxTries  = 10
	// silence of a client amid a transfer means that it has given that up, when it asks for the same again.
	silence = 2 * time.Second
)

// transfer is one file on its way to one client. It does nothing by itself: it says what to send when an acknowledgement came, or none.
// Blocks are counted from 1 without end; on the wire their number wraps at 65536.
type transfer struct {
	client  netip.AddrPort
	request request
	content []byte

	offered bool // the answer to the options waits for its acknowledgement
	acked   int  // all blocks up to this one have arrived
	sent    int  // the last block that was ever sent
	first   int  // the first and the last block that are sent now
	flight  int
	resent  bool // they are sent again without the client having asked
	tries   int  // how often the same was sent
	wait    time.Duration
	due     time.Time     // when the same is sent again
	begun   time.Time     // when it was first sent
	delay   time.Duration // until an acknowledgement comes, smoothed; 0: none was measured
	spread  time.Duration // of the delay
	untold  int64         // bytes that were sent and not yet told of
	moved   time.Time     // when the client last acknowledged something new
}

func newTransfer(client netip.AddrPort, r request, content []byte, now time.Time) *transfer {
	t := &transfer{client: client, request: r, content: content, offered: r.oack(len(content)) != nil, wait: firstWait}
	t.from(1)
	if r.timeout > 0 {
		t.wait = time.Duration(r.timeout) * time.Second
	}
	t.move(now)
	return t
}

// move begins to wait for what is sent next.
func (t *transfer) move(now time.Time) {
	t.moved, t.begun, t.tries = now, now, 1
	t.due = now.Add(t.wait)
}

// measure takes the time of an acknowledgement of something new. What was sent twice measures nothing, and keeps the longer wait (Karn's
// algorithm, RFC 6298, sections 2, 3 and 5).
func (t *transfer) measure(now time.Time) {
	if t.tries > 1 || t.request.timeout > 0 {
		return
	}
	if took := now.Sub(t.begun); t.delay == 0 {
		t.delay, t.spread = took, took/2
	} else {
		t.spread += ((took - t.delay).Abs() - t.spread) / 4
		t.delay += (took - t.delay) / 8
	}
	t.wait = min(max(t.delay+4*t.spread, leastWait), lastWait)
}

// blocks is how many blocks the file has: the last one is shorter than the others, if need be empty.
func (t *transfer) blocks() int { return len(t.content)/t.request.block + 1 }

// from lets the window be sent from a block on (RFC 7440, section 3; a window of 1 is RFC 1350).
func (t *transfer) from(first int) {
	t.first, t.flight = first, min(t.acked+t.request.window, t.blocks())
}

// next makes the packets to be sent now, one after the other in the same buffer, and tells how many bytes of content went out that had not
// before: repetitions are no progress.
func (t *transfer) next(buffer []byte, send func(packet []byte) error) (progress int64, err error) {
	if t.offered {
		return 0, send(t.request.oack(len(t.content)))
	}
	for block := t.first; block <= t.flight; block++ {
		binary.BigEndian.PutUint16(buffer, opData)
		binary.BigEndian.PutUint16(buffer[2:], uint16(block))
		start := (block - 1) * t.request.block
		n := copy(buffer[4:], t.content[start:min(start+t.request.block, len(t.content))])
		if err := send(buffer[:4+n]); err != nil {
			return progress, err
		}
		if block > t.sent {
			t.sent = block
			progress += int64(n)
		}
	}
	return progress, nil
}

// verdict is what follows from a packet.
type verdict int

const (
	nothing verdict = iota
	sendNext
	finished
)

// hear takes a packet of the client. Acknowledgements that tell nothing new are passed over: the network repeats them, and EDK2 acknowledges
// each block that it did not expect. Answering each would double all that follows (the sorcerer's apprentice, RFC 1123, section 4.2.3.1). An
// error ends the transfer.
func (t *transfer) hear(packet []byte, now time.Time) (verdict, error) {
	if len(packet) < 4 {
		return nothing, nil
	}
	number := binary.BigEndian.Uint16(packet[2:])
	switch op := binary.BigEndian.Uint16(packet); {
	case op == opError:
		return nothing, fmt.Errorf("the client aborted with error %d", number)
	case op != opAck:
		return nothing, nil
	case t.offered && number == 0:
		t.offered, t.resent = false, false
		t.measure(now)
		t.move(now)
		return sendNext, nil
	case t.offered:
		return nothing, nil
	}
	ahead := int(number - uint16(t.acked)) // modulo 65536
	switch {
	case ahead > 0 && ahead <= t.flight-t.acked:
		t.acked += ahead
		t.measure(now)
		t.move(now)
		switch {
		case t.acked == t.blocks():
			return finished, nil
		case t.acked < t.flight && t.resent:
			t.from(t.flight + 1) // it has told again what it had; the rest is on its way
		default: // after the last block of the window, or an earlier one after which something was lost
			t.resent = false
			t.from(t.acked + 1)
		}
		return sendNext, nil
	}
	return nothing, nil
}

// remind tells whether it is time to send the same again. An error ends the transfer.
func (t *transfer) remind(now time.Time) (bool, error) {
	if now.Before(t.due) {
		return false, nil
	}
	if t.tries++; t.tries > maxTries {
		return false, fmt.Errorf("the client is silent at block %d of %d", t.acked, t.blocks())
	}
	if t.request.timeout == 0 {
		t.wait = min(2*t.wait, lastWait)
	}
	t.due = now.Add(t.wait)
	t.resent = true
	t.from(t.acked + 1)
	return true, nil
}

// goesOn tells whether the client still waits for this transfer: it has not acknowledged anything yet, or has just now.
func (t *transfer) goesOn(now time.Time) bool {
	heard := t.acked > 0 || !t.offered && len(t.request.asked) > 0
	return !heard || now.Sub(t.moved) < silence
}
