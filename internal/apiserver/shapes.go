package apiserver

import (
	"context"
	"errors"
	"net/http"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
)

func (s *Server) registerShapes() {
	operation(s, "GET /v1/shapes", AccessRead, "list-shapes", "List shapes", "Named shapes of members, by name.", http.StatusOK, s.listShapes)
	operation(s, "GET /v1/shapes/{name}", AccessRead, "get-shape", "Show a shape", "", http.StatusOK, s.getShape, codeNoShape)
	operation(s, "PUT /v1/shapes/{name}", AccessAdmin, "set-shape", "Make or replace a shape",
		"Clusters keep what they were made with.", http.StatusOK, s.setShape, bodyCodes(codeInvalidRequest, codeNoShape)...)
	operation(s, "DELETE /v1/shapes/{name}", AccessAdmin, "delete-shape", "Remove a shape", "Clusters keep what they were made with.",
		http.StatusNoContent, s.deleteShape, codeNoShape)
}

func noShape(name string) *failure {
	return fail(codeNoShape, "shape %q does not exist; 'nearmetal shape list' lists the shapes", name)
}

func (s *Server) listShapes(context.Context, *struct{}) (*body[api.List[api.NamedShape]], error) {
	list := api.List[api.NamedShape]{Items: []api.NamedShape{}}
	for _, shape := range s.cfg.Reader.View().Shapes {
		list.Items = append(list.Items, *shape)
	}
	return &body[api.List[api.NamedShape]]{list}, nil
}

func (s *Server) getShape(_ context.Context, in *byName) (*body[api.NamedShape], error) {
	shape := s.cfg.Reader.View().Shape(in.Name)
	if shape == nil {
		return nil, noShape(in.Name)
	}
	return &body[api.NamedShape]{*shape}, nil
}

func (s *Server) setShape(ctx context.Context, in *namedBody) (*body[api.NamedShape], error) {
	if manifest.LabelProblem(in.Name, manifest.MaxLabel) != "" {
		return nil, noShape(in.Name) // a path that leads nowhere
	}
	settings, src, err := readBody[api.ShapeSettings](in.body())
	if err != nil {
		return nil, err
	}
	if err := manifest.CheckShape(in.Name, settings, src); err != nil {
		return nil, failInvalid(err, codeInvalidRequest)
	}
	shape := api.NamedShape{Name: in.Name, ShapeSettings: settings, UpdatedAt: s.cfg.Now().UTC()}
	revision, err := s.cfg.Writer.PutShape(ctx, shape)
	if err != nil {
		return nil, err
	}
	_, _ = s.readOwnWrite(ctx, revision)
	return &body[api.NamedShape]{shape}, nil
}

func (s *Server) deleteShape(ctx context.Context, in *byName) (*struct{}, error) {
	revision, err := s.cfg.Writer.DeleteShape(ctx, in.Name)
	if errors.Is(err, state.ErrNotFound) {
		return nil, noShape(in.Name)
	}
	if err != nil {
		return nil, err
	}
	_, _ = s.readOwnWrite(ctx, revision)
	return nil, nil //nolint:nilnil // 204
}

// shaped gives the groups of a request the cores and memory of the shapes that they name. A group of a cluster that is there, made with the same
// shape, keeps what it was made with.
func (s *Server) shaped(req api.ClusterRequest, src *manifest.Source, made *state.Cluster) (api.ClusterRequest, error) {
	view := s.cfg.Reader.View()
	find := func(group, name string) (api.Shape, bool) {
		if made != nil {
			for _, g := range made.Intent.Spec.Groups {
				if g.Name == group && g.ShapeName == name {
					return g.Shape, true
				}
			}
		}
		if shape := view.Shape(name); shape != nil {
			return api.Shape{Cores: shape.Cores, Memory: shape.Memory}, true
		}
		return api.Shape{}, false
	}
	req, problems := manifest.Shaped(req, src, find, func(name string) string { return unknownShape(name, view) })
	if len(problems) > 0 {
		return req, failFields(codeUnknownShape, problems...)
	}
	return req, nil
}

// unknownShape says which shapes there are instead.
func unknownShape(name string, view *state.View) string {
	var names []string
	for _, shape := range view.Shapes {
		names = append(names, shape.Name)
	}
	text := "is not a shape of this site; it has none: give cores and memory"
	if len(names) > 0 {
		text = "is not a shape of this site; its shapes: " + quoteAll(names)
	}
	if near := manifest.Closest(name, names); near != "" {
		text += "; did you mean \"" + near + "\"?"
	}
	return text
}
