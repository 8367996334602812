package state

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// changeLayers notes what a change of a cluster's layers leaves for members to let go of, given which they were. Such a layer's image stays in use until
// the leader has noted that no member has it.
func (r *Repo) changeLayers(ctx context.Context, in *api.ClusterIntent, before []api.Layer) error {
	if slices.Equal(before, in.Layers) {
		return nil
	}
	in.LayersNumber++
	pending, err := r.removedLayers(ctx, in)
	if err != nil {
		return err
	}
	in.RemovedLayers = slices.DeleteFunc(pending, func(l api.LayerRemoval) bool { return slices.Contains(in.Layers, l.Layer) })
	for _, was := range before {
		if !slices.Contains(in.Layers, was) {
			in.RemovedLayers = append(in.RemovedLayers, api.LayerRemoval{Layer: was, Number: in.LayersNumber})
		}
	}
	return nil
}

// removedLayers returns the layers that members of a cluster may still have, and are to let go of.
func (r *Repo) removedLayers(ctx context.Context, in *api.ClusterIntent) ([]api.LayerRemoval, error) {
	if len(in.RemovedLayers) == 0 {
		return nil, nil
	}
	record, _, err := get[api.ClusterRecord](ctx, r, prefixRecord+in.Name, "record of cluster", in.Name)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	return stillRemoved(in, &record), nil
}

// stillRemoved returns the layers that members of a cluster may still have, and are to let go of.
func stillRemoved(in *api.ClusterIntent, record *api.ClusterRecord) []api.LayerRemoval {
	if len(in.RemovedLayers) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(in.RemovedLayers), func(l api.LayerRemoval) bool { return record != nil && l.Number <= record.LayersNumber })
}

// RemovedLayers returns the layers that members of the cluster may still have, and are to let go of.
func (c *Cluster) RemovedLayers() []api.LayerRemoval { return stillRemoved(&c.Intent, c.Record) }

// usesLayers returns conditions on which the images of layers stay, and writes that fail who removes such an image at the same moment. One that is not
// stored is ErrNotFound.
func (r *Repo) usesLayers(ctx context.Context, layers []api.Layer) (conds []store.Cond, ops []store.Op, err error) {
	written := map[string]bool{}
	for _, layer := range layers {
		if written[layer.Digest] {
			continue
		}
		cond, op, err := r.keepImage(ctx, api.Image{Digest: layer.Digest})
		if err != nil {
			return nil, nil, err
		}
		if cond.Revision == 0 {
			return nil, nil, fmt.Errorf("image %q of layer %q %w", layer.Digest, layer.Environment, ErrNoImage)
		}
		written[layer.Digest] = true
		conds, ops = append(conds, cond), append(ops, op)
	}
	return conds, ops, nil
}

// ErrNoImage reports that the image of a layer was removed.
var ErrNoImage = errors.New("was deleted meanwhile")

// layersUsing counts the layers of a cluster, those included that members are to let go of, that are of an image or, for a name, of that environment.
func layersUsing(c *Cluster, name, digest string) int {
	n := 0
	uses := func(layer api.Layer) {
		if layer.Digest == digest || name != "" && layer.Environment == name {
			n++
		}
	}
	for _, layer := range c.Intent.Layers {
		uses(layer)
	}
	for _, removed := range c.RemovedLayers() {
		uses(removed.Layer)
	}
	return n
}
