package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// Explainer tells what waits for room, and why: the leader's plan, made again from what this server knows. Names are full ones.
type Explainer interface {
	Explain(name string) (api.Explanation, error)
	Queue() ([]api.Waiting, error)
	// Machines says whether the groups of a cluster to be that need whole machines could have each machine now; nothing for other groups.
	Machines(intent api.ClusterIntent) ([]api.MachineFit, error)
	// CanGrow tells whether the members that a cluster should have would all have room now; a NoRoom says what is short.
	CanGrow(intent api.ClusterIntent) error
	// CanMove tells whether the next member that is to move would have room on another node now; a NoRoom says what is short.
	CanMove(intent api.ClusterIntent) error
	// CanResize reports whether all members that are to have another size have room for it now; a NoRoom says what is short.
	CanResize(intent api.ClusterIntent) error
}

// NoRoom is the error of what has no room now. *situation.NoRoom is one.
type NoRoom interface {
	error
	// Impossible: there will never be room, so waiting would not help.
	Impossible() bool
}

func (s *Server) explainCluster(ctx context.Context, in *byName) (*body[api.Explanation], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	e, err := s.cfg.Explainer.Explain(c.Name())
	if errors.Is(err, state.ErrNotFound) {
		return nil, noCluster(in.Name)
	}
	if err != nil {
		return nil, err
	}
	e.Cluster = shownName(who(ctx), c.Name())
	waiting := make([]api.Waiting, len(e.Waiting))
	for i, w := range e.Waiting {
		waiting[i] = shownWaiting(who(ctx), w)
	}
	e.Waiting, e.GPUs = waiting, chosenGPUs(s.cfg.Reader.View(), c)
	return &body[api.Explanation]{e}, nil
}

// chosenGPUs are the GPUs of a cluster's members that were chosen for a reason: remote ones, and those that any would have done for.
func chosenGPUs(v *state.View, c *state.Cluster) (uses []api.DeviceUse) {
	for a := range c.Held() {
		uses = append(uses, slices.DeleteFunc(gpuUses(v, a, a.Member), func(u api.DeviceUse) bool { return u.Why == "" })...)
	}
	slices.SortStableFunc(uses, func(a, b api.DeviceUse) int { return strings.Compare(a.Member, b.Member) })
	return uses
}

// withGPUs notes with the GPUs of a cluster's members what servers did, and which are gone.
func withGPUs(v *state.View, c *state.Cluster, members []api.MemberStatus) {
	for a := range c.Held() {
		for _, use := range gpuUses(v, a, a.Member) {
			for m := range members {
				for d := range members[m].Devices {
					if at := &members[m].Devices[d]; members[m].Name == a.Member && at.Node == use.Node && at.Device == use.Device {
						*at = use.MemberDevice
						if use.Gone {
							members[m].Message = cmp.Or(members[m].Message, goneText(&use.MemberDevice))
						}
					}
				}
			}
		}
	}
}

// goneText tells people what became of a GPU that a member holds.
func goneText(d *api.MemberDevice) string {
	if d.Parent != "" {
		return fmt.Sprintf("node %s does not offer its slice %s of GPU %s any more, and hands out nothing more of that GPU before the member ends", d.Node, d.Device, d.Parent)
	}
	return fmt.Sprintf("node %s does not offer its GPU %s any more", d.Node, d.Device)
}

func (s *Server) listQueue(ctx context.Context, _ *struct{}) (*body[api.List[api.Waiting]], error) {
	queue, err := s.cfg.Explainer.Queue()
	if err != nil {
		return nil, err
	}
	list := api.List[api.Waiting]{Items: make([]api.Waiting, len(queue))}
	for i, w := range queue {
		list.Items[i] = shownWaiting(who(ctx), w)
	}
	return &body[api.List[api.Waiting]]{list}, nil
}

// shownWaiting is a request in the queue as a principal may see it: of a cluster they may not know of they learn that it is there and how large it is,
// not what it is.
func shownWaiting(p tenancy.Principal, w api.Waiting) api.Waiting {
	project, _ := tenancy.Split(w.Cluster)
	if seesCluster(p, w.Cluster) {
		w.Cluster, w.Project = shownName(p, w.Cluster), project
		return w
	}
	reason := "a request of another project"
	if seesProject(p, project) {
		reason = "a request of a cluster that this token does not see"
	}
	return api.Waiting{
		Kind: w.Kind, Members: w.Members, Cores: w.Cores, Position: w.Position, Constraint: w.Constraint, Earliest: w.Earliest, Since: w.Since,
		Reason: reason,
	}
}

// queueHead is the first request in the queue, nil when nothing waits. Replacements and spares are no part of it.
func (s *Server) queueHead() *api.Waiting {
	queue, err := s.cfg.Explainer.Queue()
	if err != nil {
		return nil // the room of whoever waits is not known, so nobody is kept from extending
	}
	for _, w := range queue {
		if w.Position > 0 {
			return &w
		}
	}
	return nil
}

// describeWaiting names a request in the queue as far as who asks may know of it.
func (s *Server) describeWaiting(ctx context.Context, w api.Waiting) string {
	w = shownWaiting(who(ctx), w)
	if w.Cluster == "" {
		return w.Reason
	}
	return fmt.Sprintf("cluster %q", w.Cluster)
}
