package controller

import (
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/paths"
	"github.com/nearmetal/nearmetal/internal/dataset/plan"
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
	var size int64
	for i := range d.Files {
		if d.Files[i].SizeBytes == 0 {
			size = 0
			break
		}
		size += d.Files[i].SizeBytes
	}
	at := r.At
	if at.After(now) { // the node's clock is ahead
		at = now
	}
	one := api.DataReading{
		Member: a.ID, Group: a.Cluster + "/" + a.Group, Node: node, Bytes: r.Bytes, Waits: r.Waits, WaitedSeconds: r.WaitedSeconds, At: at.UTC(),
	}
	if size > 0 {
		one.Fraction = min(1, float64(r.Bytes)/float64(size))
	}
	return one
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
