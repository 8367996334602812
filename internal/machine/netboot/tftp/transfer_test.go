package tftp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// wire is a line between a transfer and a client that follows RFC 1350 and RFC 7440. It loses and doubles packets as drawn.
type wire struct {
	t        *rapid.T
	transfer *transfer
	now      time.Time
	lossy    bool
	got      []byte
	expected int // the client's next block
	since    int // its blocks since it acknowledged
	packets  [][]byte
	sent     int
	progress int64
}

func (w *wire) send(packet []byte) error {
	w.sent++
	if !w.lossy || rapid.IntRange(0, 9).Draw(w.t, "lost") > 0 {
		w.packets = append(w.packets, bytes.Clone(packet))
	}
	return nil
}

// answers are the client's acknowledgements of what has arrived.
func (w *wire) answers() (acks []uint16) {
	for _, p := range w.packets {
		if p[1] == opOACK {
			acks = append(acks, 0)
			continue
		}
		w.since++
		in := binary.BigEndian.Uint16(p[2:]) == uint16(w.expected)
		if in {
			w.got = append(w.got, p[4:]...)
			w.expected++
		}
		if last := in && len(p)-4 < w.transfer.request.block; w.since >= w.transfer.request.window || last || !in {
			acks = append(acks, uint16(w.expected-1))
			w.since = 0
		}
	}
	w.packets = nil
	return acks
}

func TestAFileArrivesWholeHoweverPacketsAreLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		content := rapid.SliceOfN(rapid.Byte(), 0, 3000).Draw(t, "content")
		r := request{name: "a", block: rapid.IntRange(8, 600).Draw(t, "block"), window: rapid.SampledFrom([]int{1, 1, 2, 8, 64}).Draw(t, "window")}
		if r.window > 1 || rapid.Bool().Draw(t, "options") {
			r.asked = []string{"blksize", "windowsize"}
		}
		begin := time.Unix(0, 0)
		w := &wire{t: t, now: begin, expected: 1, lossy: rapid.Bool().Draw(t, "lossy")}
		w.transfer = newTransfer(netip.AddrPort{}, r, content, begin)
		buffer := make([]byte, 4+r.block)
		next := func() {
			n, err := w.transfer.next(buffer, w.send)
			if err != nil {
				t.Fatal(err)
			}
			w.progress += n
		}
		next()
		for complete := false; !complete; {
			acks := w.answers()
			silent := true
			for _, number := range acks {
				if w.lossy && rapid.IntRange(0, 9).Draw(t, "ack") == 0 {
					continue
				}
				verdict, err := w.transfer.hear(binary.BigEndian.AppendUint16([]byte{0, opAck}, number), w.now)
				if err != nil {
					t.Fatal(err)
				}
				complete = complete || verdict == finished
				if verdict == sendNext {
					silent = false
					next()
				}
			}
			if silent && !complete {
				if w.lossy {
					w.now = w.now.Add(lastWait)
				}
				again, err := w.transfer.remind(w.now)
				if err != nil {
					return // the line lost the same ten times: the client is told gone
				}
				if !again {
					t.Fatalf("nothing is sent any more: block %d of %d", w.transfer.acked, w.transfer.blocks())
				}
				next()
			}
		}
		if !bytes.Equal(w.got, content) || w.progress != int64(len(content)) {
			t.Fatalf("%d bytes of %d came, %d were told as sent", len(w.got), len(content), w.progress)
		}
		least := w.transfer.blocks()
		if len(r.asked) > 0 {
			least++
		}
		if !w.lossy && w.sent != least {
			t.Fatalf("%d packets were sent over a line that loses nothing; %d are needed", w.sent, least)
		}
	})
}

func TestAnOldAcknowledgementIsNotAnswered(t *testing.T) {
	x := newTransfer(netip.AddrPort{}, request{block: 512, window: 1}, make([]byte, 5000), time.Unix(0, 0))
	ack := func(n byte) verdict {
		v, err := x.hear([]byte{0, opAck, 0, n}, time.Unix(0, 0))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if ack(1) != sendNext || ack(2) != sendNext {
		t.Fatal("an acknowledged block is not followed by the next")
	}
	for _, n := range []byte{0, 1, 2, 9} {
		if v := ack(n); v != nothing {
			t.Errorf("acknowledgement %d while block 3 is awaited: %v", n, v)
		}
	}
}

func TestASilentClientIsGivenUpAfterATime(t *testing.T) {
	now := time.Unix(0, 0)
	x := newTransfer(netip.AddrPort{}, request{block: 512, window: 1}, make([]byte, 5000), now)
	if again, err := x.remind(now.Add(firstWait - 1)); again || err != nil {
		t.Errorf("sent again before its time: %v, %v", again, err)
	}
	for i := range maxTries - 1 {
		now = x.due
		if again, err := x.remind(now); !again || err != nil {
			t.Fatalf("repetition %d: %v, %v", i+1, again, err)
		}
	}
	if _, err := x.remind(x.due); err == nil {
		t.Error("a silent client is never given up")
	}
	if took := now.Sub(time.Unix(0, 0)); took > 40*time.Second {
		t.Errorf("that took %s", took)
	}
}

// Each block of a file is acknowledged a time after it was last sent; the next is how long the server then waits for one that is lost.
func TestHowLongIsWaitedFollowsWhatTheLineTakes(t *testing.T) {
	for _, c := range []struct {
		name        string
		request     request
		delay       time.Duration
		least, most time.Duration // of the wait
		repetitions int           // at most, in all
	}{
		{"fast", request{block: 512, window: 1}, time.Millisecond, leastWait, leastWait, 0},
		{"slower than the first wait", request{block: 512, window: 1}, 900 * time.Millisecond, 900 * time.Millisecond, 2 * time.Second, 2},
		{"slower than the last wait", request{block: 512, window: 1}, 2 * lastWait, lastWait, lastWait, 1000},
		{"as the client asks", request{block: 512, window: 1, timeout: 3}, time.Millisecond, 3 * time.Second, 3 * time.Second, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := time.Unix(0, 0)
			x := newTransfer(netip.AddrPort{}, c.request, make([]byte, 512*100), now)
			repetitions := 0
			for block := uint16(1); block <= 50; block++ {
				for answer := now.Add(c.delay); x.due.Before(answer); repetitions++ {
					if again, err := x.remind(x.due); !again || err != nil {
						t.Fatalf("block %d: %v, %v", block, again, err)
					}
				}
				now = now.Add(c.delay)
				if v, err := x.hear(binary.BigEndian.AppendUint16([]byte{0, opAck}, block), now); v != sendNext || err != nil {
					t.Fatalf("block %d: %v, %v", block, v, err)
				}
			}
			if x.wait < c.least || x.wait > c.most || repetitions > c.repetitions {
				t.Errorf("after acknowledgements that took %s, %s are waited for one; want %s to %s. %d repetitions, want at most %d",
					c.delay, x.wait, c.least, c.most, repetitions, c.repetitions)
			}
		})
	}
}

// edk2 is a client as UEFI firmware has it, on a line with a delay: it acknowledges each block that it did not expect by what it has
// (Mtftp4RrqHandleData), and asks for windows of 4.
type edk2 struct {
	transfer  *transfer
	now       time.Time
	delay     time.Duration
	lost      uint16 // the block that the line loses, once
	line      []flying
	sent      int
	has       uint16
	unacked   int
	completed bool
}

// flying is a block or an acknowledgement on its way.
type flying struct {
	arrives time.Time
	number  uint16
	ack     bool
}

func (c *edk2) send() {
	_, _ = c.transfer.next(make([]byte, 4+c.transfer.request.block), func(packet []byte) error {
		c.sent++
		number := binary.BigEndian.Uint16(packet[2:])
		if number == c.lost {
			c.lost = 0
			return nil
		}
		c.line = append(c.line, flying{arrives: c.now.Add(c.delay), number: number})
		return nil
	})
}

func (c *edk2) acknowledge() {
	c.unacked = 0
	c.line = append(c.line, flying{c.now.Add(c.delay), c.has, true})
}

// step lets the next thing happen.
func (c *edk2) step() error {
	if len(c.line) == 0 {
		c.now = c.transfer.due
		again, err := c.transfer.remind(c.now)
		if again {
			c.send()
		}
		return err
	}
	p := c.line[0]
	c.line, c.now = c.line[1:], p.arrives
	switch {
	case p.ack:
		v, err := c.transfer.hear(binary.BigEndian.AppendUint16([]byte{0, opAck}, p.number), c.now)
		if v == sendNext {
			c.send()
		}
		c.completed = v == finished
		return err
	case p.number != c.has+1:
		c.acknowledge()
	default:
		c.has++
		if c.unacked++; c.unacked == c.transfer.request.window || int(c.has) == c.transfer.blocks() {
			c.acknowledge()
		}
	}
	return nil
}

func TestALossIsNotMultipliedByAClientThatAcknowledgesWhatItDidNotExpect(t *testing.T) {
	const window = 4
	for _, delay := range []time.Duration{200 * time.Microsecond, 5 * time.Millisecond} {
		for lost := range uint16(12) {
			begin := time.Unix(0, 0)
			x := newTransfer(netip.AddrPort{}, request{block: 1468, window: window}, make([]byte, 1<<20), begin)
			c := &edk2{transfer: x, now: begin, delay: delay, lost: lost + 1}
			c.send()
			var err error
			for err == nil && !c.completed {
				err = c.step()
			}
			if err != nil || c.sent > x.blocks()+2*window {
				t.Errorf("block %d was lost, acknowledgements take %s: %d packets were sent for %d blocks, %v", lost+1, 2*delay, c.sent, x.blocks(), err)
			}
		}
	}
}
