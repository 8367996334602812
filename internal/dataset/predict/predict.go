// Package predict says how long a member waits for its data, and what that costs in energy, for each way to the data: copied from the source or from
// another node, already on the node, read from the source in parts, through a cache, or the member put on another node.
//
// It is pure: a path's figures come from measurements (package paths), and the same figures give the same prediction. The package must never fill in a
// figure that nobody measured: a choice whose path is not known has no prediction. Start with Seconds (tcp.go) and Table.
package predict

import "math"

// Choice is a way for a member to its data.
type Choice string

// The choices.
const (
	Here      Choice = "here"      // all is on the node
	Peer      Choice = "peer"      // copied whole from another node
	Copy      Choice = "copy"      // copied whole from the source
	Stream    Choice = "stream"    // read from the source in parts
	Cache     Choice = "cache"     // read in parts through a cache beside the member
	Elsewhere Choice = "elsewhere" // the member goes to another node, which takes one of the others
)

// Work is what a member does with its data.
type Work struct {
	// Bytes is the size of all files. Held of them are on the node.
	Bytes, Held float64
	// Reads is the fraction of the bytes that a member reads, from 0 to 1.
	Reads float64
	// Jobs are how many members read at once over one path, 1 at least.
	Jobs float64
	// Reader is how they read in parts.
	Reader Reader
}

// Reader is how a program reads files in parts, as measured.
type Reader struct {
	// Trips are the round trips until it has opened a file.
	Trips float64
	// RequestBytes is how much it asks for at once before it waits for the answer; 0: how it reads is not known.
	RequestBytes float64
	// RequestTrips are the round trips that each request costs besides its bytes, 1 at least: more where its answer is sent at the pace of congestion control.
	RequestTrips float64
	// SecondsPerByte is its own work on what it has read.
	SecondsPerByte float64
}

// Copier is how files are copied whole, as measured.
type Copier struct {
	// Trips are the round trips that are spent on anything but data.
	Trips float64
	// Streams are the TCP connections that share a copy.
	Streams float64
	// Start is what a copy takes besides, in seconds: starting a program, for example.
	Start float64
}

// CacheAt is a cache beside the member.
type CacheAt struct {
	// Held is the fraction of what the member will read that the cache has, from 0 to 1.
	Held float64
	// BlockBytes is what it fetches at once, and Ahead how many such blocks it fetches before anybody asks.
	BlockBytes, Ahead float64
	// Streams are the TCP connections to the source.
	Streams float64
}

// Ways are the paths to the data; nil: not known, or there is none.
type Ways struct {
	Source, Peer *Path
	// Disk is how many bytes per second the node verifies of what it has copied; 0: not known, and not counted.
	Disk       float64
	FromSource Copier
	FromPeer   Copier
	Cache      *CacheAt
	// Elsewhere is what the best choice on the best other node takes; nil: there is none, or it is not known.
	Elsewhere *float64
}

// Prediction is what a choice is predicted to take.
type Prediction struct {
	Choice Choice
	// Seconds are those that the member waits for data, and works on what it reads as far as that is known.
	Seconds float64
}

// Table returns the predictions of all choices that can be predicted, in the order of the constants.
func Table(w Work, ways Ways) []Prediction {
	var all []Prediction
	add := func(c Choice, seconds float64) { all = append(all, Prediction{c, seconds}) }
	read := w.Reads * w.Bytes
	work := read * w.Reader.SecondsPerByte
	missing := max(0, w.Bytes-w.Held)
	if missing == 0 {
		add(Here, work)
	}
	whole := func(p *Path, by Copier) float64 {
		seconds := by.Start + Seconds(missing, *p, Flow{Trips: by.Trips, Streams: by.Streams, Sharing: w.Jobs})
		if ways.Disk > 0 {
			seconds += missing / ways.Disk
		}
		return seconds + work
	}
	if missing > 0 && ways.Peer.known() {
		add(Peer, whole(ways.Peer, ways.FromPeer))
	}
	if missing > 0 && ways.Source.known() {
		add(Copy, whole(ways.Source, ways.FromSource))
	}
	if ways.Source.known() && w.Reader.RequestBytes > 0 {
		add(Stream, work+inParts(read, *ways.Source, w.Reader.RequestBytes/max(1, w.Reader.RequestTrips), Flow{Trips: w.Reader.Trips, Streams: 1, Sharing: w.Jobs}))
		if c := ways.Cache; c != nil {
			add(Cache, work+throughCache(w, *c, *ways.Source))
		}
	}
	if ways.Elsewhere != nil {
		add(Elsewhere, *ways.Elsewhere)
	}
	return all
}

// Best is the quickest of some predictions, the first of equal ones; false: there are none.
func Best(all []Prediction) (Prediction, bool) {
	if len(all) == 0 {
		return Prediction{}, false
	}
	best := all[0]
	for _, p := range all[1:] {
		if p.Seconds < best.Seconds {
			best = p
		}
	}
	return best, true
}

// inParts is how long a program waits that reads bytes by one request after the other: it waits a round trip for each so many of them, besides the bytes.
func inParts(bytes float64, p Path, perTrip float64, by Flow) float64 {
	return bytes/perTrip*p.RoundTrip + Seconds(bytes, p, by)
}

// throughCache is how long a member waits that reads through a cache: for what the cache lacks. A cache fetches whole blocks, so it fetches more than is
// read, and the more so the larger its blocks are beside the program's requests.
func throughCache(w Work, c CacheAt, p Path) float64 {
	touched := 1 - math.Pow(1-w.Reads, max(1, c.BlockBytes/w.Reader.RequestBytes))
	missing := touched * w.Bytes * (1 - c.Held)
	flow := Flow{Trips: w.Reader.Trips, Streams: max(1, c.Streams), Sharing: w.Jobs}
	if missing == 0 {
		return 0
	}
	return inParts(missing, p, max(w.Reader.RequestBytes, c.BlockBytes)*max(1, c.Ahead), flow)
}
