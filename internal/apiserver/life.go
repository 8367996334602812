package apiserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"mime"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// readBody reads a body strictly, without checking what it asks for.
func readBody[T any](in rawBody) (T, *manifest.Source, error) {
	var none T
	format, err := bodyFormat(in.ContentType)
	if err != nil {
		return none, nil, err
	}
	req, src, err := manifest.Decode[T](in.RawBody, format)
	if err != nil {
		return none, nil, failInvalid(err, codeInvalidRequest)
	}
	return req, src, nil
}

// readPatch changes into by a merge patch (RFC 7396).
func readPatch(in rawBody, into any) (*manifest.Source, error) {
	if mediaType, _, err := mime.ParseMediaType(in.ContentType); err == nil && mediaType == mergePatchType {
		in.ContentType = "application/json"
	}
	format, err := bodyFormat(in.ContentType)
	if err != nil {
		return nil, err
	}
	src, err := manifest.Patch(in.RawBody, format, into)
	if err != nil {
		return nil, failInvalid(err, codeInvalidRequest)
	}
	return src, nil
}

// changeIntent changes what a user wants of a cluster and returns the cluster after it. change depends on its argument only: it is called
// again when another change came in between.
func (s *Server) changeIntent(ctx context.Context, c *state.Cluster, change func(in *api.ClusterIntent) error) (*body[api.Cluster], error) {
	after, err := s.updateIntent(ctx, c, change)
	if err != nil {
		return nil, err
	}
	return &body[api.Cluster]{joinCluster(after, s.cfg.Live)}, nil
}

func (s *Server) updateIntent(ctx context.Context, c *state.Cluster, change func(in *api.ClusterIntent) error) (*state.Cluster, error) {
	intent, revision, err := s.cfg.Writer.UpdateIntent(ctx, c.Name(), c.UID(), func(in *api.ClusterIntent) error {
		if in.DeleteRequestedAt != nil {
			return deleting(shownName(who(ctx), in.Name))
		}
		view := s.cfg.Reader.View()
		disks := disksOf(view, in)
		if err := change(in); err != nil {
			return err
		}
		return keepsDisks(disks, disksOf(view, in), &in.Spec)
	})
	if errors.Is(err, state.ErrNotFound) {
		if err := s.seenGone(ctx, c); err != nil {
			return nil, err
		}
		return nil, noCluster(shownName(who(ctx), c.Name()))
	}
	if err != nil {
		return nil, err
	}
	return s.afterWrite(ctx, intent, revision, c), nil
}

// seenGone waits until the view lacks a cluster that the store no longer has. The store is ahead of the view: without this
// wait, a client that reads after an answer of "not found" could find the cluster again. A UID never comes back.
func (s *Server) seenGone(ctx context.Context, c *state.Cluster) error {
	for c != nil {
		view := s.cfg.Reader.View()
		if now := view.Cluster(c.Name()); now == nil || now.UID() != c.UID() {
			return nil
		}
		if _, err := s.cfg.Reader.WaitRevision(ctx, view.Revision+1); err != nil {
			return err
		}
	}
	return nil
}

// seenThere waits until the view has a cluster that the store has, for the same reason.
func (s *Server) seenThere(ctx context.Context, full string) {
	unchanged := func(*api.ClusterIntent) error { return nil }
	if _, revision, err := s.cfg.Writer.UpdateIntent(ctx, full, "", unchanged); err == nil {
		s.readOwnWrite(ctx, revision)
	}
}

// afterWrite is a cluster as it is once an intent was written. It may even be gone again by then; what was written is still the answer.
func (s *Server) afterWrite(ctx context.Context, intent api.ClusterIntent, revision int64, before *state.Cluster) *state.Cluster {
	if view, ok := s.readOwnWrite(ctx, revision); ok {
		if now := view.Cluster(intent.Name); now != nil && now.UID() == intent.UID {
			return now
		}
	}
	after := &state.Cluster{}
	if before != nil {
		*after = *before
	}
	after.Intent = intent
	return after
}

func deleting(name string) *failure {
	return fail(codeWrongPhase, "cluster %q is being deleted; create another one", name)
}

func isSaved(name string) *failure {
	return fail(codeWrongPhase, "cluster %q is saved or about to be; restore it first and wait until it is ready: nearmetal cluster restore %s", name, name)
}

func isPaused(name string) *failure {
	return fail(codeWrongPhase, "cluster %q is paused or about to be; resume it first and wait until it is ready: nearmetal cluster resume %s", name, name)
}

func isExpired(name string) *failure {
	return fail(codeWrongPhase, "the time limit of cluster %q has passed: the cluster is about to be deleted", name)
}

// phaseOf is the phase a cluster is in, as far as it is decided.
func phaseOf(c *state.Cluster) api.ClusterPhase {
	if c.Record == nil {
		return api.ClusterPending
	}
	return c.Record.Phase
}

// canScale refuses to change the members of a cluster in a phase that does not allow it.
func canScale(name string, in *api.ClusterIntent, c *state.Cluster) error {
	switch phase := phaseOf(c); {
	case lifecycle.WantsSaved(in, c.Record) || lifecycle.Shelving(phase):
		return isSaved(name)
	case in.Paused || phase == api.ClusterPausing || phase == api.ClusterPaused || phase == api.ClusterResuming:
		return isPaused(name)
	case phase == api.ClusterRefused:
		return fail(codeWrongPhase, "cluster %q was refused and holds nothing; delete it and create another one", name)
	case phase == api.ClusterFailed:
		return fail(codeWrongPhase, "cluster %q has failed; see why (nearmetal cluster events %s), delete it and create another one", name, name)
	case phase == api.ClusterDeleting:
		return deleting(name)
	}
	return nil
}

func (s *Server) scaleCluster(ctx context.Context, in *namedBody) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	req, src, err := readBody[api.ScaleRequest](in.body())
	if err != nil {
		return nil, err
	}
	rank, name, now := ranks(c), shownName(who(ctx), c.Name()), s.cfg.Now().UTC()
	return s.changeIntent(ctx, c, func(intent *api.ClusterIntent) error {
		if err := canScale(name, intent, c); err != nil {
			return err
		}
		was := *intent
		was.Spec.Groups = slices.Clone(intent.Spec.Groups)
		if err := changeMembers(intent, req, src, rank); err != nil {
			return err
		}
		if err := sizesFit(intent.Spec); err != nil {
			return err
		}
		if slices.EqualFunc(was.Spec.Groups, intent.Spec.Groups, sameMembers) && slices.Equal(was.Removed, intent.Removed) {
			return nil
		}
		intent.ScaledAt = &now
		return s.canGrow(c, was.Spec, *intent, req.Queue)
	})
}

func sameMembers(a, b api.Group) bool { return a.Size == b.Size && a.Spares == b.Spares }

// canGrow refuses what the project's quota does not allow, and what has no room now unless it may wait. A cluster that was not placed yet
// is looked at as a whole by the leader.
func (s *Server) canGrow(c *state.Cluster, was api.ClusterSpec, want api.ClusterIntent, queue bool) error {
	view := s.cfg.Reader.View()
	parts := view.Parts()
	before, after := tenancy.Need(view.SpecWithFunctions(want.Project, was), parts), tenancy.Need(view.SpecWithFunctions(want.Project, want.Spec), parts)
	add := after.Beyond(before)
	if add.IsZero() {
		return nil
	}
	if err := s.hasRoom(); err != nil {
		return err
	}
	project := view.Project(projectOr(want.Project))
	if project != nil {
		if err := tenancy.CheckQuota(project.Quota, resource.Amounts{}, after); err != nil {
			return fail(codeOverQuota, "cluster %q can't grow: %v", shortName(want.Name), err)
		}
		placed := c.HeldTotal().Vector[resource.Clusters] > 0
		if err := tenancy.CheckQuota(project.Quota, tenancy.Used(view)[project.Name], add); err != nil && placed && !queue {
			return fail(codeOverQuota, "cluster %q can't grow now: %v; or %s", shortName(want.Name), err, letWait)
		}
	}
	if phaseOf(c) == api.ClusterPending || phaseOf(c) == api.ClusterQueued {
		return nil
	}
	err := s.cfg.Explainer.CanGrow(want)
	var short NoRoom
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &short):
		return err
	case short.Impossible():
		reason := strings.Replace(err.Error(), fmt.Sprintf("the scale-up of cluster %q", want.Name), "the scale-up", 1)
		return fail(codeNoRoom, "cluster %q can't grow: %s", shortName(want.Name), reason)
	case queue:
		return nil
	default:
		return fail(codeNoRoom, "cluster %q can't grow now: %v; %s", shortName(want.Name), err, letWait)
	}
}

// letWait is what lets a request wait for room.
const letWait = `let it wait: "queue": true in the request, --queue on the command line`

func shortName(full string) string {
	_, name := tenancy.Split(full)
	return name
}

func (s *Server) resumeCluster(ctx context.Context, in *byName) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	return s.changeIntent(ctx, c, func(intent *api.ClusterIntent) error {
		phase := phaseOf(c)
		switch {
		case intent.Paused:
		case phase == api.ClusterPausing || phase == api.ClusterPaused || phase == api.ClusterResuming:
			return nil // it was asked for before, and is being done
		default:
			return fail(codeWrongPhase, "cluster %q is not paused, it is %s; there is nothing to resume", shownName(who(ctx), c.Name()), phase)
		}
		intent.Paused, intent.PausedFiles = false, nil
		return nil
	})
}

// canSave refuses to save what can't be: stacks and devices whose state is nowhere to be read.
func canSave(name string, in *api.ClusterIntent) error {
	for _, g := range in.Spec.Groups {
		switch {
		case g.Stack != api.StackVM:
			return fail(codeCantSave, "group %q of cluster %q has stack %q; only members of stack %q can be saved with their memory", g.Name, name, g.Stack, api.StackVM)
		case len(g.Devices) > 0:
			return fail(codeCantSave, "group %q of cluster %q has devices (%s), whose state can't be saved", g.Name, name, g.Devices[0].Class)
		}
	}
	return nil
}

func (s *Server) saveCluster(ctx context.Context, in *byName) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	name, now := shownName(who(ctx), c.Name()), s.cfg.Now().UTC()
	if a := foreignMember(c, s.cfg.Reader.View()); a != nil {
		return nil, fail(codeCantSave, "environment %q of member %q is the disk of another system, whose members can't be saved; pause the cluster, or delete it",
			a.Environment, a.Member)
	}
	return s.changeIntent(ctx, c, func(intent *api.ClusterIntent) error {
		if err := canSave(name, intent); err != nil {
			return err
		}
		phase := phaseOf(c)
		switch {
		case lifecycle.WantsSaved(intent, c.Record):
			return nil // it was asked for before, and is done or being done
		case phase != api.ClusterReady && phase != api.ClusterRestoring:
			return fail(codeWrongPhase, "cluster %q is %s, and only a ready cluster can be saved; see nearmetal cluster show %s", name, phase, name)
		case intent.Paused:
			return fail(codeWrongPhase, "cluster %q is about to be paused; resume it first: nearmetal cluster resume %s", name, name)
		case c.Record.ExpiredAt != nil:
			return isExpired(name)
		}
		if err := checkSizes(name, intent, c, codeCantSave, "be saved"); err != nil {
			return err
		}
		intent.Saved, intent.SaveAskedAt = true, &now
		return nil
	})
}

func (s *Server) restoreCluster(ctx context.Context, in *byName) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	now := s.cfg.Now().UTC()
	return s.changeIntent(ctx, c, func(intent *api.ClusterIntent) error {
		phase := phaseOf(c)
		switch {
		case lifecycle.WantsSaved(intent, c.Record) || phase == api.ClusterSaved:
			intent.Saved, intent.SaveAskedAt = false, &now
			return nil
		case phase == api.ClusterRestoring || phase == api.ClusterSaving:
			return nil // it was asked for before, and is being done
		default:
			return fail(codeWrongPhase, "cluster %q is not saved, it is %s; there is nothing to restore", shownName(who(ctx), c.Name()), phase)
		}
	})
}

func (s *Server) extendCluster(ctx context.Context, in *namedBody) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	req, src, err := readBody[api.ExtendRequest](in.body())
	if err != nil {
		return nil, err
	}
	if err := manifest.CheckTimeLimit(req.TimeLimit, src); err != nil {
		return nil, failInvalid(err, codeInvalidRequest)
	}
	return s.changeIntent(ctx, c, func(intent *api.ClusterIntent) error {
		was := intent.Spec.TimeLimit
		switch name := shownName(who(ctx), c.Name()); {
		case was == 0:
			return fail(codeCantExtend, "cluster %q has no time limit; there is nothing to extend", name)
		case req.TimeLimit <= was && (c.Record == nil || c.Record.ExpiredAt == nil):
			return fail(codeCantExtend, "the time limit of cluster %q is %s already, and can only be made longer; it counts from when the "+
				"cluster was placed", name, was)
		}
		if err := s.mayLimit(ctx, c, was, req.TimeLimit); err != nil {
			return err
		}
		intent.Spec.TimeLimit = req.TimeLimit
		return nil
	})
}

// mayLimit tells whether a time limit may become another; 0 is none. As long as a cluster is not placed, any will do.
func (s *Server) mayLimit(ctx context.Context, c *state.Cluster, was, want api.Duration) error {
	if c.Record == nil || c.Record.PlacedAt == nil {
		return nil
	}
	name, lived := shownName(who(ctx), c.Name()), s.cfg.Now().Sub(*c.Record.PlacedAt)
	switch {
	case c.Record.ExpiredAt != nil:
		return fail(codeCantExtend, "the time limit of cluster %q has passed, its members are being released; create another cluster", name)
	case want != 0 && was == 0:
		return fail(codeCantExtend, "cluster %q has no time limit and can't be given one; delete it when you are done", name)
	case want != 0 && want < was:
		return fail(codeCantExtend, "the time limit of cluster %q is %s and can't become %s: it can only be made longer", name, was, want)
	case want != 0 && want.Std() <= lived:
		return fail(codeCantExtend, "cluster %q was placed %s ago, so a time limit of %s would be over already; give a longer one",
			name, api.Duration(lived.Truncate(time.Second)), want)
	case isAdmin(ctx):
		return nil
	}
	if head := s.queueHead(); head != nil {
		return fail(codeCantExtend, "other requests wait for room, so only an administrator may extend: the first in the queue is %s, which has waited "+
			"for room for %s since %s", s.describeWaiting(ctx, *head), members(head.Members), head.Since.UTC().Format(time.RFC3339))
	}
	return nil
}

func (s *Server) labelCluster(ctx context.Context, in *namedBody) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	req, src, err := readBody[api.LabelsRequest](in.body())
	if err != nil {
		return nil, err
	}
	return s.changeIntent(ctx, c, func(intent *api.ClusterIntent) error {
		labels := maps.Clone(intent.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		for key, value := range req.Labels {
			if value == "" {
				delete(labels, key)
			} else {
				labels[key] = value
			}
		}
		if err := manifest.CheckLabels(req.Labels, labels, src); err != nil {
			return failInvalid(err, codeInvalidRequest)
		}
		if intent.Labels = labels; len(labels) == 0 {
			intent.Labels = nil
		}
		return nil
	})
}

// userOf names who asks: the token of a server's directory and the Unix socket are the administrator's.
func userOf(ctx context.Context) string {
	if p := who(ctx); p.User != "" || p.Role != api.RoleAdmin {
		return p.User
	}
	return administrator
}

// memberNames lists names for people, not all of them when there are many.
func memberNames(names []string) string {
	const most = 8
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
