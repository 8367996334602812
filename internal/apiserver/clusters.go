package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
)

// uidLetters is the length of a cluster's unique ID: 60 random bits.
const uidLetters = 12

func noCluster(name string) *failure {
	return fail(codeNoCluster, "there is no cluster %q; 'nearmetal cluster list' shows those there are", name)
}

func (s *Server) listClusters(context.Context, *struct{}) (*body[api.List[api.Cluster]], error) {
	view := s.cfg.Reader.View()
	list := api.List[api.Cluster]{Items: make([]api.Cluster, len(view.Clusters))}
	for i, c := range view.Clusters {
		list.Items[i] = joinCluster(c, s.cfg.Live)
	}
	return &body[api.List[api.Cluster]]{list}, nil
}

func (s *Server) getCluster(_ context.Context, in *byName) (*body[api.Cluster], error) {
	c := s.cfg.Reader.View().Cluster(in.Name)
	if c == nil {
		return nil, noCluster(in.Name)
	}
	return &body[api.Cluster]{joinCluster(c, s.cfg.Live)}, nil
}

// createInput is documented as an api.ClusterRequest.
type createInput struct {
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/json"`
}

func (s *Server) createCluster(ctx context.Context, in *createInput) (*created[api.Cluster], error) {
	format, err := bodyFormat(in.ContentType)
	if err != nil {
		return nil, err
	}
	req, src, err := manifest.DecodeCluster(in.RawBody, format)
	if err != nil {
		return nil, failInvalid(err, codeInvalidCluster)
	}
	normal, err := manifest.Normalize(req, src)
	if err != nil {
		return nil, failInvalid(err, codeInvalidCluster)
	}
	if err := knownHere(normal.Spec, s.cfg.Reader.View()); err != nil {
		return nil, err
	}
	intent := api.ClusterIntent{
		Name: normal.Name, UID: newID(uidLetters), Labels: normal.Labels, Spec: normal.Spec, CreatedAt: s.cfg.Now().UTC(),
	}
	revision, err := s.cfg.Writer.CreateCluster(ctx, intent)
	if errors.Is(err, state.ErrExists) {
		return nil, s.clusterExists(normal.Name)
	}
	if err != nil {
		return nil, err
	}
	c := &state.Cluster{Intent: intent}
	if view, ok := s.readOwnWrite(ctx, revision); ok {
		// It may even be gone again by now; what was created is then still the answer.
		if now := view.Cluster(intent.Name); now != nil && now.UID() == intent.UID {
			c = now
		}
	}
	return &created[api.Cluster]{Location: "/v1/clusters/" + intent.Name, Body: joinCluster(c, s.cfg.Live)}, nil
}

// clusterExists says what has the name, and what to do.
func (s *Server) clusterExists(name string) error {
	if c := s.cfg.Reader.View().Cluster(name); c != nil && c.Intent.DeleteRequestedAt != nil {
		return fail(codeClusterExists, "cluster %q is still being deleted; wait until it is gone "+
			"('nearmetal cluster delete %s' waits), or choose another name", name, name)
	}
	return fail(codeClusterExists, "cluster %q already exists; choose another name, or delete it first: "+
		"nearmetal cluster delete %s", name, name)
}

// readOwnWrite waits until the view holds a revision just written, so that a client that lists next sees what it did. The
// write is done whatever comes of this.
func (s *Server) readOwnWrite(ctx context.Context, revision int64) (*state.View, bool) {
	_, err := s.cfg.Reader.WaitRevision(ctx, revision)
	return s.cfg.Reader.View(), err == nil
}

// knownHere refuses environments and stacks that no node knows; while no node is known at all, anything may come.
func knownHere(spec api.ClusterSpec, view *state.View) error {
	if len(view.Nodes) == 0 {
		return nil
	}
	var environments, stacks []string
	for _, n := range view.Nodes {
		for _, e := range n.Environments {
			environments = append(environments, e.Name)
		}
		for _, check := range n.Stacks {
			if check.OK {
				stacks = append(stacks, string(check.Stack))
			}
		}
	}
	slices.Sort(environments)
	slices.Sort(stacks)
	environments, stacks = slices.Compact(environments), slices.Compact(stacks)
	for i, g := range spec.Groups {
		if !slices.Contains(environments, g.Environment) {
			f := fail(codeUnknownEnvironment, "environment %q of group %q is not known to any node; %s",
				g.Environment, g.Name, known("environments", g.Environment, environments))
			f.Errors = []api.FieldProblem{{Location: groupField(spec, i, "environment"), Value: g.Environment, Message: "is not known to any node"}}
			return f
		}
		if !slices.Contains(stacks, string(g.Stack)) {
			f := fail(codeUnknownStack, "stack %q of group %q is not offered by any node; %s%s",
				g.Stack, g.Name, known("stacks", string(g.Stack), stacks), stackTrouble(g.Stack, view))
			f.Errors = []api.FieldProblem{{Location: groupField(spec, i, "stack"), Value: string(g.Stack), Message: "is not offered by any node"}}
			return f
		}
	}
	return nil
}

// groupField is the path of a group's field; the only group of a cluster may have been written in the short form.
func groupField(spec api.ClusterSpec, i int, field string) string {
	if len(spec.Groups) == 1 {
		return field
	}
	return fmt.Sprintf("groups[%d].%s", i, field)
}

// known lists what there is instead, and what was perhaps meant.
func known(what, asked string, names []string) string {
	if len(names) == 0 {
		return "no node has any " + what
	}
	text := "known " + what + ": " + quoteAll(names)
	if near := manifest.Closest(asked, names); near != "" {
		text += fmt.Sprintf("; did you mean %q?", near)
	}
	return text
}

// stackTrouble tells what one node says is missing for a stack.
func stackTrouble(stack api.Stack, view *state.View) string {
	for _, n := range view.Nodes {
		for _, check := range n.Stacks {
			if check.Stack == stack && len(check.Problems) > 0 {
				return fmt.Sprintf("; node %q says: %s", n.Name, check.Problems[0])
			}
		}
	}
	return ""
}

func (s *Server) deleteCluster(ctx context.Context, in *byName) (*body[api.Cluster], error) {
	intent, revision, err := s.cfg.Writer.RequestDelete(ctx, in.Name, s.cfg.Now().UTC())
	if errors.Is(err, state.ErrNotFound) {
		return nil, noCluster(in.Name)
	}
	if err != nil {
		return nil, err
	}
	c := &state.Cluster{Intent: intent}
	if view, ok := s.readOwnWrite(ctx, revision); ok {
		if now := view.Cluster(intent.Name); now != nil && now.UID() == intent.UID {
			c = now
		}
	}
	return &body[api.Cluster]{joinCluster(c, s.cfg.Live)}, nil
}
