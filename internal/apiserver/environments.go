package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

func (s *Server) listEnvironments(ctx context.Context, _ *struct{}) (*body[api.List[api.Environment]], error) {
	return &body[api.List[api.Environment]]{api.List[api.Environment]{Items: s.environments(ctx)}}, nil
}

// environments are the nodes' own and those that were built, without those of other projects.
func (s *Server) environments(ctx context.Context) []api.Environment {
	view := s.cfg.Reader.View()
	return slices.DeleteFunc(s.joinImages(view, joinEnvironments(view)), func(e api.Environment) bool {
		return !seesEnvironment(who(ctx), view.Environment(e.Name))
	})
}

// seesEnvironment reports whether a principal may know of an environment. What was not built here is everybody's.
func seesEnvironment(p tenancy.Principal, e *api.EnvironmentRecord) bool {
	return e == nil || e.Project == "" || seesProject(p, e.Project)
}

func noEnvironment(name string) *failure {
	return fail(codeNoEnvironment, "environment %q does not exist; 'nearmetal env list' lists the environments", name)
}

func (s *Server) getEnvironment(ctx context.Context, in *byName) (*body[api.Environment], error) {
	e := s.findEnvironment(ctx, in.Name)
	if e == nil {
		return nil, noEnvironment(in.Name)
	}
	if record := s.cfg.Reader.View().Environment(in.Name); record != nil {
		e.Recipe, e.Saved = record.Recipe, record.Saved
	}
	return &body[api.Environment]{*e}, nil
}

func (s *Server) findEnvironment(ctx context.Context, name string) *api.Environment {
	all := s.environments(ctx)
	if i := slices.IndexFunc(all, func(e api.Environment) bool { return e.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// checkInput names an environment and, perhaps, one node.
type checkInput struct {
	Name string `path:"name" doc:"Name of the environment"`
	Node string `query:"node" doc:"Only this node"`
}

func (s *Server) checkEnvironment(ctx context.Context, in *checkInput) (*body[api.EnvironmentCheck], error) {
	e := s.findEnvironment(ctx, in.Name)
	if e == nil {
		return nil, noEnvironment(in.Name)
	}
	check := api.EnvironmentCheck{Environment: in.Name, CheckedAt: s.cfg.Now().UTC(), Nodes: e.Nodes}
	if e.Image != nil {
		check.Digest = e.Image.Digest
	}
	if in.Node == "" {
		return &body[api.EnvironmentCheck]{check}, nil
	}
	i := slices.IndexFunc(e.Nodes, func(n api.EnvironmentNode) bool { return n.Node == in.Node })
	switch view := s.cfg.Reader.View(); {
	case i >= 0:
		check.Nodes = e.Nodes[i : i+1]
	case view.Node(in.Node) == nil:
		return nil, noNode(in.Node)
	default:
		check.Nodes = []api.EnvironmentNode{{Node: in.Node, Problems: []string{"the node does not have this environment"}}}
	}
	return &body[api.EnvironmentCheck]{check}, nil
}

// deleteInput names an environment, and whether it is deleted although the site has a use for it.
type deleteInput struct {
	Name  string `path:"name" doc:"Name of the environment"`
	Force bool   `query:"force" doc:"Delete it even if machines can't be inspected without it"`
}

func (s *Server) deleteEnvironment(ctx context.Context, in *deleteInput) (*struct{}, error) {
	view := s.cfg.Reader.View()
	record := view.Environment(in.Name)
	switch {
	case !seesEnvironment(who(ctx), record):
		return nil, noEnvironment(in.Name)
	case record != nil && record.Project == "" && !isAdmin(ctx):
		return nil, fail(codeForbidden, "environment %q is the site's; only administrators delete it", in.Name)
	case record == nil:
		if s.findEnvironment(ctx, in.Name) != nil {
			return nil, fail(codeEnvironmentInUse, "environment %q belongs to the nodes; it was not built here and can't be deleted", in.Name)
		}
		return nil, noEnvironment(in.Name)
	}
	if in.Name == lifecycle.InspectEnvironment && !in.Force {
		return nil, fail(codeEnvironmentInUse, "environment %q is what machines boot for inspection: without it no machine can be inspected, and "+
			"new machines can't be discovered or enrolled; --force deletes it anyway, and 'nearmetal env build %s' builds it again",
			in.Name, in.Name)
	}
	revision, err := s.cfg.Writer.DeleteEnvironment(ctx, view, in.Name)
	switch {
	case errors.Is(err, state.ErrNotFound):
		return nil, noEnvironment(in.Name)
	case errors.Is(err, state.ErrInUse):
		return nil, fail(codeEnvironmentInUse, "%v; delete or power off what uses it, then delete it", err)
	case err != nil:
		return nil, err
	}
	s.readOwnWrite(ctx, revision)
	return nil, nil
}

// buildLetters is the length of a build's ID: 50 random bits.
const buildLetters = 10

func noBuild(id string) *failure {
	return fail(codeNoBuild, "build %q does not exist; 'nearmetal env builds' lists the builds", id)
}

func (s *Server) createBuild(ctx context.Context, in *rawBody) (*created[api.Build], error) {
	req, src, err := readBody[api.BuildRequest](*in)
	if err != nil {
		return nil, err
	}
	text, err := s.recipeText(req, src)
	if err != nil {
		return nil, err
	}
	name, digest, err := s.parseRecipe(text)
	if err != nil {
		return nil, err
	}
	build := api.Build{
		ID: newID(buildLetters), Environment: name, Recipe: string(text), RecipeDigest: digest, Force: req.Force, Verify: req.Verify, Phase: api.BuildPending,
		CreatedAt: s.cfg.Now().UTC(), By: userOf(ctx),
	}
	revision, err := s.cfg.Writer.CreateBuild(ctx, build)
	if err != nil {
		return nil, err
	}
	return &created[api.Build]{Location: "/v1/builds/" + build.ID, Body: s.buildAfter(ctx, build, revision)}, nil
}

// recipeText is the recipe that a request means.
func (s *Server) recipeText(req api.BuildRequest, src *manifest.Source) ([]byte, error) {
	switch {
	case req.Recipe != "" && req.Shipped != "":
		return nil, failFields(codeInvalidRequest, api.FieldProblem{
			Location: "shipped", Line: src.Line("shipped"), Value: req.Shipped, Message: "is given beside recipe; give only one of them",
		})
	case req.Shipped != "":
		return s.shippedRecipe(req.Shipped)
	case req.Recipe == "":
		return nil, failFields(codeInvalidRequest, api.FieldProblem{
			Location: "recipe", Message: "is missing; give the recipe's text, or the name of one that comes with the product as shipped",
		})
	}
	return []byte(req.Recipe), nil
}

func (s *Server) shippedRecipe(name string) ([]byte, error) {
	var names []string
	if s.cfg.Recipes != nil {
		if text, ok := s.cfg.Recipes.Shipped(name); ok {
			return text, nil
		}
		names = s.cfg.Recipes.ShippedNames()
	}
	message := "no recipe comes with this server"
	if len(names) > 0 {
		message = "the recipes are: " + quoteAll(names)
	}
	if near := manifest.Closest(name, names); near != "" {
		message += "; did you mean \"" + near + "\"?"
	}
	return nil, fail(codeNoRecipe, "recipe %q does not exist; %s", name, message)
}

// parseRecipe checks a recipe; lines in its problems are those of the recipe.
func (s *Server) parseRecipe(text []byte) (name, digest string, err error) {
	if s.cfg.Recipes == nil {
		return "", "", fail(codeUnavailable, "this server builds no environments")
	}
	name, digest, err = s.cfg.Recipes.Parse(text)
	var invalid *manifest.Invalid
	switch {
	case errors.As(err, &invalid):
		f := failFields(codeInvalidRecipe, invalid.Problems...)
		f.Detail = "the recipe: " + f.Detail
		return "", "", f
	case err != nil:
		return "", "", fail(codeInvalidRecipe, "the recipe: %v", err)
	}
	if e := s.cfg.Reader.View().Environment(name); e != nil && e.Project != "" {
		return "", "", failFields(codeInvalidRecipe, api.FieldProblem{
			Location: "name", Value: name, Message: fmt.Sprintf("is the name of an environment of project %q; choose another name", e.Project),
		})
	}
	for _, own := range joinEnvironments(s.cfg.Reader.View()) {
		if own.Name == name && s.cfg.Reader.View().Environment(name) == nil && !heldImage(own) {
			return "", "", failFields(codeInvalidRecipe, api.FieldProblem{
				Location: "name", Value: name, Message: "is the name of an environment of the nodes; choose another name",
			})
		}
	}
	return name, digest, nil
}

// heldImage tells whether what nodes report is an image that was built here: they report its manifest's digest.
func heldImage(e api.Environment) bool {
	return slices.ContainsFunc(e.Nodes, func(n api.EnvironmentNode) bool { return len(n.Digest) == len("sha256:")+64 })
}

// buildAfter is a build after a write.
func (s *Server) buildAfter(ctx context.Context, build api.Build, revision int64) api.Build {
	if view, ok := s.readOwnWrite(ctx, revision); ok {
		if now := view.Build(build.ID); now != nil {
			return *now
		}
	}
	return build
}

func (s *Server) listBuilds(ctx context.Context, _ *struct{}) (*body[api.List[api.Build]], error) {
	list := api.List[api.Build]{Items: []api.Build{}}
	for _, b := range s.cfg.Reader.View().Builds {
		if !seesBuild(who(ctx), b) {
			continue
		}
		shown := *b
		shown.Recipe = ""
		list.Items = append(list.Items, shown)
	}
	slices.SortStableFunc(list.Items, func(a, b api.Build) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return &body[api.List[api.Build]]{list}, nil
}

// seesBuild reports whether a principal may know of a build.
func seesBuild(p tenancy.Principal, b *api.Build) bool {
	return b.Project == "" || seesProject(p, b.Project)
}

func (s *Server) getBuild(ctx context.Context, in *byID) (*body[api.Build], error) {
	b := s.cfg.Reader.View().Build(in.ID)
	if b == nil || !seesBuild(who(ctx), b) {
		return nil, noBuild(in.ID)
	}
	return &body[api.Build]{*b}, nil
}

func (s *Server) cancelBuild(ctx context.Context, in *byID) (*body[api.Build], error) {
	build, revision, err := s.cfg.Writer.UpdateBuild(ctx, in.ID, func(b *api.Build) error {
		b.CancelRequested = b.CancelRequested || !b.Phase.Ended()
		return nil
	})
	if errors.Is(err, state.ErrNotFound) {
		return nil, noBuild(in.ID)
	}
	if err != nil {
		return nil, err
	}
	return &body[api.Build]{s.buildAfter(ctx, build, revision)}, nil
}

func (s *Server) listRecipes(context.Context, *struct{}) (*body[api.List[api.Recipe]], error) {
	list := api.List[api.Recipe]{Items: []api.Recipe{}}
	if s.cfg.Recipes != nil {
		for _, name := range s.cfg.Recipes.ShippedNames() {
			list.Items = append(list.Items, api.Recipe{Name: name})
		}
	}
	slices.SortFunc(list.Items, func(a, b api.Recipe) int { return strings.Compare(a.Name, b.Name) })
	return &body[api.List[api.Recipe]]{list}, nil
}

func (s *Server) getRecipe(_ context.Context, in *byName) (*body[api.Recipe], error) {
	text, err := s.shippedRecipe(in.Name)
	if err != nil {
		return nil, err
	}
	return &body[api.Recipe]{api.Recipe{Name: in.Name, Text: string(text)}}, nil
}
