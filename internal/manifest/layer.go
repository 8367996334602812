package manifest

import (
	"strconv"

	"github.com/nearmetal/nearmetal/api"
)

// WithLayer returns the layers of a cluster with one more. The error is an *Invalid.
func WithLayer(intent *api.ClusterIntent, l api.Layer, src *Source) ([]api.Layer, error) {
	n := normalizer{src: src}
	n.label("environment", l.Environment, MaxLabel)
	if l.Path != "" || src.Has("path") {
		n.mountPath("path", l.Path, api.LayerDir+"/"+l.Environment, "add the layer")
	}
	if src.Has("digest") {
		n.add("digest", l.Digest, "can't be chosen: it is the image that the environment's name stands for; omit it")
	}
	l.Path = l.MountPath()
	if atOrBelow(l.Path, homePath) {
		n.add("path", l.Path, "%s is the home, or below it; add the layer elsewhere, such as at %s/%s", l.Path, api.LayerDir, l.Environment)
	}
	overlaps := func(what, at string) {
		if atOrBelow(l.Path, at) || atOrBelow(at, l.Path) {
			n.add("path", l.Path, "%s is at, above or below the path of %s, %s", l.Path, what, at)
		}
	}
	for _, other := range intent.Layers {
		overlaps("layer "+strconv.Quote(other.Environment), other.MountPath())
	}
	for _, v := range intent.Spec.Volumes {
		overlaps("volume "+strconv.Quote(v.Name), v.MountPath())
	}
	if len(intent.Layers) >= api.MaxLayers {
		n.add("environment", l.Environment, "would be layer %d of the cluster; a cluster can have %d", len(intent.Layers)+1, api.MaxLayers)
	}
	return append(append([]api.Layer{}, intent.Layers...), l), n.err()
}
