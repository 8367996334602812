package predict

import "math"

// What TCP sends at first, and the largest packets of most paths.
const (
	segmentBytes = 1448 // an Ethernet frame without the headers of IP and TCP with timestamps
	firstBytes   = 10 * segmentBytes
)

// Path is a way for data between two places.
type Path struct {
	// RoundTrip is that of a packet when nothing waits in queues, in seconds.
	RoundTrip float64
	// Rate is what the path carries at most, in bytes per second.
	Rate float64
	// Loss is the fraction of packets that are lost by chance, beyond what Rate shows already.
	Loss float64
}

// known reports whether a rate was measured.
func (p *Path) known() bool { return p != nil && p.Rate > 0 }

// Flow is how bytes cross a path.
type Flow struct {
	// Trips are the round trips that are spent on anything but data: connecting, logging in, opening files.
	Trips float64
	// Streams are the TCP connections that share the bytes, 1 at least. Sharing are how many such transfers share the path, 1 at least.
	Streams, Sharing float64
}

// Seconds is how long some bytes take over a path. TCP's window begins at ten segments (RFC 6928) and doubles each round trip until the path is full:
// slow start (RFC 5681, section 3.1), drawn as a smooth curve. Then the rate is the path's, or what losses leave of it.
func Seconds(bytes float64, p Path, by Flow) float64 {
	streams := max(1, by.Streams)
	rate := p.share(streams, max(1, by.Sharing))
	seconds := by.Trips * p.RoundTrip
	if bytes <= 0 {
		return seconds
	}
	begin := streams * firstBytes
	// After t seconds, begin*(2^(t/r)-1) bytes have come, and the rate is begin*ln2/r*2^(t/r). From full on it is the path's.
	doublings := 0.0
	if p.RoundTrip > 0 {
		doublings = max(0, math.Log2(rate*p.RoundTrip/(begin*math.Ln2)))
	}
	if early := begin * (math.Exp2(doublings) - 1); bytes > early {
		return seconds + doublings*p.RoundTrip + (bytes-early)/rate
	}
	return seconds + p.RoundTrip*math.Log2(1+bytes/begin)
}

// share is the rate of one of several transfers, each of some connections: its part of the path, or what losses let its connections send. A connection
// sends at most about segment/r * sqrt(3/2)/sqrt(loss) (Mathis, Semke, Mahdavi and Ott: The macroscopic behavior of the TCP congestion avoidance
// algorithm, Computer Communication Review 27(3), 1997). Newer algorithms than Reno send more; then Rate as measured says so.
func (p *Path) share(streams, sharing float64) float64 {
	rate := p.Rate / sharing
	if p.Loss > 0 && p.RoundTrip > 0 {
		rate = min(rate, streams*segmentBytes/p.RoundTrip*math.Sqrt(1.5/p.Loss))
	}
	return rate
}

// The rates that RateOf finds, in bytes per second.
const (
	leastRate = 1.0
	mostRate  = 1e12
)

// RateOf is what a path carries, in bytes per second, by the seconds that some bytes took. It is Seconds turned around. least: round trips explain nearly all
// of that time, so the path carries this much or more. 0: the time says nothing of the path.
func RateOf(bytes, seconds, roundTrip float64, by Flow) (rate float64, least bool) {
	at := func(rate float64) float64 { return Seconds(bytes, Path{RoundTrip: roundTrip, Rate: rate}, by) }
	switch {
	case !(bytes > 0) || !(seconds > 0) || at(leastRate) < seconds:
		return 0, false
	case at(mostRate) >= tellable*seconds:
		return bytes / ((1 - tellable) * seconds), true
	}
	low, high := math.Log(leastRate), math.Log(mostRate)
	for range 60 {
		middle := (low + high) / 2
		if at(math.Exp(middle)) > seconds {
			low = middle
		} else {
			high = middle
		}
	}
	return math.Exp(high), false
}

// tellable is the part of a transfer's time that round trips may have: where they have more, the rest says little of the rate.
const tellable = 0.8

// Power is what a node draws, by the model of package energy: a line over utilization.
type Power struct {
	// IdleWatts are drawn by the node when idle, and BusyWatts come to them when all its CPUs work.
	IdleWatts, BusyWatts float64
	// Share is the fraction of the node that the member has, and Working that of the node's CPU time which its data keep busy meanwhile.
	Share, Working float64
}

// Joules are what some seconds of waiting cost: the member's share of the idle power, since nobody else can have its cores, and the work on the data.
func (p Power) Joules(seconds float64) float64 {
	return seconds * (p.Share*p.IdleWatts + p.Working*p.BusyWatts)
}
