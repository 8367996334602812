package apiserver

import (
	"context"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
)

// rebootStatus returns the progress of the reboot that was requested last; nil: none was.
func rebootStatus(c *state.Cluster, seen Observed) *api.RebootStatus {
	asked := c.Intent.Reboot
	if asked == nil || c.Record == nil {
		return nil
	}
	held := map[string]*api.Assignment{}
	for a := range c.Held() {
		held[a.ID] = a
	}
	out := &api.RebootStatus{AskedAt: asked.AskedAt, Hard: asked.Hard, Ended: true, Members: []api.MemberRebooting{}}
	for _, id := range asked.Members {
		m := api.MemberRebooting{Member: memberOf(id), Phase: api.RebootWaiting}
		switch a := held[id]; {
		case a == nil || a.Saved:
			m.Phase, m.Message = api.RebootFailed, "it was replaced, moved, saved or released meanwhile"
		case seen.Boot(a) == lifecycle.BootOf(&c.Intent, id):
			m.Phase = api.RebootDone
		default:
			out.Ended = false
		}
		out.Members = append(out.Members, m)
	}
	return out
}

func (s *Server) rebootCluster(ctx context.Context, in *namedBody) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	req, _, err := readBody[api.RebootRequest](in.body())
	if err != nil {
		return nil, err
	}
	name := shownName(who(ctx), c.Name())
	ids, err := rebooters(name, c, req)
	if err != nil {
		return nil, err
	}
	reboot := api.RebootIntent{AskedAt: s.cfg.Now().UTC(), Members: ids, Hard: req.Hard}
	return s.changeIntent(ctx, c, func(intent *api.ClusterIntent) error {
		if err := s.canReboot(name, intent, c, reboot); err != nil {
			return err
		}
		intent.Reboot = &reboot
		return nil
	})
}

// rebooters returns the IDs of the members that a request names, in the order of their ranks.
func rebooters(name string, c *state.Cluster, req api.RebootRequest) ([]string, error) {
	chosen, err := chosenMembers(name, c, req.Members)
	if err != nil {
		return nil, err
	}
	ids := make([]string, 0, len(chosen))
	for _, a := range chosen {
		if why := lifecycle.Rebootable(c.Intent.Spec, a); why != "" {
			return nil, fail(codeCantReboot, "member %q of cluster %q can't reboot: %s", a.Member, name, why)
		}
		ids = append(ids, a.ID)
	}
	return ids, nil
}

// canReboot refuses to reboot members of a cluster that is doing something else.
func (s *Server) canReboot(name string, intent *api.ClusterIntent, c *state.Cluster, next api.RebootIntent) error {
	if err := checkRuns(name, intent, c, "reboot"); err != nil {
		return err
	}
	if len(moves(c, s.cfg.Live)) > 0 {
		return fail(codeWrongPhase, "members of cluster %q are moving; wait until the move has ended: nearmetal cluster show %s", name, name)
	}
	now := *c
	now.Intent = *intent
	last := rebootStatus(&now, s.cfg.Live)
	switch {
	case last == nil || last.Ended:
		return nil
	case last.Hard || !next.Hard:
		return fail(codeWrongPhase, "members of cluster %q are rebooting already (%s); wait until they have booted: nearmetal cluster show %s", name, waitingText(last), name)
	case !overtakes(next, last):
		return fail(codeWrongPhase, "members of cluster %q are rebooting already (%s); a hard reboot overtakes that only if it includes all of them", name, waitingText(last))
	}
	return nil
}

// overtakes reports whether a request includes every member whose reboot has not ended: one that it left out would never boot.
func overtakes(next api.RebootIntent, last *api.RebootStatus) bool {
	return !slices.ContainsFunc(last.Members, func(m api.MemberRebooting) bool {
		return m.Phase == api.RebootWaiting && !slices.ContainsFunc(next.Members, func(id string) bool { return memberOf(id) == m.Member })
	})
}

// waitingText names the members whose reboot has not ended.
func waitingText(st *api.RebootStatus) string {
	var names []string
	for _, m := range st.Members {
		if m.Phase == api.RebootWaiting {
			names = append(names, m.Member)
		}
	}
	return fmt.Sprintf("%d: %s", len(names), memberNames(names))
}
