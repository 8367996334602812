package condition

import (
	"math/rand/v2"
	"time"
)

// fullPacketBytes is a packet of Ethernet's size.
const fullPacketBytes = 1500

// fate is what becomes of one packet.
type fate struct {
	lost, overflowed bool
	// at is when it leaves, since the model's beginning, and again when its second does, if it is duplicated.
	at, again  time.Duration
	duplicated bool
	// overtakes: it leaves at once, before those that wait.
	overtakes bool
	corrupted bool
	// bit is the one that turns over, counted from the packet's first.
	bit int
}

// model decides the fates of packets in one direction, one after the other.
type model struct {
	c      Condition
	random *rand.Rand
	// free is when the rate has let go of all that came so far, and last when the last packet leaves that waits for its delay.
	free, last time.Duration
}

func newModel(c Condition) *model {
	return &model{c: c, random: rand.New(rand.NewPCG(c.Seed, 0x6e656172))}
}

// next decides on a packet that comes at a time, which never goes back.
func (m *model) next(now time.Duration, bytes int) fate {
	var f fate
	// Each chance is drawn for each packet, so that one condition does not change the draws of another.
	lose, double, flip, overtake, vary := m.random.Float64(), m.random.Float64(), m.random.Float64(), m.random.Float64(), m.random.Float64()
	bit := m.random.Uint64()
	if lose < m.c.Loss {
		f.lost = true
		return f
	}
	sent, ok := m.send(now, bytes)
	if !ok {
		f.overflowed = true
		return f
	}
	var sentAgain time.Duration
	if double < m.c.Duplicate { // it takes its time on the line twice
		sentAgain, f.duplicated = m.send(now, bytes)
	}
	if flip < m.c.Corrupt && bytes > 0 {
		f.corrupted, f.bit = true, int(bit%uint64(8*bytes))
	}
	if overtake < m.c.Reorder {
		f.overtakes, f.at, f.again = true, sent, sentAgain
		return f
	}
	wait := m.c.Delay + time.Duration((2*vary-1)*float64(m.c.Jitter))
	f.at = max(m.last, sent+wait)
	f.again = max(f.at, sentAgain+wait)
	m.last = f.again
	return f
}

// send returns when the rate lets go of a packet, or false if too many wait.
func (m *model) send(now time.Duration, bytes int) (time.Duration, bool) {
	if m.c.BitsPerSecond == 0 {
		return now, true
	}
	begins := max(now, m.free)
	if waiting := m.bytesIn(begins - now); waiting > 0 && waiting+int64(bytes) > m.queue() {
		return 0, false
	}
	m.free = begins + time.Duration(float64(bytes)*8/float64(m.c.BitsPerSecond)*float64(time.Second))
	return m.free, true
}

func (m *model) bytesIn(d time.Duration) int64 {
	return int64(d.Seconds() * float64(m.c.BitsPerSecond) / 8)
}

func (m *model) queue() int64 {
	if m.c.QueueBytes > 0 {
		return m.c.QueueBytes
	}
	return max(m.bytesIn(50*time.Millisecond), 32*fullPacketBytes)
}
