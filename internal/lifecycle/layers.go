package lifecycle

import (
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// LayersRefused returns why members of a cluster can't have layers beside their roots, or "".
func LayersRefused(spec *api.ClusterSpec) string {
	for i := range spec.Groups {
		if g := &spec.Groups[i]; g.Stack != api.StackContainer && g.Stack != api.StackMetal {
			return fmt.Sprintf("members of group %q run on stack %q, whose members have no layers; only those of the stacks %q and %q do", g.Name, g.Stack, api.StackContainer, api.StackMetal)
		}
	}
	return ""
}

// planLayers notes when all members have the layers that their cluster asks for, and no others: what was removed is used by nobody from then on. A member
// that is lost is replaced by one that starts with these layers.
func (l *look) planLayers() []ClusterOperation {
	number := l.Intent.LayersNumber
	if l.Record.LayersNumber == number || slices.ContainsFunc(l.members, func(m member) bool { return m.loss == "" && m.seen.Layers != number }) {
		return nil
	}
	return []ClusterOperation{NoteLayers{Number: number}, Emit{Reason: EventLayersChanged, Message: layersText(l.Intent.Layers)}}
}

// layersText says which layers members have.
func layersText(layers []api.Layer) string {
	if len(layers) == 0 {
		return "no member has a layer any more"
	}
	var names []string
	for _, layer := range layers {
		names = append(names, fmt.Sprintf("%q at %s", layer.Environment, layer.MountPath()))
	}
	return "all members have the layers " + list(names)
}
