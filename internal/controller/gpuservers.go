package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/decision"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// gpuServerOf is the server of a member's remote GPUs, nil for a member that has none.
func gpuServerOf(held []api.Assignment, member *api.Assignment) *driver.GPUServer {
	i := slices.IndexFunc(held, func(a api.Assignment) bool { return a.ServesGPU() && a.Of == member.ID })
	if i < 0 {
		return nil
	}
	return &driver.GPUServer{ID: held[i].ID, Node: held[i].Node}
}

// gpuServers finds servers for members that lost theirs, before anybody else gets what is free, and then for those whose servers are to leave drained
// nodes. It reports whether one was placed. All clusters choose from one sketch of what is free, so that a node which served hundreds of members costs one
// pass.
func (p *pass) gpuServers(ctx context.Context) (placed bool, err error) {
	var errs []error
	var decisions []decided
	var free *placement.Sketch
	for _, find := range []func(*state.Cluster) []servedMember{withoutServer, p.leavingServers} {
		if len(decisions) > 0 {
			break // who has none goes first, and the next pass is at once
		}
		for _, c := range p.view.Clusters {
			members := find(c)
			if len(members) == 0 {
				continue
			}
			if free == nil {
				p.room.Now = p.now
				room, err := p.room.Update(p.view, p.Available)
				if err != nil {
					return false, errors.Join(append(errs, err)...)
				}
				free = room.Sketch()
			}
			change, err := p.placeServers(free, c, members)
			switch {
			case err != nil:
				errs = append(errs, fmt.Errorf("cluster %q: GPU servers: %w", c.Name(), err))
			case change.Dirty:
				decisions = append(decisions, decided{c, change})
			}
		}
	}
	for batch := range slices.Chunk(decisions, answersTogether) {
		for _, err := range p.commitAll(ctx, batch) {
			switch {
			case err == nil:
			case errors.Is(err, store.ErrNotLeader):
				return true, err
			default:
				return true, fmt.Errorf("%w: %w", errDoubt, err)
			}
		}
	}
	return len(decisions) > 0, errors.Join(errs...) // the view is no longer what is stored
}

// servedMember is a member that is to get a GPU server. leaves is the one that it has, nil for none.
type servedMember struct{ member, leaves *api.Assignment }

// leavingServers are the members of a cluster whose GPU servers are to leave drained nodes.
func (p *pass) leavingServers(c *state.Cluster) (all []servedMember) {
	for _, l := range p.LeavingServers(c) {
		all = append(all, servedMember{l.Member, l.Server})
	}
	return all
}

// withoutServer are the members of a cluster that use GPUs by servers, and that have none.
func withoutServer(c *state.Cluster) []servedMember {
	if c.Record == nil || c.Record.Phase == api.ClusterDeleting || c.Intent.DeleteRequestedAt != nil || !slices.ContainsFunc(c.Intent.Spec.Groups, func(g api.Group) bool { return lifecycle.MayNeedServers(&g) }) {
		return nil
	}
	served := map[string]bool{}
	for a := range c.Held() {
		if a.ServesGPU() {
			served[a.Of] = true
		}
	}
	var all []servedMember
	for a := range c.Held() {
		if a.IsMember() && !a.Saved && !served[a.ID] && slices.ContainsFunc(c.Intent.Spec.Groups, func(g api.Group) bool { return g.Name == a.Group && lifecycle.NeedsServer(&g, a) }) {
			all = append(all, servedMember{member: a})
		}
	}
	return all
}

// placeServers places other servers for members of a cluster, where there is room, and takes it of what is free. A member for which there is none stays as
// it is: it keeps the server that it has, or is unhealthy already.
func (p *pass) placeServers(free *placement.Sketch, c *state.Cluster, members []servedMember) (decision.Change, error) {
	own, base := p.view.Network(c.UID()), c.Decision()
	if own == nil {
		return decision.Change{}, fmt.Errorf("its network %s is not stored", c.UID())
	}
	at := placement.Decision{ClusterUID: c.UID(), Cluster: c.Name(), Generation: c.Record.Generation + 1, TakenAt: p.now, Held: base.Unclean()}
	for _, q := range p.view.Quarantines {
		if q.Assignment.ClusterUID == c.UID() {
			at.Held = append(at.Held, q.Assignment)
		}
	}
	var all []lifecycle.NewServer
	for _, m := range members {
		group, ok := p.ServedGroup(c, m.member)
		if !ok {
			continue
		}
		chosen, missing := free.FitServer(m.member.Node, group)
		if missing != "" {
			continue
		}
		servers, err := decision.AssignServer(m.member, chosen, own, at)
		if err != nil {
			return decision.Change{}, err
		}
		free.TakeDevices([][]placement.DevicesOn{chosen})
		for _, s := range servers {
			all = append(all, lifecycle.NewServer{Assignment: s, Leaves: m.leaves})
		}
		at.Held = append(at.Held, servers...)
	}
	if len(all) == 0 {
		return decision.Change{}, nil
	}
	return decision.Apply(base, lifecycle.PlanServers(all), p.now)
}
