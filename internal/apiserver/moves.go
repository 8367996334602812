package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
)

// moves are the members of a cluster that are on their way to another node, by the ID of their assignment.
func moves(c *state.Cluster, seen Observed) map[string]api.MemberMoving {
	var all map[string]api.MemberMoving
	for next := range c.Held() {
		if !next.IsSuccessor() {
			continue
		}
		from := heldByID(c, next.From)
		if from == nil || from.Node == next.Node {
			continue
		}
		m := api.MemberMoving{Member: from.Member, Phase: api.MoveMoving, From: from.Node, To: next.Node}
		if phase, message, ok := seen.Member(next); ok && phase != api.MemberFailed {
			m.Message = message
		}
		m.SentBytes, m.TotalBytes = seen.Arriving(next)
		if all == nil {
			all = map[string]api.MemberMoving{}
		}
		all[from.ID] = m
	}
	return all
}

func heldByID(c *state.Cluster, id string) *api.Assignment {
	for a := range c.Held() {
		if a.ID == id {
			return a
		}
	}
	return nil
}

// moveStatus is how far the move that was asked for last is; nil: none was.
func moveStatus(c *state.Cluster, moving map[string]api.MemberMoving) *api.MoveStatus {
	asked := c.Intent.Move
	if asked == nil || c.Record == nil {
		return nil
	}
	out := &api.MoveStatus{AskedAt: asked.AskedAt, To: asked.To, Offline: asked.Offline, Ended: true, Members: []api.MemberMoving{}}
	for _, id := range asked.Members {
		m := moveOf(c, id, asked.AskedAt, moving)
		out.Ended = out.Ended && (m.Phase == api.MoveMoved || m.Phase == api.MoveFailed)
		out.Members = append(out.Members, m)
	}
	return out
}

// moveOf is how far the move of one member is, by the ID that it had when it was asked for.
func moveOf(c *state.Cluster, id string, askedAt time.Time, moving map[string]api.MemberMoving) api.MemberMoving {
	for _, r := range c.Record.Moves {
		if r.Assignment != id || !r.AskedAt.Equal(askedAt) {
			continue
		}
		m := api.MemberMoving{Member: r.Member, Phase: api.MoveMoved, From: r.From, To: r.To, Report: r.Report}
		if r.Failed != "" {
			m.Phase, m.Message = api.MoveFailed, r.Failed
		}
		return m
	}
	if m, ok := moving[id]; ok {
		return m
	}
	if a := heldByID(c, id); a != nil {
		return api.MemberMoving{Member: a.Member, Phase: api.MoveWaiting, From: a.Node, To: c.Intent.Move.To}
	}
	return api.MemberMoving{Member: memberOf(id), Phase: api.MoveFailed, Message: "it was released or replaced meanwhile"}
}

// memberOf is the member's name in an assignment's ID.
func memberOf(id string) string {
	parts := strings.Split(id, ".")
	return parts[max(0, len(parts)-2)]
}

func (s *Server) migrateCluster(ctx context.Context, in *namedBody) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	req, _, err := readBody[api.MigrateRequest](in.body())
	if err != nil {
		return nil, err
	}
	if err := checkMigrate(req); err != nil {
		return nil, err
	}
	name, view := shownName(who(ctx), c.Name()), s.cfg.Reader.View()
	if req.To != "" && view.Node(req.To) == nil {
		return nil, failFields(codeInvalidRequest, api.FieldProblem{Location: "to", Message: fmt.Sprintf("the site has no node %q", req.To)})
	}
	move := api.MoveIntent{
		AskedAt: s.cfg.Now().UTC(), To: req.To, Offline: req.Offline,
		MoveLimits: api.MoveLimits{BytesPerSecond: int64(req.Bandwidth), Downtime: req.Downtime},
	}
	if move.Members, err = movers(name, c, view, req); err != nil {
		return nil, err
	}
	return s.changeIntent(ctx, c, func(intent *api.ClusterIntent) error {
		if err := canMigrate(name, intent, c); err != nil {
			return err
		}
		intent.Move = &move
		var short NoRoom
		if err := s.cfg.Explainer.CanMove(*intent); errors.As(err, &short) {
			return fail(codeNoRoom, "cluster %q can't move: %v; nothing was changed", name, err)
		} else if err != nil {
			return err
		}
		return nil
	})
}

// checkMigrate refuses what makes no sense for any cluster.
func checkMigrate(req api.MigrateRequest) error {
	problem := func(field, message string) error {
		return failFields(codeInvalidRequest, api.FieldProblem{Location: field, Message: message})
	}
	switch {
	case req.Bandwidth < 0:
		return problem("bandwidth", "is negative; leave it out for no limit")
	case req.Downtime < 0:
		return problem("downtime", "is negative; leave it out for 300ms")
	case req.Offline && req.Bandwidth > 0:
		return problem("bandwidth", "bounds the move of a running member, and conflicts with offline")
	case req.Offline && req.Downtime > 0:
		return problem("downtime", "bounds the move of a running member, and conflicts with offline")
	case len(req.Members) > lifecycle.MembersPerMove:
		return problem("members", fmt.Sprintf("names %d members; one request moves at most %d", len(req.Members), lifecycle.MembersPerMove))
	default:
		return nil
	}
}

// movers are the IDs of the members that a request names, in the order of their ranks.
func movers(name string, c *state.Cluster, view *state.View, req api.MigrateRequest) ([]string, error) {
	members, err := chosenMembers(name, c, req.Members)
	if err != nil {
		return nil, err
	}
	if len(req.Members) == 0 {
		members = slices.DeleteFunc(members, func(a *api.Assignment) bool { return a.Node == req.To })
	}
	ids := make([]string, 0, len(members))
	for _, a := range members {
		img, why := view.Image(a.EnvironmentDigest), lifecycle.Movable(c.Intent.Spec, a, req.Offline)
		switch {
		case why != "":
			return nil, fail(codeCantMove, "member %q of cluster %q can't move: %s", a.Member, name, why)
		case img != nil && img.Disk != nil:
			return nil, fail(codeCantMove, "member %q of cluster %q can't move: environment %q is the disk of another system, and its copy lies on node %s",
				a.Member, name, a.Environment, a.Node)
		case a.Node == req.To:
			return nil, fail(codeCantMove, "member %q of cluster %q is on node %q already", a.Member, name, req.To)
		}
		ids = append(ids, a.ID)
	}
	switch {
	case len(ids) == 0:
		return nil, fail(codeCantMove, "every member of cluster %q is on node %q already", name, req.To)
	case len(ids) > lifecycle.MembersPerMove:
		return nil, fail(codeCantMove, "cluster %q has %d members that would move, and one request moves at most %d; name some", name, len(ids), lifecycle.MembersPerMove)
	}
	return ids, nil
}

// canMigrate refuses to move members of a cluster that does something else.
func canMigrate(name string, intent *api.ClusterIntent, c *state.Cluster) error {
	if err := checkRuns(name, intent, c, "move"); err != nil {
		return err
	}
	if now := moveStatus(c, nil); now != nil && !now.Ended && intent.Move != nil && intent.Move.AskedAt.Equal(now.AskedAt) {
		return fail(codeWrongPhase, "members of cluster %q are moving already; wait until that has ended: nearmetal cluster show %s", name, name)
	}
	return checkSizes(name, intent, c, codeCantMove, "move")
}
