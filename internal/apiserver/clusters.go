package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// uidLetters is the length of a cluster's unique ID: 60 random bits.
const uidLetters = 12

func noCluster(name string) *failure {
	return fail(codeNoCluster, "cluster %q does not exist; 'nearmetal cluster list' lists the clusters", name)
}

func (s *Server) listClusters(ctx context.Context, _ *struct{}) (*body[api.List[api.Cluster]], error) {
	view, p := s.cfg.Reader.View(), who(ctx)
	list := api.List[api.Cluster]{Items: make([]api.Cluster, 0, len(view.Clusters))}
	for _, c := range view.Clusters {
		if seesCluster(p, c.Name()) {
			list.Items = append(list.Items, joinCluster(c, s.cfg.Live))
		}
	}
	return &body[api.List[api.Cluster]]{list}, nil
}

func (s *Server) getCluster(ctx context.Context, in *byName) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	joined := joinCluster(c, s.cfg.Live)
	withGPUs(s.cfg.Reader.View(), c, joined.Status.Members)
	return &body[api.Cluster]{joined}, nil
}

// readCluster reads a body that asks for a cluster into its normal form. made is the cluster that it is for, nil for a new one: its groups keep what
// they were made with by a shape.
func (s *Server) readCluster(in rawBody, made *state.Cluster) (manifest.Cluster, error) {
	var none manifest.Cluster
	format, err := bodyFormat(in.ContentType)
	if err != nil {
		return none, err
	}
	req, src, err := manifest.DecodeCluster(in.RawBody, format)
	if err != nil {
		return none, failInvalid(err, codeInvalidCluster)
	}
	req, err = s.shaped(req, src, made)
	if err != nil {
		return none, err
	}
	req.Home = s.homeOf(req, made)
	normal, err := manifest.Normalize(req, src)
	if err != nil {
		return none, failInvalid(err, codeInvalidCluster)
	}
	return normal, nil
}

func (s *Server) createCluster(ctx context.Context, in *rawBody) (*created[api.Cluster], error) {
	normal, err := s.readCluster(*in, nil)
	if err != nil {
		return nil, err
	}
	intent, err := s.newIntent(ctx, normal)
	if err != nil {
		return nil, err
	}
	c, err := s.storeCluster(ctx, intent)
	if err != nil {
		return nil, err
	}
	return &created[api.Cluster]{Location: "/v1/clusters/" + intent.Name, Body: c}, nil
}

// newIntent is the intent of a new cluster that who asks may have.
func (s *Server) newIntent(ctx context.Context, want manifest.Cluster) (api.ClusterIntent, error) {
	var none api.ClusterIntent
	p, view := who(ctx), s.cfg.Reader.View()
	project := cmp.Or(want.Project, projectOr(p.Project))
	if !seesProject(p, project) {
		return none, fail(codeForbidden, "your token is for project %q; only an administrator may create a cluster in project %q",
			projectOr(p.Project), project)
	}
	if view.Project(project) == nil {
		return none, noProject(project)
	}
	if err := covered(p, tenancy.FullName(project, want.Name)); err != nil {
		return none, err
	}
	if err := mayPrioritize(ctx, want.Spec); err != nil {
		return none, err
	}
	if err := knownNetworks(want.Spec, project, view); err != nil {
		return none, err
	}
	if err := s.ownNetworkFits(view, &want.Spec); err != nil {
		return none, err
	}
	if err := s.interfacesFit(api.ClusterSpec{}, want.Spec, project, view); err != nil {
		return none, err
	}
	if err := oneGateway(api.ClusterSpec{}, want.Spec, project, view); err != nil {
		return none, err
	}
	if err := addressesFree(p, api.ClusterSpec{}, want.Spec, project, view); err != nil {
		return none, err
	}
	if err := knownSecurityGroups(want.Spec, project, view); err != nil {
		return none, err
	}
	if err := knownDatasets(want.Spec, project, view); err != nil {
		return none, err
	}
	if err := s.clusterDataFits(view, project, want.Name, want.Spec); err != nil {
		return none, err
	}
	withDisks(want.Spec, api.ClusterSpec{}, view)
	if err := knownHere(project, want.Spec, view, s.cfg.Offers); err != nil {
		return none, err
	}
	return api.ClusterIntent{
		Name: tenancy.FullName(project, want.Name), UID: newID(uidLetters), Labels: want.Labels, Spec: want.Spec,
		Project: project, User: userOf(ctx), CreatedAt: s.cfg.Now().UTC(),
	}, nil
}

// mayPrioritize refuses a priority that only an administrator may ask for.
func mayPrioritize(ctx context.Context, spec api.ClusterSpec) error {
	if spec.Priority > 0 && !isAdmin(ctx) {
		return fail(codeForbidden, "a priority above 0 requires an administrator, not %d; omit it, or give 0 or less", spec.Priority)
	}
	return nil
}

// storeCluster stores a new cluster and returns it as it is then.
func (s *Server) storeCluster(ctx context.Context, intent api.ClusterIntent) (api.Cluster, error) {
	if err := s.ensureHome(ctx, &intent); err != nil {
		return api.Cluster{}, err
	}
	revision, err := s.writeCluster(ctx, intent)
	switch {
	case errors.Is(err, state.ErrNoVolume):
		return api.Cluster{}, fail(codeUnknownVolume, "%v", err)
	case errors.Is(err, state.ErrInUse) || errors.Is(err, state.ErrAccess) || errors.Is(err, state.ErrOwned):
		return api.Cluster{}, fail(codeVolumeInUse, "%v", err)
	case errors.Is(err, state.ErrOneMachine):
		return api.Cluster{}, fail(codeCantAttach, "%v", err)
	case errors.Is(err, state.ErrImporting):
		return api.Cluster{}, fail(codeVolumeImporting, "%v", err)
	case errors.Is(err, state.ErrExists):
		s.seenThere(ctx, intent.Name)
		return api.Cluster{}, s.clusterExists(ctx, intent.Name)
	case errors.Is(err, state.ErrNoProject):
		return api.Cluster{}, noProject(intent.Project)
	case errors.Is(err, state.ErrNoDataset):
		return api.Cluster{}, fail(codeUnknownDataset, "%v; it was deleted meanwhile", err)
	case errors.Is(err, state.ErrNoSecurityGroup):
		return api.Cluster{}, fail(codeUnknownSecurityGroup, "%v; it was deleted meanwhile", err)
	case errors.Is(err, state.ErrNoNetwork):
		return api.Cluster{}, fail(codeUnknownNetwork, "%v; it was deleted meanwhile", err)
	case err != nil:
		return api.Cluster{}, err
	}
	return joinCluster(s.afterWrite(ctx, intent, revision, nil), s.cfg.Live), nil
}

// clusterExists says what has the name, and what to do.
func (s *Server) clusterExists(ctx context.Context, full string) error {
	name := shownName(who(ctx), full)
	if c := s.cfg.Reader.View().Cluster(full); c != nil && c.Intent.DeleteRequestedAt != nil {
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
func knownHere(project string, spec api.ClusterSpec, view *state.View, offers offer.Site) error {
	if f := checkForeign(project, spec, view); f != nil {
		return f
	}
	if !view.AnyAgent() {
		return nil
	}
	var environments, stacks []string
	for _, n := range view.Nodes {
		checks := offer.Carried(n.Hardware(), offers)
		if n.Agent != nil {
			checks = slices.Concat(checks, n.Agent.Stacks)
			for _, e := range n.Agent.Environments {
				environments = append(environments, e.Name)
			}
		}
		for _, check := range checks {
			if check.OK {
				stacks = append(stacks, string(check.Stack))
			}
		}
	}
	for _, e := range view.Environments { // nodes fetch what was built when a member needs it
		environments = append(environments, e.Name)
	}
	environments = slices.DeleteFunc(environments, func(name string) bool { // other projects' own
		e := view.Environment(name)
		return e != nil && e.Project != "" && e.Project != projectOr(project)
	})
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
	for n := range view.Agents() {
		for _, check := range n.Stacks {
			if check.Stack == stack && len(check.Problems) > 0 {
				return fmt.Sprintf("; node %q reports: %s", n.Name, check.Problems[0])
			}
		}
	}
	return ""
}

func (s *Server) deleteCluster(ctx context.Context, in *byName) (*body[api.Cluster], error) {
	full, err := resolve(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	before := s.cfg.Reader.View().Cluster(full)
	intent, revision, err := s.cfg.Writer.RequestDelete(ctx, full, s.cfg.Now().UTC())
	if errors.Is(err, state.ErrNotFound) {
		if err := s.seenGone(ctx, before); err != nil {
			return nil, err
		}
		return nil, noCluster(in.Name)
	}
	if err != nil {
		return nil, err
	}
	return &body[api.Cluster]{joinCluster(s.afterWrite(ctx, intent, revision, nil), s.cfg.Live)}, nil
}
