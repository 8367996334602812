package condition

import "time"

// packet is one that waits.
type packet struct {
	data []byte
	at   time.Duration
}

// line holds packets until they leave. Those that overtake others are few, and have a line of their own.
type line struct {
	waiting, overtaking fifo
	bytes               int
	spare               [][]byte
}

// maxLineBytes bounds what waits in one direction: 10 Gbit/s for 200 ms.
const maxLineBytes = 256 << 20

// mostSpare bounds how many buffers are kept for packets to come, of 64 KiB at most each.
const mostSpare = 256

// put keeps a copy of a packet, or reports false if there is no room.
func (l *line) put(data []byte, at time.Duration, overtakes bool) bool {
	if l.bytes+len(data) > maxLineBytes {
		return false
	}
	l.bytes += len(data)
	p := packet{data: append(l.room(len(data)), data...), at: at}
	if overtakes {
		l.overtaking.push(p)
	} else {
		l.waiting.push(p)
	}
	return true
}

// next returns the packet that leaves first, and false if none waits. It stays.
func (l *line) next() (packet, bool) {
	f := l.first()
	if f.len() == 0 {
		return packet{}, false
	}
	return f.head(), true
}

// take takes away the packet that leaves first. Its data are valid until the next put.
func (l *line) take() {
	p := l.first().pop()
	l.bytes -= len(p.data)
	if len(l.spare) < mostSpare {
		l.spare = append(l.spare, p.data[:0])
	}
}

func (l *line) first() *fifo {
	if l.overtaking.len() > 0 && (l.waiting.len() == 0 || l.overtaking.head().at < l.waiting.head().at) {
		return &l.overtaking
	}
	return &l.waiting
}

// room returns an empty slice with room for a packet, from an earlier one if that was as large.
func (l *line) room(bytes int) []byte {
	if n := len(l.spare); n > 0 {
		spare := l.spare[n-1]
		l.spare = l.spare[:n-1]
		if cap(spare) >= bytes {
			return spare
		}
	}
	return make([]byte, 0, max(bytes, fullPacketBytes+headerBytes))
}

// fifo is a ring that grows.
type fifo struct {
	ring        []packet
	begin, size int
}

func (f *fifo) len() int     { return f.size }
func (f *fifo) head() packet { return f.ring[f.begin] }

func (f *fifo) push(p packet) {
	if f.size == len(f.ring) {
		grown := make([]packet, max(64, 2*f.size))
		for i := range f.size {
			grown[i] = f.ring[(f.begin+i)%len(f.ring)]
		}
		f.ring, f.begin = grown, 0
	}
	f.ring[(f.begin+f.size)%len(f.ring)] = p
	f.size++
}

func (f *fifo) pop() packet {
	p := f.ring[f.begin]
	f.ring[f.begin] = packet{}
	f.begin = (f.begin + 1) % len(f.ring)
	f.size--
	return p
}
