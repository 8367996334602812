package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// resizingOf returns the progress of a member's resize; nil: the member has the size of its group.
func resizingOf(c *state.Cluster, a *api.Assignment, seen Observed) *api.MemberResizing {
	if !lifecycle.ResizePending(c.Intent.Spec, a) {
		return nil
	}
	out := &api.MemberResizing{Phase: api.ResizeWaiting, Shape: a.Wants().Shape(), Message: "waits for room on node " + a.Node}
	for _, g := range c.Intent.Spec.Groups {
		if g.Name == a.Group && g.Shape != out.Shape {
			out.Shape = g.Shape
			return out
		}
	}
	out.Phase, out.Message = api.ResizeApplying, ""
	if _, unsized := seen.Size(a); unsized != "" {
		out.Phase, out.Message = api.ResizeReboot, unsized
	}
	return out
}

func (s *Server) resizeCluster(ctx context.Context, in *namedBody) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	req, src, err := readBody[api.ResizeRequest](in.body())
	if err != nil {
		return nil, err
	}
	name, now := shownName(who(ctx), c.Name()), s.cfg.Now().UTC()
	return s.changeIntent(ctx, c, func(intent *api.ClusterIntent) error {
		i, err := resizedGroup(intent, req.Group, src)
		if err != nil {
			return err
		}
		was := intent.Spec
		g, err := manifest.Resized(was.Groups[i], req, src)
		if err != nil {
			return failInvalid(err, codeInvalidRequest)
		}
		if err := s.canResize(name, intent, c, was.Groups[i], g); err != nil || g.Shape == was.Groups[i].Shape {
			return err
		}
		g.ShapeName = "" // it has another shape now
		intent.Spec.Groups = slices.Clone(was.Groups)
		intent.Spec.Groups[i], intent.ResizedAt = g, &now
		return s.haveRoom(name, was, *intent)
	})
}

// resizedGroup returns the index of the group that a request names.
func resizedGroup(intent *api.ClusterIntent, group string, src *manifest.Source) (int, error) {
	groups := groupNames(intent.Spec)
	problem := func(message string) error {
		return failFields(codeInvalidRequest, api.FieldProblem{Location: "group", Line: src.Line("group"), Value: group, Message: message})
	}
	i := slices.Index(groups, group)
	switch {
	case group == "" && !src.Has("group") && len(groups) == 1:
		return 0, nil
	case group == "" && !src.Has("group"):
		return 0, problem("is missing; this cluster has several groups: " + quoteAll(groups))
	case i < 0:
		return 0, problem(fmt.Sprintf("%q is not a group of this cluster; %s", group, known("groups", group, groups)))
	default:
		return i, nil
	}
}

// canResize refuses what members of a group can't have, and a cluster that does something else.
func (s *Server) canResize(name string, intent *api.ClusterIntent, c *state.Cluster, was, g api.Group) error {
	if why := lifecycle.Resizable(&was); why != "" {
		return fail(codeCantResize, "members of group %q of cluster %q can't be resized: %s", was.Name, name, why)
	}
	if g.Disk < was.Disk {
		return fail(codeCantResize, "the disks of group %q of cluster %q have %s and can't become %s: a disk can only grow, because its system may use all of it",
			was.Name, name, was.Disk, g.Disk)
	}
	if g.Disk > 0 && was.Disk == 0 {
		return fail(codeCantResize, "members of group %q of cluster %q have no disks of their own: environment %q has a shared root, and keeps its changes in memory",
			was.Name, name, was.Environment)
	}
	if err := checkRuns(name, intent, c, "be resized"); err != nil {
		return err
	}
	now := *c
	now.Intent = *intent
	if moving := moves(c, s.cfg.Live); len(moving) > 0 || !moveStatusEnded(&now, moving) {
		return fail(codeWrongPhase, "members of cluster %q are moving; wait until the move has ended: nearmetal cluster show %s", name, name)
	}
	return nil
}

func moveStatusEnded(c *state.Cluster, moving map[string]api.MemberMoving) bool {
	last := moveStatus(c, moving)
	return last == nil || last.Ended
}

// haveRoom refuses a growth that the project's quota, the server's disk or the members' nodes have no room for.
func (s *Server) haveRoom(name string, was api.ClusterSpec, want api.ClusterIntent) error {
	view := s.cfg.Reader.View()
	parts := view.Parts()
	after := tenancy.Need(view.SpecWithFunctions(want.Project, want.Spec), parts)
	add := after.Beyond(tenancy.Need(view.SpecWithFunctions(want.Project, was), parts))
	if add.IsZero() {
		return nil
	}
	if err := s.hasRoom(); err != nil {
		return err
	}
	if project := view.Project(projectOr(want.Project)); project != nil {
		err := tenancy.CheckQuota(project.Quota, resource.Amounts{}, after)
		if err == nil {
			err = tenancy.CheckQuota(project.Quota, tenancy.Used(view)[project.Name], add)
		}
		if err != nil {
			return fail(codeOverQuota, "cluster %q can't be resized: %v; nothing was changed", name, err)
		}
	}
	err := s.cfg.Explainer.CanResize(want)
	var short NoRoom
	if errors.As(err, &short) {
		return fail(codeNoRoom, "cluster %q can't be resized: %v; nothing was changed", name, err)
	}
	return err
}

// checkSizes refuses what the members of a cluster can't do while a resize of theirs is pending. can says what that is, such as "be saved".
func checkSizes(name string, intent *api.ClusterIntent, c *state.Cluster, code Code, can string) error {
	var pending []string
	for a := range c.Held() {
		if lifecycle.ResizePending(intent.Spec, a) {
			pending = append(pending, a.Member)
		}
	}
	if len(pending) == 0 {
		return nil
	}
	return fail(code, "cluster %q can't %s: the new size of %s takes effect at a reboot; reboot first and wait until the cluster is ready: nearmetal cluster reboot %s",
		name, can, memberNames(pending), name)
}
