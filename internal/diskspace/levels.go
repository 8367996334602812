package diskspace

// Use is what room is asked for.
type Use int

// The uses, the one that is refused first at the top.
const (
	// Output is what jobs and builds print.
	Output Use = iota
	// Requests are requests that make the state grow: new clusters, jobs or tokens, for example.
	Requests
)

const (
	// roomToStart is what the store needs to start on a disk that others have filled: a segment of its log (64 MB), and room for its
	// database to grow.
	roomToStart = 96 << 20
	// keptInodes are for the store's next files.
	keptInodes = 64
)

// levels are the amounts of room that are kept on one file system.
type levels struct {
	// held is the size of the whole reserve.
	held int64
	// output and requests are the floors below which each is refused; low is the one below which the reserve is given back.
	output, requests, low int64
}

// levelsOf returns the levels of a file system: fixed on all but small ones, which need room for anything at all.
func levelsOf(total int64) levels {
	unit := min(128<<20, total/16)
	return levels{held: 2 * unit, output: 2 * unit, requests: unit, low: unit / 4}
}

// kept is how much room a use must leave free. Room that the reserve lacks counts: it was given back for the store alone.
func (l levels) kept(use Use, held int64) int64 {
	floor := l.requests
	if use == Output {
		floor = l.output
	}
	return floor + max(0, l.held-held)
}

// reserve returns how much room the reserve should hold: less, when less than need is free, and more, when so much is free that the store
// could start beside it. Between the two it stays, so that it does not swing.
func (l levels) reserve(d disk, held, need int64) int64 {
	if d.free < need {
		return max(0, held-(need+l.low-d.free))
	}
	spare := d.free - roomToStart - 2*l.low
	return max(held, min(l.held, held+spare))
}
