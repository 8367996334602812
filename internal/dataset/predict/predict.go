// Package predict says how long a member waits for its data, and what that costs in energy, for each way to the data: copied from the source or from
// another node, already on the node, read from the source in parts, through a cache, or the member put on another node.
//
// It is pure: a path's figures come from measurements (package paths), and the same figures give the same prediction. The package must never fill in a
// figure that nobody measured: a choice whose path is not known has no prediction. Start with Seconds (tcp.go) and Table.
package predict

import "math"

// Choice is a way for a member to its data.
type Choice string

// A cache that has less than half of what will be read is cold.
const warmFrom = 0.5

// The choices.
const (
	Here      Choice = "here"       // all is on the node
	Peer      Choice = "peer"       // copied whole from another node
	Copy      Choice = "copy"       // copied whole from the source
	Stream    Choice = "stream"     // read from the source in parts
	Cold      Choice = "cold cache" // read in parts through a cache beside the member, which has little of it
	Warm      Choice = "warm cache" // the same, and the cache has most of it
	Elsewhere Choice = "elsewhere"  // the member goes to another node, which takes one of the others
)

// Work is what a member does with its data.
type Work struct {
	// Bytes is the size of all files. Held of them are on the node.
	Bytes, Held float64
	// Reads is the fraction of the bytes that a member reads, from 0 to 1.
	Reads float64
	// Jobs are how many members read at once over one path, 1 at least. Whole copies count as one each.
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
	// Rate is how many bytes per second it hands out of what it has; 0: not known, and not counted.
	Rate float64
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
	// Seconds are those that the member waits for data, and works on what it reads as far as that is known: those of Terms.
	Seconds float64
	// Terms are what the prediction is the sum of. Those of Elsewhere are not known here.
	Terms Terms
}

// Table returns the predictions of all choices that can be predicted, in the order of the constants.
func Table(w Work, ways Ways) []Prediction {
	var all []Prediction
	add := func(c Choice, t Terms) { all = append(all, Prediction{c, t.Seconds(), t}) }
	read := w.Reads * w.Bytes
	work := read * w.Reader.SecondsPerByte
	missing := max(0, w.Bytes-w.Held)
	if missing == 0 {
		add(Here, Terms{Work: work})
	}
	whole := func(p *Path, by Copier) Terms {
		t := termsOf(missing, *p, Flow{Trips: by.Trips, Streams: by.Streams, Sharing: w.Jobs}, 0)
		t.Start, t.Work = by.Start, work
		if ways.Disk > 0 {
			t.Local, t.LocalRate = missing/ways.Disk, ways.Disk
		}
		return t
	}
	if missing > 0 && ways.Peer.known() {
		add(Peer, whole(ways.Peer, ways.FromPeer))
	}
	if missing > 0 && ways.Source.known() {
		add(Copy, whole(ways.Source, ways.FromSource))
	}
	if w.Reader.RequestBytes > 0 && ways.Source.known() {
		t := termsOf(read, *ways.Source, Flow{Trips: w.Reader.Trips, Streams: 1, Sharing: w.Jobs}, read/w.Reader.RequestBytes*max(1, w.Reader.RequestTrips))
		t.Work = work
		add(Stream, t)
	}
	if c := ways.Cache; c != nil && w.Reader.RequestBytes > 0 && (ways.Source.known() || c.Held >= 1) {
		source := Path{}
		if ways.Source != nil {
			source = *ways.Source
		}
		t := throughCache(w, *c, source)
		t.Work = work
		if c.Held < warmFrom {
			add(Cold, t)
		} else {
			add(Warm, t)
		}
	}
	if ways.Elsewhere != nil {
		all = append(all, Prediction{Choice: Elsewhere, Seconds: *ways.Elsewhere})
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

// throughCache is what a member waits for that reads through a cache: what the cache lacks crosses the path, and all that is read is handed out. A cache
// fetches whole blocks, so it fetches more than is read, and the more so the larger its blocks are beside the program's requests.
func throughCache(w Work, c CacheAt, p Path) Terms {
	missing := w.Touched(c.BlockBytes) * w.Bytes * (1 - min(1, c.Held))
	var t Terms
	if missing > 0 {
		waits := w.Reads * w.Bytes / w.Reader.RequestBytes * (1 - min(1, c.Held))
		if c.BlockBytes > 0 { // what is in a block already is not waited for again
			waits = min(waits, missing/c.BlockBytes)
		}
		t = termsOf(missing, p, Flow{Trips: w.Reader.Trips, Streams: max(1, c.Streams), Sharing: w.Jobs}, waits/max(1, c.Ahead))
	}
	if c.Rate > 0 {
		t.Local, t.LocalRate = w.Reads*w.Bytes/c.Rate, c.Rate
	}
	return t
}

// Touched is the fraction of the blocks of a size of which a member reads something, if its requests are spread evenly. A request does not begin where a block
// does: on average it touches one block more than it is long.
func (w Work) Touched(blockBytes float64) float64 {
	if w.Reader.RequestBytes <= 0 {
		return w.Reads
	}
	return 1 - math.Pow(1-w.Reads, 1+blockBytes/w.Reader.RequestBytes)
}

// Terms are what a prediction is the sum of, so that it can be added up by hand.
type Terms struct {
	// Start is the time of starting programs.
	Start float64
	// Bytes cross a path at Rate, which is that of one of Sharing transfers.
	Bytes, Rate, Sharing float64
	// Trips are round trips of RoundTrip seconds in which nothing else happens: for opening, and for waiting for answers.
	Trips, RoundTrip float64
	// Ramp is what TCP's slow start takes longer than the bytes would at the full rate.
	Ramp float64
	// Local is the time of the node's own disk or cache, at LocalRate bytes per second. Work is the program's own.
	Local, LocalRate, Work float64
}

// Seconds is the sum.
func (t Terms) Seconds() float64 {
	s := t.Start + t.Trips*t.RoundTrip + t.Ramp + t.Local + t.Work
	if t.Bytes > 0 {
		s += t.Bytes / t.Rate
	}
	return s
}

// termsOf is what some bytes take over a path, with a round trip for each time that a program waits for an answer.
func termsOf(bytes float64, p Path, by Flow, waits float64) Terms {
	t := Terms{Bytes: bytes, Rate: p.share(max(1, by.Streams), max(1, by.Sharing)), Sharing: max(1, by.Sharing), Trips: by.Trips + waits, RoundTrip: p.RoundTrip}
	if bytes > 0 {
		t.Ramp = max(0, Seconds(bytes, p, by)-by.Trips*p.RoundTrip-bytes/t.Rate)
	}
	return t
}
