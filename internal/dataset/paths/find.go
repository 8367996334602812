package paths

import (
	"fmt"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset/predict"
)

// Known are the paths of a site, by node.
type Known struct {
	byNode map[string]map[string]*api.DataPath
	// newest is the node that has measured the rate from a place last.
	newest map[string]string
	now    time.Time
}

// New indexes what is stored, as of a time.
func New(stored []*api.DataPaths, now time.Time) *Known {
	k := &Known{byNode: map[string]map[string]*api.DataPath{}, newest: map[string]string{}, now: now}
	for _, s := range stored {
		of := make(map[string]*api.DataPath, len(s.Paths))
		k.byNode[s.Node] = of
		for i := range s.Paths {
			p := &s.Paths[i]
			of[p.From] = p
			if p.RateAt == nil {
				continue
			}
			if last := k.byNode[k.newest[p.From]][p.From]; last == nil || p.RateAt.After(*last.RateAt) {
				k.newest[p.From] = s.Node
			}
		}
	}
	return k
}

// Figure is what is known of the way from a place to a node.
type Figure struct {
	predict.Path
	// Node is the one that measured the rate: another one where the node itself never did. TripNode is that of the round trip; "": nobody measured it.
	Node, TripNode string
	// Age is that of the rate, and TripAge that of the round trip.
	Age, TripAge time.Duration
}

// Old reports whether a figure is so old that it should not be relied on without a word.
func (f *Figure) Old() bool { return f.Age > OldAfter }

// Find returns what is known of the way from a place to a node, nil if no rate is. Nodes of a site share most of the way to a source: where a node never
// measured it, the newest figure of another one stands for it, and says so.
func (k *Known) Find(node, from string) *Figure {
	best := k.at(node, from)
	if best == nil {
		if best = k.at(k.newest[from], from); best == nil {
			return nil
		}
	}
	if own := k.path(node, from); own != nil && k.counts(own.RoundTripAt) { // how far it is, the node may know by itself
		best.RoundTrip, best.TripNode, best.TripAge = own.RoundTripSeconds, node, k.age(own.RoundTripAt)
	}
	return best
}

// betweenNodes is the newest figure of any way from a node, nil if there is none.
func (k *Known) betweenNodes() (from string, best *Figure) {
	for place, node := range k.newest {
		if !strings.HasPrefix(place, nodePrefix) {
			continue
		}
		if f := k.at(node, place); f != nil && (best == nil || f.Age < best.Age || f.Age == best.Age && place < from) {
			from, best = place, f
		}
	}
	return from, best
}

// at is what a node has measured of a place.
func (k *Known) at(node, from string) *Figure {
	p := k.path(node, from)
	if p == nil || p.BytesPerSecond <= 0 || !k.counts(p.RateAt) {
		return nil
	}
	f := &Figure{Path: predict.Path{Rate: p.BytesPerSecond}, Node: node, Age: k.age(p.RateAt)}
	if k.counts(p.RoundTripAt) {
		f.RoundTrip, f.TripNode, f.TripAge = p.RoundTripSeconds, node, k.age(p.RoundTripAt)
	}
	return f
}

func (k *Known) path(node, from string) *api.DataPath { return k.byNode[node][from] }

func (k *Known) counts(at *time.Time) bool { return at != nil && k.age(at) <= GoneAfter }

func (k *Known) age(at *time.Time) time.Duration { return max(0, k.now.Sub(*at)) }

// Far reports whether a node knows how far a place is, by a figure that is not old.
func (k *Known) Far(node, from string) bool {
	p := k.path(node, from)
	return p != nil && p.RoundTripAt != nil && k.age(p.RoundTripAt) <= OldAfter
}

// Say says for people what is known of a path: "12.0 MB/s 3m ago, 75 ms 3m ago".
func (f *Figure) Say(node string) string {
	text := fmt.Sprintf("%s %s", rateText(f.Rate), agoText(f.Age))
	if f.Node != node {
		text += " to " + f.Node
	}
	if f.TripNode == "" {
		return text + ", distance not measured"
	}
	text += fmt.Sprintf(", %s ms %s", strings.TrimSuffix(fmt.Sprintf("%.1f", 1000*f.RoundTrip), ".0"), agoText(f.TripAge))
	if f.TripNode != node {
		text += " to " + f.TripNode
	}
	return text
}

// rateText says a rate for people, in megabytes of 1000 kilobytes.
func rateText(bytesPerSecond float64) string {
	switch {
	case bytesPerSecond >= 1e8:
		return fmt.Sprintf("%.0f MB/s", bytesPerSecond/1e6)
	case bytesPerSecond >= 1e5:
		return fmt.Sprintf("%.1f MB/s", bytesPerSecond/1e6)
	default:
		return fmt.Sprintf("%.1f kB/s", bytesPerSecond/1e3)
	}
}

func agoText(age time.Duration) string {
	text := "now"
	switch {
	case age >= 48*time.Hour:
		text = fmt.Sprintf("%.0fd ago", age.Hours()/24)
	case age >= time.Hour:
		text = fmt.Sprintf("%.0fh ago", age.Hours())
	case age >= time.Minute:
		text = fmt.Sprintf("%.0fm ago", age.Minutes())
	case age >= time.Second:
		text = fmt.Sprintf("%.0fs ago", age.Seconds())
	}
	if age > OldAfter {
		text += " (old)"
	}
	return text
}
