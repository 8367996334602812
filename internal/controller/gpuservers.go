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

// gpuServers finds other servers for members that lost theirs, before anybody else gets what is free. It reports whether one was placed.
func (p *pass) gpuServers(ctx context.Context) (placed bool, err error) {
	var errs []error
	for _, c := range p.view.Clusters {
		for _, m := range withoutServer(c) {
			change, err := p.gpuServer(c, m)
			if err != nil {
				errs = append(errs, fmt.Errorf("cluster %q: a GPU server for %s: %w", c.Name(), m.Member, err))
				continue
			}
			if !change.Dirty {
				continue
			}
			for _, err := range p.commitAll(ctx, []decided{{c, change}}) {
				switch {
				case err == nil:
				case errors.Is(err, store.ErrNotLeader):
					return true, err
				default:
					return true, fmt.Errorf("%w: %w", errDoubt, err)
				}
			}
			return true, errors.Join(errs...) // the view is no longer what is stored
		}
	}
	return false, errors.Join(errs...)
}

// withoutServer are the members of a cluster whose groups use GPUs by servers, and that have none.
func withoutServer(c *state.Cluster) []*api.Assignment {
	if c.Record == nil || c.Record.Phase == api.ClusterDeleting || c.Intent.DeleteRequestedAt != nil || !slices.ContainsFunc(c.Intent.Spec.Groups, func(g api.Group) bool { return lifecycle.NeedsServer(&g) }) {
		return nil
	}
	served := map[string]bool{}
	for a := range c.Held() {
		if a.ServesGPU() {
			served[a.Of] = true
		}
	}
	var all []*api.Assignment
	for a := range c.Held() {
		if a.IsMember() && !a.Saved && !served[a.ID] && slices.ContainsFunc(c.Intent.Spec.Groups, func(g api.Group) bool { return g.Name == a.Group && lifecycle.NeedsServer(&g) }) {
			all = append(all, a)
		}
	}
	return all
}

// gpuServer places another server for a member, where there is room. Where there is none, nothing changes: the member is unhealthy already.
func (p *pass) gpuServer(c *state.Cluster, m *api.Assignment) (decision.Change, error) {
	own, base := p.view.Network(c.UID()), c.Decision()
	if own == nil {
		return decision.Change{}, fmt.Errorf("its network %s is not stored", c.UID())
	}
	free, err := p.room.Update(p.view, p.Available)
	if err != nil {
		return decision.Change{}, err
	}
	group := c.Intent.Spec.Groups[slices.IndexFunc(c.Intent.Spec.Groups, func(g api.Group) bool { return g.Name == m.Group })]
	chosen, missing := free.Sketch().FitServer(m.Node, group)
	if missing != "" {
		return decision.Change{}, nil
	}
	at := placement.Decision{ClusterUID: c.UID(), Cluster: c.Name(), Generation: c.Record.Generation + 1, TakenAt: p.now, Held: base.Unclean()}
	for _, q := range p.view.Quarantines {
		if q.Assignment.ClusterUID == c.UID() {
			at.Held = append(at.Held, q.Assignment)
		}
	}
	servers, err := decision.AssignServer(m, chosen, own, at)
	if err != nil {
		return decision.Change{}, err
	}
	return decision.Apply(base, lifecycle.PlanServer(servers), p.now)
}
