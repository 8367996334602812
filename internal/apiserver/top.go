package apiserver

import (
	"context"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// clusterTop answers with what the members of a cluster use, by rank.
func (s *Server) clusterTop(ctx context.Context, in *byName) (*body[api.List[api.MemberTop]], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	view := s.cfg.Reader.View()
	list := api.List[api.MemberTop]{Items: []api.MemberTop{}}
	ranks := map[string]int{}
	for a := range c.Held() {
		if !a.IsMember() || a.Spare || a.IsSuccessor() {
			continue
		}
		has := a.Has()
		top := api.MemberTop{
			Member: a.Member, Group: a.Group, Node: a.Node, Stack: a.Stack, Phase: api.MemberUnknown, Cores: len(has.CPUs), LimitBytes: int64(has.Shape().Memory), Points: []api.UsePoint{},
		}
		if phase, _, ok := s.cfg.Live.Member(a); ok {
			top.Phase = phase
		}
		if s.cfg.MemberUses != nil {
			top.Points = append(top.Points, s.cfg.MemberUses.UsesOf(a.Node, a.ID)...)
		}
		if s.cfg.Energy != nil {
			withPower(top.Points, s.cfg.Energy.Member(a.Node, a.ID))
		}
		// Who has all of a machine may know how warm it is. The readings began before the member did, so they are shown without their history.
		if m := view.Machine(a.Node); m != nil && a.Whole && s.cfg.Sensors != nil {
			top.Sensors = s.cfg.Sensors(m.UID())
		}
		ranks[a.Member] = a.Rank
		list.Items = append(list.Items, top)
	}
	slices.SortFunc(list.Items, func(a, b api.MemberTop) int { return ranks[a.Member] - ranks[b.Member] })
	return &body[api.List[api.MemberTop]]{list}, nil
}
