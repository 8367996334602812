// Package paths keeps what is known of the ways of data to nodes: how far a source is from a node, and how much comes from there per second.
//
// Figures are learned from the transfers that nodes make anyway, and from probes where nothing is known. Each has its age: the older it is, the less it
// counts beside a new one, and after a week it counts no more. The package is pure; it must never take a figure for a path that nobody measured. Start
// with Learn, and with Find for what is known of a path.
package paths

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/predict"
)

// The ages of figures.
const (
	// halfLife is how long a figure takes to count half as much beside a new one.
	halfLife = time.Hour
	// OldAfter is when a figure is said to be old, and probed again. GoneAfter is when it is no figure any more.
	OldAfter  = 24 * time.Hour
	GoneAfter = 7 * 24 * time.Hour
	// restAfter is how old a stored figure gets before the same figure is stored again, for its age.
	restAfter = time.Hour
)

// tellingBytes are so many that a transfer says something of a path's rate even if round trips explain nearly all of its time.
const tellingBytes = 1 << 20

// notable is how far a figure must move to be stored at once, as a factor.
const notable = 1.2

// MostPaths bounds the paths of a node. Those measured longest ago go first.
const MostPaths = 256

// mostSeconds bounds what a node may say that a passage took: nothing that lasts longer is one transfer.
const mostSeconds = 7 * 24 * 3600

// Copiers are what copies take besides their bytes.
var (
	// What xrdcp and ranges of HTTP take in logging in, opening and asking; the time of starting xrdcp; the connections of a file. With these, predictions
	// come as near as docs/results/data-predictions.md shows.
	fromXRootD = predict.Copier{Trips: 10, Streams: 4, Start: 0.05}
	fromHTTP   = predict.Copier{Trips: 6, Streams: 4}
	fromPeers  = predict.Copier{Trips: 6, Streams: 4}
)

// CopierOf is how files are copied from a place.
func CopierOf(from string) predict.Copier {
	switch {
	case strings.HasPrefix(from, "root://"):
		return fromXRootD
	case strings.HasPrefix(from, nodePrefix) || from == dataset.FromNodes:
		return fromPeers
	default:
		return fromHTTP
	}
}

const nodePrefix = "node/"

// OfNode names a node as a place that data come from.
func OfNode(name string) string { return nodePrefix + name }

// Sensible reports whether what a node says of a passage can be.
func Sensible(p *dataset.Passage) bool {
	within := func(f, most float64) bool { return f >= 0 && f <= most } // NaN is not
	return p.From != "" && p.Bytes >= 0 && within(p.Seconds, mostSeconds) && within(p.RoundTripSeconds, 60) && p.Streams >= 0 && p.Streams <= 1000 && !p.At.IsZero()
}

// Learn returns what is known of a path after a passage on it. from is the path's place, as it is stored. Of a passage that is no newer than what is known
// nothing is learned, so one that is reported twice counts once.
func Learn(known api.DataPath, from string, p *dataset.Passage, now time.Time) api.DataPath {
	at := p.At
	if at.After(now) { // the node's clock is ahead: nothing is measured in the future
		at = now
	}
	at = at.UTC()
	known.From = from
	if p.RoundTripSeconds > 0 && newer(at, known.RoundTripAt) {
		known.RoundTripSeconds = blend(known.RoundTripSeconds, known.RoundTripAt, p.RoundTripSeconds, at)
		known.RoundTripAt = &at
	}
	if p.Bytes == 0 || p.Seconds <= 0 || !newer(at, known.RateAt) {
		return known
	}
	rate := float64(p.Bytes) / p.Seconds
	if from != dataset.FromDisk {
		by := CopierOf(from)
		by.Streams = cmp.Or(float64(p.Streams), by.Streams)
		var least bool
		rate, least = predict.RateOf(float64(p.Bytes), max(p.Seconds-by.Start, p.Seconds/10), known.RoundTripSeconds, predict.Flow{Trips: by.Trips, Streams: by.Streams})
		if rate == 0 || least && (p.Bytes < tellingBytes || known.BytesPerSecond > rate) {
			return known
		}
	}
	known.BytesPerSecond = blend(known.BytesPerSecond, known.RateAt, rate, at)
	known.RateAt, known.Transfers = &at, known.Transfers+1
	return known
}

func newer(at time.Time, than *time.Time) bool { return than == nil || at.After(*than) }

// blend is a figure after a new one: between the two on a logarithmic scale, half way where the old one is new, and the nearer to the new one the older
// the old one is.
func blend(old float64, oldAt *time.Time, seen float64, at time.Time) float64 {
	if old <= 0 || oldAt == nil {
		return seen
	}
	weight := 0.5 * math.Exp2(-at.Sub(*oldAt).Hours()/halfLife.Hours())
	return math.Exp(weight*math.Log(old) + (1-weight)*math.Log(seen))
}

// Notable reports whether what is known of a path differs from what is stored so much that it should be stored.
func Notable(stored, known *api.DataPath) bool {
	moved := func(a, b float64, aAt, bAt *time.Time) bool {
		switch {
		case bAt == nil:
			return false
		case aAt == nil || a <= 0:
			return true
		default:
			return max(a, b)/min(a, b) > notable || bAt.Sub(*aAt) > restAfter
		}
	}
	return moved(stored.BytesPerSecond, known.BytesPerSecond, stored.RateAt, known.RateAt) ||
		moved(stored.RoundTripSeconds, known.RoundTripSeconds, stored.RoundTripAt, known.RoundTripAt)
}

// Pruned returns paths without those whose figures are all gone, the newest ones if there are too many, in the order of places.
func Pruned(all []api.DataPath, now time.Time) []api.DataPath {
	kept := slices.DeleteFunc(slices.Clone(all), func(p api.DataPath) bool { return now.Sub(newest(&p)) > GoneAfter })
	slices.SortFunc(kept, func(a, b api.DataPath) int {
		return cmp.Or(newest(&b).Compare(newest(&a)), cmp.Compare(a.From, b.From))
	})
	kept = kept[:min(len(kept), MostPaths)]
	slices.SortFunc(kept, func(a, b api.DataPath) int { return cmp.Compare(a.From, b.From) })
	return kept
}

// newest is when anything of a path was measured last.
func newest(p *api.DataPath) time.Time {
	var at time.Time
	for _, t := range []*time.Time{p.RateAt, p.RoundTripAt} {
		if t != nil && t.After(at) {
			at = *t
		}
	}
	return at
}
