package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
)

// scheduleLayers lets the user of a cluster add layers to it and remove them now and then. What happens is drawn by name, and shifts nothing else.
func (w *world) scheduleLayers(name, uid string, lasts time.Duration) {
	for turn := range w.drawnFor(uid+" layers", 6) {
		key := fmt.Sprintf("%s layer %d", uid, turn)
		w.after(time.Duration(w.drawnFor(key, int(min(lasts, 5*time.Minute)/time.Millisecond)+1))*time.Millisecond, func() {
			if s := w.up(); s != nil && !w.isCalm() {
				w.changeLayers(s, name, uid, key)
			}
		})
	}
}

// changeLayers is what the API does with a request to add a layer, or to remove one.
func (w *world) changeLayers(s *server, name, uid, key string) {
	c := s.cluster(name, uid)
	if c == nil || lifecycle.LayersRefused(&c.Intent.Spec) != "" || c.Record == nil || c.Record.Phase == api.ClusterFailed || c.Record.Phase == api.ClusterRefused {
		return
	}
	environment := environments[w.drawnFor(key+" which", len(environments))]
	record := s.cache.View().Environment(environment)
	if record == nil {
		return
	}
	layer, what := api.Layer{Environment: environment, Path: api.LayerDir + "/" + environment, Digest: record.Digest}, "layer add"
	next := slices.DeleteFunc(slices.Clone(c.Intent.Layers), func(l api.Layer) bool { return l.Environment == environment })
	if len(next) < len(c.Intent.Layers) {
		what = "layer remove"
	} else {
		next = append(next, layer)
	}
	_, _, err := s.repo.UpdateIntent(s.ctx, name, uid, func(in *api.ClusterIntent) error {
		if in.LayersNumber != c.Intent.LayersNumber || in.DeleteRequestedAt != nil {
			return errChangedMeanwhile
		}
		in.Layers = next
		return nil
	})
	if err == nil {
		w.happened(what)
	}
	w.trace("%s for %s, to %v: %v", what, name, next, err)
}

// checkLayersAtRest checks that members have the layers that their clusters ask for and no others, and that what was removed is noted.
func (w *world) checkLayersAtRest(c *state.Cluster) {
	if c.Record == nil || c.Record.Phase != api.ClusterReady || c.Intent.LayersNumber == 0 {
		return
	}
	if c.Record.LayersNumber != c.Intent.LayersNumber || len(c.RemovedLayers()) > 0 {
		w.fail("rest", "cluster %s has layers %d noted, and asks for %d; removed are %+v", c.Name(), c.Record.LayersNumber, c.Intent.LayersNumber, c.RemovedLayers())
	}
	for a := range c.Held() {
		n := w.node(a.Node)
		if n == nil || !a.IsMember() {
			continue
		}
		if h := n.host[a.ID]; h != nil && h.runs() && !slices.Equal(h.layers, c.Intent.Layers) {
			w.fail("rest", "%s on %s has the layers %+v, and its cluster asks for %+v", a.ID, a.Node, h.layers, c.Intent.Layers)
		}
	}
	w.happened("layer at rest")
}
