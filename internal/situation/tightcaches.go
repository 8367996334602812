package situation

import (
	"fmt"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	datasetplan "github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/state"
)

// TightCache is a node's cache that is too small for what a cluster reads of a dataset through it.
type TightCache struct {
	Cluster *state.Cluster
	Node    string
	// Dataset is the name within the cluster's project.
	Dataset string
	Cache   dataset.CacheState
}

// TightCaches returns the caches that are too small, once for each cluster that reads through them, by what nodes say.
func TightCaches(view *state.View, nodes []datasetplan.Node) []TightCache {
	var all []TightCache
	for _, n := range nodes {
		for _, cache := range n.Caches {
			if !cache.TooSmall(cache.SizeBytes) {
				continue
			}
			for _, c := range view.ClustersOnNode(n.Name) {
				if name, reads := readsThrough(view, c, n.Name, cache.UID); reads {
					all = append(all, TightCache{Cluster: c, Node: n.Name, Dataset: name, Cache: cache})
				}
			}
		}
	}
	return all
}

// readsThrough is the name by which members of a cluster on a node read a dataset through its cache.
func readsThrough(view *state.View, c *state.Cluster, node, uid string) (name string, reads bool) {
	for a := range c.Held() {
		if a.Node != node || a.IsPart() {
			continue
		}
		for _, g := range c.Intent.Spec.Groups {
			if g.Name != a.Group {
				continue
			}
			for _, text := range g.Datasets {
				use := api.ParseDatasetUse(text).For(a)
				if d := view.Dataset(state.DatasetName(c.Intent.Project, use.Name)); use.Way.Cached() && d != nil && d.UID == uid {
					return use.Name, true
				}
			}
		}
	}
	return "", false
}

// subject is how the messages about a dataset's cache begin.
func (t TightCache) subject() string { return fmt.Sprintf("dataset %q: ", t.Dataset) }

// Said reports whether one of the events of a cluster is about this cache. Those of an earlier cluster of the same name are not.
func (t TightCache) Said(events []api.Event) bool {
	for _, e := range events {
		if e.Reason == api.ReasonCacheTooSmall && e.Node == t.Node && strings.HasPrefix(e.Message, t.subject()) && !e.Time.Before(t.Cluster.Intent.CreatedAt) {
			return true
		}
	}
	return false
}

// Event is what the cluster's log gets of the cache.
func (t TightCache) Event(now time.Time) api.Event {
	bytes := resource.Storage.Number
	return api.Event{
		Time: now, Cluster: t.Cluster.Name(), Node: t.Node, Reason: api.ReasonCacheTooSmall,
		Message: fmt.Sprintf("%sits cache on %s of %s is too small for what is read through it: of %s fetched, %s had been there before and had made room; "+
			"ask for a copy, or have an administrator give the node more room (nearmetal agent --xcache)",
			t.subject(), t.Node, bytes(t.Cache.SizeBytes), bytes(t.Cache.MissBytes+t.Cache.AheadBytes), bytes(t.Cache.AgainBytes)),
	}
}
