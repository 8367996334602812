package apiserver

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
)

// layerInput names a layer of a cluster.
type layerInput struct {
	Name        string `path:"name" doc:"Name of the cluster: NAME or PROJECT.NAME"`
	Environment string `path:"environment" doc:"Name of the layer's environment"`
}

func (s *Server) registerLayers() {
	operation(s, "POST /v1/clusters/{name}/layers", AccessChange, "add-layer", "Add a layer to a cluster",
		"All members get the own layer of a built environment read-only, at /layers/ENVIRONMENT or at the path given, while they run; new members get it when "+
			"they start. `status.layers` shows the progress. Only members on the stacks container and metal have layers. The image is the one that the name stands "+
			"for now. A layer that is there at the same path stays as it is.",
		http.StatusOK, s.addLayer, bodyCodes(codeInvalidRequest, codeNoCluster, codeWrongPhase, codeCantAddLayer, codeNoEnvironment)...)
	operation(s, "DELETE /v1/clusters/{name}/layers/{environment}", AccessChange, "remove-layer", "Remove a layer from a cluster",
		"All members let go of the layer while they run. A member that has files of it open keeps it until these are closed; `status.layers` names the "+
			"processes, and shows the layer as removing until no member has it. Until then its image stays.",
		http.StatusOK, s.removeLayer, codeNoCluster, codeWrongPhase, codeNoLayer)
}

func (s *Server) addLayer(ctx context.Context, in *namedBody) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	req, src, err := readBody[api.Layer](in.body())
	if err != nil {
		return nil, err
	}
	name := shownName(who(ctx), c.Name())
	after, err := s.changeIntent(ctx, c, func(intent *api.ClusterIntent) error {
		if i := layerIndex(intent, req.Environment); i >= 0 {
			if has := intent.Layers[i]; has.MountPath() != req.MountPath() {
				return fail(codeCantAddLayer, "cluster %q has layer %q already, at %s; remove it first: nearmetal cluster layer remove %s %s",
					name, req.Environment, has.MountPath(), name, req.Environment)
			}
			return nil
		}
		all, err := manifest.WithLayer(intent, req, src)
		if err != nil {
			return failInvalid(err, codeInvalidRequest)
		}
		if err := canChangeLayers(name, c); err != nil {
			return err
		}
		added := &all[len(all)-1]
		if added.Digest, err = s.layerImage(ctx, intent, name, added.Environment); err != nil {
			return err
		}
		if err := besideRemoved(name, intent, c, *added); err != nil {
			return err
		}
		intent.Layers = all
		return nil
	})
	if errors.Is(err, state.ErrNoImage) {
		return nil, noEnvironment(req.Environment)
	}
	return after, err
}

func (s *Server) removeLayer(ctx context.Context, in *layerInput) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	name := shownName(who(ctx), c.Name())
	return s.changeIntent(ctx, c, func(intent *api.ClusterIntent) error {
		i := layerIndex(intent, in.Environment)
		switch {
		case i < 0 && slices.ContainsFunc(removedLayers(intent, c), func(l api.LayerRemoval) bool { return l.Environment == in.Environment }):
			return nil // that was requested before
		case i < 0:
			return fail(codeNoLayer, "cluster %q has no layer %q; 'nearmetal cluster layer list %s' lists its layers", name, in.Environment, name)
		}
		if err := canChangeLayers(name, c); err != nil {
			return err
		}
		intent.Layers = slices.Delete(slices.Clone(intent.Layers), i, i+1)
		return nil
	})
}

// canChangeLayers refuses other layers to a cluster that is over.
func canChangeLayers(name string, c *state.Cluster) error {
	switch phase := phaseOf(c); {
	case phase == api.ClusterRefused || phase == api.ClusterFailed:
		return fail(codeWrongPhase, "cluster %q is %s, and its layers can't change any more; delete it: nearmetal cluster delete %s", name, phase, name)
	case c.Record != nil && c.Record.ExpiredAt != nil:
		return isExpired(name)
	default:
		return nil
	}
}

// layerImage returns the image whose own layer members of a cluster get by the name of an environment.
func (s *Server) layerImage(ctx context.Context, intent *api.ClusterIntent, name, environment string) (string, error) {
	if why := lifecycle.LayersRefused(&intent.Spec); why != "" {
		return "", fail(codeCantAddLayer, "cluster %q can have no layer: %s", name, why)
	}
	view := s.cfg.Reader.View()
	record := view.Environment(environment)
	switch {
	case record == nil && s.findEnvironment(ctx, environment) != nil:
		return "", fail(codeCantAddLayer, "environment %q belongs to the nodes and has no image; only environments that were built have a layer: nearmetal env build", environment)
	case record == nil || !seesEnvironment(who(ctx), record) || record.Project != "" && record.Project != intent.Project:
		return "", noEnvironment(environment)
	}
	switch img := view.Image(record.Digest); {
	case img == nil:
		return "", noEnvironment(environment)
	case img.Disk != nil || img.RootBytes == 0:
		return "", fail(codeCantAddLayer, "environment %q has no layer: it is the disk of another system, or only boots machines", environment)
	case !img.Vouched():
		return "", fail(codeCantAddLayer, "no node would take environment %q: neither did a trusted builder build it, nor did two nodes arrive at the same image; build it again with --verify", environment)
	default:
		return img.Digest, nil
	}
}

// removedLayers are the layers that members of a cluster may still have, and are to let go of.
func removedLayers(intent *api.ClusterIntent, c *state.Cluster) []api.LayerRemoval {
	return (&state.Cluster{Intent: *intent, Record: c.Record}).RemovedLayers()
}

// besideRemoved refuses a layer in the place of another one that members still have.
func besideRemoved(name string, intent *api.ClusterIntent, c *state.Cluster, added api.Layer) error {
	within := func(a, b string) bool { return strings.HasPrefix(a+"/", b+"/") }
	for _, was := range removedLayers(intent, c) {
		at, now := was.MountPath(), added.MountPath()
		if was.Layer != added && (within(at, now) || within(now, at)) {
			return fail(codeCantAddLayer, "layer %q at %s is still being removed from cluster %q; wait until no member has it: nearmetal cluster layer list %s", was.Environment, at, name, name)
		}
	}
	return nil
}

// underLayers refuses volumes of a cluster at paths where its members have layers.
func underLayers(name string, intent *api.ClusterIntent) error {
	for _, v := range intent.Spec.Volumes {
		for _, l := range intent.Layers {
			if at, has := v.MountPath(), l.MountPath(); strings.HasPrefix(at+"/", has+"/") || strings.HasPrefix(has+"/", at+"/") {
				return fail(codeCantAttach, "members of cluster %q have layer %q at %s; attach volume %q elsewhere", name, l.Environment, has, v.Name)
			}
		}
	}
	return nil
}

func layerIndex(in *api.ClusterIntent, environment string) int {
	return slices.IndexFunc(in.Layers, func(l api.Layer) bool { return l.Environment == environment })
}

// layersOf are a cluster's layers as its members have them.
func layersOf(c *state.Cluster, seen Observed) []api.LayerStatus {
	in := &c.Intent
	removed := c.RemovedLayers()
	if len(in.Layers) == 0 && len(removed) == 0 {
		return nil
	}
	waiting, message := 0, ""
	settled := c.Record != nil && c.Record.LayersNumber == in.LayersNumber
	for a := range c.Held() {
		if !a.IsMember() || seen.Layers(a) == in.LayersNumber {
			continue
		}
		waiting++
		if _, why := seen.Mounted(a); why != "" && message == "" {
			message = a.Member + ": " + why
		}
	}
	all := make([]api.LayerStatus, 0, len(in.Layers)+len(removed))
	for _, l := range in.Layers {
		status := api.LayerStatus{Layer: l, State: api.LayerReady}
		if waiting > 0 || !settled {
			status.State, status.Waiting, status.Message = api.LayerAdding, waiting, message
		}
		all = append(all, status)
	}
	for _, l := range removed {
		all = append(all, api.LayerStatus{Layer: l.Layer, State: api.LayerRemoving, Waiting: waiting, Message: message})
	}
	slices.SortStableFunc(all, func(a, b api.LayerStatus) int { return strings.Compare(a.Environment, b.Environment) })
	return all
}
