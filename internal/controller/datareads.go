package controller

import (
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/paths"
	"github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/dataset/predict"
	"github.com/nearmetal/nearmetal/internal/state"
)

// outcomesOf are the outcomes of a dataset, with those that are about to be stored.
func outcomesOf(view *state.View, changed map[string]api.DataOutcomes, uid string) api.DataOutcomes {
	all, begun := changed[uid]
	if had := view.OutcomesOf(uid); !begun && had != nil {
		all = *had
	}
	all.UID = uid
	return all
}

// readings takes in what members of a node have read through its caches: the fraction of a dataset that they read, and what came of what was predicted when they
// got their places.
func (b *dataBook) readings(view *state.View, byUID map[string]*api.Dataset, n *plan.Node, now time.Time, changed map[string]api.DataOutcomes) {
	for i := range n.Caches {
		d := byUID[n.Caches[i].UID]
		if d == nil {
			continue
		}
		for k := range n.Caches[i].Readings {
			r := &n.Caches[i].Readings[k]
			a := memberWith(view, n.Name, r.Member)
			if a == nil || r.Open > 0 || r.Bytes <= 0 || !(r.WaitedSeconds >= 0) {
				continue
			}
			one := readingOf(d, n.Name, a, r, now)
			if all, news := paths.Read(outcomesOf(view, changed, d.UID), one); news {
				changed[d.UID] = all
			}
			if came, ok := cachedOutcome(d, a, &one); ok && !hasOutcome(outcomesOf(view, changed, d.UID), r.Member) {
				if came.Choice == string(predict.Cold) && n.CacheRoom != nil {
					b.cold = append(b.cold, coldReading{n.Name, d, paths.Cold{
						Files: len(d.Files), SizeBytes: sizeOf(d), Bytes: one.Bytes, Waits: one.Waits, Seconds: one.WaitedSeconds, BlockBytes: n.CacheRoom.BlockBytes, At: one.At,
					}})
				}
				changed[d.UID] = paths.Add(outcomesOf(view, changed, d.UID), came)
			}
		}
	}
}

// memberWith is the assignment with an ID on a node, nil if there is none. A member that is being released has read what it has read.
func memberWith(view *state.View, node, id string) *api.Assignment {
	for _, c := range view.ClustersOnNode(node) {
		for a := range c.All() {
			if a.ID == id && a.Node == node {
				return a
			}
		}
	}
	return nil
}

// readingOf is a reading as it is stored.
func readingOf(d *api.Dataset, node string, a *api.Assignment, r *dataset.Reading, now time.Time) api.DataReading {
	at := r.At
	if at.After(now) { // the node's clock is ahead
		at = now
	}
	one := api.DataReading{
		Member: a.ID, Group: a.Cluster + "/" + a.Group, Node: node, Bytes: r.Bytes, Waits: r.Waits, WaitedSeconds: r.WaitedSeconds, At: at.UTC(),
	}
	if size := sizeOf(d); size > 0 {
		one.Fraction = min(1, float64(r.Bytes)/float64(size))
	}
	return one
}

// sizeOf is the size of all files of a dataset, 0 if that of one is not known.
func sizeOf(d *api.Dataset) int64 {
	var size int64
	for i := range d.Files {
		if d.Files[i].SizeBytes == 0 {
			return 0
		}
		size += d.Files[i].SizeBytes
	}
	return size
}

// coldReading is what a member has read through a cache that had nothing of it, which tells what one connection of its node carries.
type coldReading struct {
	node string
	of   *api.Dataset
	read paths.Cold
}

// learnConnections takes in what cold readings of a node have told, and reports whether that is to be stored.
func (b *dataBook) learnConnections(node string, stored map[string]api.DataPath) (notable bool) {
	for _, c := range b.cold {
		origin, why := dataset.OriginOf(c.of.Files)
		if c.node != node || why != "" {
			continue
		}
		from := dataset.ServerOf("root://" + origin.Server)
		next, was := paths.LearnConnection(b.newest[node][from], from, c.read), stored[from]
		if next.From == "" {
			continue // nothing else is known of that path
		}
		b.newest[node][from] = next
		notable = notable || paths.Notable(&was, &next)
	}
	return notable
}

// cachedOutcome is what came of the prediction for a member that reads through a cache; false: nothing was predicted of it, or it has not read nearly as much as
// it was taken to read, so its time says nothing yet.
func cachedOutcome(d *api.Dataset, a *api.Assignment, r *api.DataReading) (api.DataOutcome, bool) {
	claim := a.DataClaimOf(strings.TrimPrefix(d.Name, d.Project+"."))
	if claim == nil || !claim.Way.Cached() || claim.Seconds == nil || r.WaitedSeconds <= 0 || float64(r.Bytes) < mostOfIt*float64(claim.Bytes) {
		return api.DataOutcome{}, false
	}
	return api.DataOutcome{
		Node: r.Node, Choice: claim.Choice, Member: r.Member, Groups: []string{r.Group}, Bytes: r.Bytes, PredictedBytes: claim.Bytes,
		PredictedSeconds: *claim.Seconds, Seconds: r.WaitedSeconds, At: r.At,
	}, true
}

func hasOutcome(all api.DataOutcomes, member string) bool {
	return slices.ContainsFunc(all.Newest, func(o api.DataOutcome) bool { return o.Member == member })
}
