package paths

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/predict"
)

// filesAtOnce of a dataset are copied.
const filesAtOnce = 4

// Ask is a dataset that members on a node are to have whole.
type Ask struct {
	Node string
	// Files are the dataset's. Bytes is their size and Held what the node has of them.
	Files       []api.DatasetFile
	Bytes, Held int64
	// Peers are other nodes that have all and pass it on, in order.
	Peers []string
}

// Answer is a way to a dataset, and what it is predicted to take.
type Answer struct {
	Choice predict.Choice
	// Known: Seconds is predicted.
	Known   bool
	Seconds float64
	// Since is when the newest rate that it rests on was measured; zero: it rests on none.
	Since time.Time

	node    string
	rests   []rest
	terms   []predict.Terms
	missing string
}

// rest is a figure that an answer rests on.
type rest struct {
	from   string
	figure *Figure
}

// Figures say what an answer rests on, with the age of each figure, or what is missing.
func (a *Answer) Figures() string {
	if a.missing != "" {
		return a.missing
	}
	var all []string
	for _, r := range a.rests {
		all = append(all, r.from+": "+r.figure.Say(a.node))
	}
	return strings.Join(all, "; ")
}

func (a *Answer) restOn(k *Known, from string, f *Figure) {
	a.rests = append(a.rests, rest{from, f})
	if since := k.now.Add(-f.Age); since.After(a.Since) {
		a.Since = since
	}
}

// Answers returns the ways in which a node can have a dataset whole, the one first that it takes: other nodes where one of them has it, and else the
// source, which sends a dataset to one node of the site only.
func (k *Known) Answers(a Ask) []Answer {
	switch {
	case a.Bytes == 0:
		return []Answer{{Choice: predict.Copy, missing: "the size of its files is not known"}}
	case a.Held >= a.Bytes:
		return []Answer{{Choice: predict.Here, Known: true, missing: "all of it is there"}}
	case len(a.Peers) > 0:
		return []Answer{k.byPeers(a), k.bySource(a)}
	default:
		return []Answer{k.bySource(a)}
	}
}

// consideredPeers is how many nodes are looked at of those that a node could take a dataset from; it is given a few of them.
const consideredPeers = 8

func (k *Known) byPeers(a Ask) Answer {
	out := Answer{Choice: predict.Peer, node: a.Node}
	var best rest
	consider := func(from string, f *Figure) {
		if f != nil && (best.figure == nil || f.Rate > best.figure.Rate) {
			best = rest{from, f}
		}
	}
	consider(dataset.FromNodes, k.Find(a.Node, dataset.FromNodes))
	for _, p := range a.Peers[:min(len(a.Peers), consideredPeers)] {
		consider(OfNode(p), k.Find(a.Node, OfNode(p)))
	}
	if best.figure == nil { // nodes of a site are connected alike: what came from any to any stands for it
		consider(k.betweenNodes())
	}
	if best.figure == nil {
		out.missing = "what comes from other nodes per second was never measured"
		return out
	}
	missing := float64(a.Bytes - a.Held)
	all := predict.Table(predict.Work{Bytes: missing, Jobs: 1}, predict.Ways{Peer: &best.figure.Path, FromPeer: severalFiles(CopierOf(best.from), len(a.Files)), Disk: k.disk(a.Node)})
	out.Known, out.Seconds, out.terms = true, all[0].Seconds, []predict.Terms{all[0].Terms}
	out.restOn(k, best.from, best.figure)
	return out
}

// part is what of a dataset comes from one server.
type part struct {
	from  string
	bytes float64
	files int
}

// partsOf divides what a node lacks among servers. Files come from the first of their sources while that answers.
func partsOf(a Ask) []part {
	var parts []part
	missing := float64(a.Bytes - a.Held)
	for i := range a.Files {
		from, share := dataset.ServerOf(a.Files[i].URLs[0]), 1/float64(len(a.Files))
		if size := a.Files[i].SizeBytes; size > 0 {
			share = float64(size) / float64(a.Bytes)
		}
		at := slices.IndexFunc(parts, func(p part) bool { return p.from == from })
		if at < 0 {
			at, parts = len(parts), append(parts, part{from: from})
		}
		parts[at].bytes += missing * share
		parts[at].files++
	}
	return parts
}

// bySource adds up what comes from each server.
func (k *Known) bySource(a Ask) Answer {
	out := Answer{Choice: predict.Copy, node: a.Node, Known: true}
	for _, p := range partsOf(a) {
		f := k.Find(a.Node, p.from)
		if f == nil {
			return Answer{Choice: predict.Copy, missing: fmt.Sprintf("what comes from %s per second was never measured", p.from)}
		}
		all := predict.Table(predict.Work{Bytes: p.bytes, Jobs: 1}, predict.Ways{Source: &f.Path, FromSource: severalFiles(CopierOf(p.from), p.files)})
		if len(all) > 0 {
			out.Seconds += all[0].Seconds
			out.terms = append(out.terms, all[0].Terms)
		}
		out.restOn(k, p.from, f)
	}
	if disk := k.disk(a.Node); disk > 0 {
		out.Seconds += float64(a.Bytes-a.Held) / disk
		out.terms = append(out.terms, predict.Terms{Local: float64(a.Bytes-a.Held) / disk, LocalRate: disk})
	}
	return out
}

// severalFiles is how some files are copied, a few at once.
func severalFiles(c predict.Copier, files int) predict.Copier {
	rounds := math.Ceil(float64(files) / filesAtOnce)
	c.Trips, c.Start, c.Streams = c.Trips*rounds, c.Start*rounds, c.Streams*float64(min(files, filesAtOnce))
	return c
}

// disk is how many bytes a node verifies per second of what it has copied, 0 if nobody knows.
func (k *Known) disk(node string) float64 {
	if f := k.Find(node, dataset.FromDisk); f != nil {
		return f.Rate
	}
	return 0
}
