package agent

import (
	"context"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// Layers mounts layers of built environments on this node. *layers.Store implements it.
type Layers interface {
	// Path returns where Mount mounts an image's own layer for members with a range of user IDs, {} for the host's own.
	Path(digest string, ids api.IDRange) string
	// Mount mounts it there, unless it is.
	Mount(digest string, ids api.IDRange) error
	// Keep takes away all that is not at one of these paths. Members go on with what they have of it.
	Keep(paths []string) error
}

// placeLayers adds where on this host a member finds its layers.
func (a *Agent) placeLayers(w *agentstream.Member) {
	if a.cfg.Layers == nil {
		return // it is not started: see missingLayer
	}
	for _, layer := range w.Layers {
		w.Mounts = append(w.Mounts, driver.Mount{Source: a.cfg.Layers.Path(layer.Digest, ownersOf(&w.Assignment)), Path: layer.MountPath(), ReadOnly: true})
	}
}

// ownersOf are the user IDs that the files of a member's layers have on this host: on a whole machine they are those of the files themselves.
func ownersOf(assignment *api.Assignment) api.IDRange {
	if assignment.Whole {
		return api.IDRange{}
	}
	return assignment.UserIDs
}

// missingLayer returns what this node lacks of layers, "" when all of them can be mounted. That an image comes wakes the loop.
func (a *Agent) missingLayer(layers []api.Layer) string {
	for _, layer := range layers {
		if a.cfg.Images == nil || a.cfg.Layers == nil {
			return fmt.Sprintf("layer %q can't be had: this node mounts no images", layer.Environment)
		}
		if ok, why := a.cfg.Images.Whole(layer.Digest); !ok {
			return fmt.Sprintf("layer %q: %s", layer.Environment, why)
		}
	}
	return ""
}

// mountLayers mounts the layers of a member on this host, for its driver.
func (a *Agent) mountLayers(layers []api.Layer, assignment *api.Assignment) error {
	for _, layer := range layers {
		if err := a.cfg.Layers.Mount(layer.Digest, ownersOf(assignment)); err != nil {
			return fmt.Errorf("layer %q: %w", layer.Environment, err)
		}
	}
	return nil
}

// trimLayers takes away the layers that no member here is to have, once none has others than those: until then it is not known which are still used.
func (a *Agent) trimLayers(ctx context.Context) {
	if a.cfg.Layers == nil || a.desired == nil {
		return
	}
	var keep []string
	for _, m := range a.members {
		switch {
		case m.gone():
			continue
		case m.busy || m.want == nil || !m.want.Release && alive(m.state) && !m.mounts.are(&m.want.Member):
			return
		}
		for _, layer := range m.want.Layers {
			keep = append(keep, a.cfg.Layers.Path(layer.Digest, ownersOf(&m.want.Assignment)))
		}
	}
	slices.Sort(keep)
	keep = slices.Compact(keep)
	if a.layersKnown && slices.Equal(keep, a.layersKept) {
		return
	}
	if err := a.cfg.Layers.Keep(keep); err != nil {
		a.cfg.Log.WarnContext(ctx, "layers that no member has can't be taken away", "error", err)
		return
	}
	a.layersKept, a.layersKnown = keep, true
}
