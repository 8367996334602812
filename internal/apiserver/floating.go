package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/floating"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// addressInput names a floating address.
type addressInput struct {
	Address string `path:"address" doc:"IPv4 address"`
}

// addressBody is a body that is about a floating address.
type addressBody struct {
	Address     string `path:"address" doc:"IPv4 address"`
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/json"`
}

func (s *Server) registerAddresses() {
	operation(s, "GET /v1/addresses", AccessRead, "list-addresses", "List floating addresses",
		"Floating addresses in order, with the members that they lead to: those of the token's project; for an administrator those of all projects.",
		http.StatusOK, s.listAddresses)
	operation(s, "POST /v1/addresses", AccessChange, "allocate-address", "Allocate a floating address to a project",
		"The address is one of the site's floating pool (`--floating-pool`). It stays the project's until it is released.",
		http.StatusCreated, s.allocateAddress,
		bodyCodes(codeInvalidRequest, codeNoFloatingPool, codeFloatingPoolFull, codeAddressHeld, codeOverQuota, codeNoProject)...)
	operation(s, "GET /v1/addresses/{address}", AccessRead, "get-address", "Show a floating address", "", http.StatusOK, s.getAddress, codeNoAddress)
	operation(s, "PUT /v1/addresses/{address}/assignment", AccessChange, "assign-address", "Assign a floating address to a member",
		"The address leads to the member, and to whatever replaces it: a healed, moved or restored member. With `ports`, only these ports do. Otherwise "+
			"the member also has this address outside. Repeated for the same member, the request replaces the ports.",
		http.StatusOK, s.assignAddress, bodyCodes(codeInvalidRequest, codeNoAddress, codeAddressAssigned, codeNoCluster, codeNoMember, codeNoWayOut)...)
	operation(s, "DELETE /v1/addresses/{address}/assignment", AccessChange, "unassign-address", "Unassign a floating address",
		"The address leads nowhere then. Open connections end. Repeating it is harmless.", http.StatusOK, s.unassignAddress, codeNoAddress)
	operation(s, "DELETE /v1/addresses/{address}", AccessChange, "release-address", "Release a floating address",
		"Others may allocate the address then. Refused while it is assigned.", http.StatusNoContent, s.releaseAddress, codeNoAddress, codeAddressAssigned)
}

func noAddress(text string) *failure {
	return fail(codeNoAddress, "address %q is not a floating address of this token's project; 'nearmetal address list' lists them", text)
}

// findAddress returns the floating address that a request names, and that a principal may know of, or nil.
func findAddress(p tenancy.Principal, view *state.View, text string) *api.FloatingAddress {
	address, err := netip.ParseAddr(text)
	if err != nil {
		return nil
	}
	if a := view.Address(address); a != nil && seesProject(p, a.Project) {
		return a
	}
	return nil
}

func (s *Server) listAddresses(ctx context.Context, _ *struct{}) (*body[api.List[api.FloatingAddressStatus]], error) {
	view, p := s.cfg.Reader.View(), who(ctx)
	list := api.List[api.FloatingAddressStatus]{Items: []api.FloatingAddressStatus{}}
	for _, a := range view.Addresses {
		if seesProject(p, a.Project) {
			list.Items = append(list.Items, addressStatus(p, view, a))
		}
	}
	slices.SortFunc(list.Items, func(a, b api.FloatingAddressStatus) int {
		return cmp.Or(cmp.Compare(a.Project, b.Project), a.Address.Compare(b.Address))
	})
	return &body[api.List[api.FloatingAddressStatus]]{list}, nil
}

func (s *Server) getAddress(ctx context.Context, in *addressInput) (*body[api.FloatingAddressStatus], error) {
	view, p := s.cfg.Reader.View(), who(ctx)
	a := findAddress(p, view, in.Address)
	if a == nil {
		return nil, noAddress(in.Address)
	}
	return &body[api.FloatingAddressStatus]{addressStatus(p, view, a)}, nil
}

// targetOf returns the cluster that an address leads to, or nil: an assignment is over when its cluster is gone.
func targetOf(view *state.View, a *api.FloatingAddress) *state.Cluster {
	if a.Target == nil {
		return nil
	}
	return view.ClusterByUID(a.Target.ClusterUID)
}

// addressStatus makes what users see of a floating address. The target is omitted if the token may not see its cluster.
func addressStatus(p tenancy.Principal, view *state.View, a *api.FloatingAddress) api.FloatingAddressStatus {
	out := api.FloatingAddressStatus{
		Address: a.Address, Project: projectOr(a.Project), User: a.User, State: api.AddressFree, Ports: []string{}, AllocatedAt: a.AllocatedAt,
	}
	c := targetOf(view, a)
	if c == nil {
		return out
	}
	out.State = api.AddressWaiting
	held, at := findHeld(c, a.Target.Member), -1
	if held != nil {
		at = floating.WayOut(held, view.Network)
	}
	if at >= 0 && !held.Saved {
		out.State = api.AddressActive
	}
	if !seesCluster(p, c.Name()) {
		return out
	}
	_, out.Cluster = tenancy.Split(c.Name())
	out.Member, out.Ports, out.AssignedAt = a.Target.Member, append(out.Ports, a.Target.Ports...), &a.Target.AssignedAt
	if out.State == api.AddressActive {
		out.Node, out.MemberAddress = held.Node, held.Ports[at].Address
	}
	return out
}

func (s *Server) allocateAddress(ctx context.Context, in *rawBody) (*created[api.FloatingAddressStatus], error) {
	req, src, err := readBody[api.AddressRequest](*in)
	if err != nil {
		return nil, err
	}
	p, view := who(ctx), s.cfg.Reader.View()
	project := cmp.Or(req.Project, projectOr(p.Project))
	if err := mayChangeShared(p, view, project, "floating addresses"); err != nil {
		return nil, err
	}
	if s.cfg.FloatingPool.IsEmpty() {
		return nil, fail(codeNoFloatingPool, "the site has no floating addresses; an administrator gives it some with 'nearmetal server --floating-pool PREFIX'")
	}
	var wanted netip.Addr
	if req.Address != "" || src.Has("address") {
		if wanted, err = netip.ParseAddr(req.Address); err != nil || !s.cfg.FloatingPool.Has(wanted) {
			return nil, failFields(codeInvalidRequest, api.FieldProblem{
				Location: "address", Value: req.Address,
				Message: fmt.Sprintf("%q is not an address of the floating pool %s that a project may have", req.Address, s.cfg.FloatingPool),
			})
		}
	}
	a := api.FloatingAddress{Project: project, User: userOf(ctx), AllocatedAt: s.cfg.Now().UTC()}
	revision, err := s.storeAddress(ctx, view, &a, wanted)
	if err != nil {
		return nil, err
	}
	view, _ = s.readOwnWrite(ctx, revision)
	return &created[api.FloatingAddressStatus]{Location: "/v1/addresses/" + a.Address.String(), Body: addressStatus(p, view, &a)}, nil
}

// storeAddress allocates an address: the wanted one, or the lowest that is free.
func (s *Server) storeAddress(ctx context.Context, view *state.View, a *api.FloatingAddress, wanted netip.Addr) (int64, error) {
	quota := 0
	if project := view.Project(a.Project); project != nil {
		quota = project.Quota.Addresses
	}
	check := func(held []api.FloatingAddress) error {
		if quota > 0 && len(held) >= quota {
			return fail(codeOverQuota, "project %q has %d floating addresses, and its quota is %d; release one, or have an administrator raise the quota",
				a.Project, len(held), quota)
		}
		return nil
	}
	for candidate := range s.cfg.FloatingPool.All() {
		if wanted.IsValid() {
			candidate = wanted
		} else if view.Address(candidate) != nil {
			continue
		}
		a.Address = candidate
		revision, err := s.cfg.Writer.AllocateAddress(ctx, *a, check)
		var refused *failure
		switch {
		case errors.As(err, &refused):
			return 0, refused
		case errors.Is(err, state.ErrExists) && wanted.IsValid():
			return 0, fail(codeAddressHeld, "address %s is allocated already; choose another one, or omit it to get a free one", wanted)
		case errors.Is(err, state.ErrExists):
			continue // taken meanwhile
		case errors.Is(err, state.ErrNoProject):
			return 0, noProject(a.Project)
		default:
			return revision, err
		}
	}
	return 0, fail(codeFloatingPoolFull, "all addresses of the floating pool %s are allocated; release one, or start the server with another --floating-pool",
		s.cfg.FloatingPool)
}

// changeAddress changes where an address leads, for whoever may change it.
func (s *Server) changeAddress(ctx context.Context, text string, change func(a *api.FloatingAddress, others []api.FloatingAddress) error) (*body[api.FloatingAddressStatus], error) {
	view, p := s.cfg.Reader.View(), who(ctx)
	a := findAddress(p, view, text)
	if a == nil {
		return nil, noAddress(text)
	}
	if err := mayChangeShared(p, view, projectOr(a.Project), "floating addresses"); err != nil {
		return nil, err
	}
	changed, revision, err := s.cfg.Writer.ChangeAddress(ctx, a.Address, func(a *api.FloatingAddress, others []api.FloatingAddress) error {
		if !seesProject(p, a.Project) { // released and allocated by another project meanwhile
			return noAddress(text)
		}
		return change(a, others)
	})
	if errors.Is(err, state.ErrNotFound) {
		return nil, noAddress(text)
	}
	if err != nil {
		return nil, err
	}
	view, _ = s.readOwnWrite(ctx, revision)
	return &body[api.FloatingAddressStatus]{addressStatus(p, view, &changed)}, nil
}

func (s *Server) assignAddress(ctx context.Context, in *addressBody) (*body[api.FloatingAddressStatus], error) {
	req, _, err := readBody[api.AddressAssignment](rawBody{in.ContentType, in.RawBody})
	if err != nil {
		return nil, err
	}
	ports, err := floating.NormalPorts(req.Ports)
	if err != nil {
		return nil, failFields(codeInvalidRequest, api.FieldProblem{Location: "ports", Message: err.Error()})
	}
	if findAddress(who(ctx), s.cfg.Reader.View(), in.Address) == nil { // before anything is said of the cluster
		return nil, noAddress(in.Address)
	}
	c, err := s.findCluster(ctx, req.Cluster)
	if err != nil {
		return nil, err
	}
	if err := s.canBeReached(shownName(who(ctx), c.Name()), c, req.Member); err != nil {
		return nil, err
	}
	now := s.cfg.Now().UTC()
	return s.changeAddress(ctx, in.Address, func(a *api.FloatingAddress, others []api.FloatingAddress) error {
		if projectOr(a.Project) != projectOr(c.Intent.Project) {
			return fail(codeNoCluster, "address %s is held by project %q, and cluster %q belongs to project %q; allocate an address in that project",
				a.Address, projectOr(a.Project), req.Cluster, projectOr(c.Intent.Project))
		}
		next := &api.AddressTarget{Cluster: c.Name(), ClusterUID: c.UID(), Member: req.Member, Ports: ports, AssignedAt: now}
		return s.assignTo(a, next, others)
	})
}

// assignTo points an address to a member, unless it leads to another one. A member can have one address outside.
func (s *Server) assignTo(a *api.FloatingAddress, next *api.AddressTarget, others []api.FloatingAddress) error {
	view := s.cfg.Reader.View()
	if targetOf(view, a) != nil {
		was := a.Target
		if was.ClusterUID != next.ClusterUID || was.Member != next.Member {
			return fail(codeAddressAssigned, "address %s leads to member %s of cluster %q; an address leads to one member: unassign it first, or allocate another one",
				a.Address, was.Member, was.Cluster)
		}
		if slices.Equal(was.Ports, next.Ports) {
			return nil
		}
		next.AssignedAt = was.AssignedAt
	}
	for i := range others {
		o := others[i].Target
		if len(next.Ports) == 0 && targetOf(view, &others[i]) != nil && o.ClusterUID == next.ClusterUID && o.Member == next.Member && len(o.Ports) == 0 {
			return fail(codeAddressAssigned, "member %s of cluster %q has address %s already; unassign that first, or forward single ports with --port",
				next.Member, next.Cluster, others[i].Address)
		}
	}
	a.Target = next
	return nil
}

// canBeReached refuses a member that does not exist, or that no packet from outside could reach.
func (s *Server) canBeReached(name string, c *state.Cluster, member string) error {
	a := findHeld(c, member)
	if a == nil {
		return fail(codeNoMember, "cluster %q has no member %q on a node; see nearmetal cluster show %s", name, member, name)
	}
	if floating.WayOut(a, s.cfg.Reader.View().Network) < 0 {
		return fail(codeNoWayOut, "member %s has no way out, so a floating address can't lead to it; create its cluster with --egress", member)
	}
	return nil
}

func (s *Server) unassignAddress(ctx context.Context, in *addressInput) (*body[api.FloatingAddressStatus], error) {
	return s.changeAddress(ctx, in.Address, func(a *api.FloatingAddress, _ []api.FloatingAddress) error {
		a.Target = nil
		return nil
	})
}

func (s *Server) releaseAddress(ctx context.Context, in *addressInput) (*struct{}, error) {
	view, p := s.cfg.Reader.View(), who(ctx)
	a := findAddress(p, view, in.Address)
	if a == nil {
		return nil, noAddress(in.Address)
	}
	if err := mayChangeShared(p, view, projectOr(a.Project), "floating addresses"); err != nil {
		return nil, err
	}
	revision, err := s.cfg.Writer.ReleaseAddress(ctx, a.Address, func(a *api.FloatingAddress) error {
		if !seesProject(p, a.Project) {
			return noAddress(in.Address)
		}
		if targetOf(s.cfg.Reader.View(), a) != nil {
			return fail(codeAddressAssigned, "address %s leads to member %s of cluster %q; unassign it first", a.Address, a.Target.Member, a.Target.Cluster)
		}
		return nil
	})
	if errors.Is(err, state.ErrNotFound) {
		return nil, noAddress(in.Address)
	}
	if err != nil {
		return nil, err
	}
	_, _ = s.readOwnWrite(ctx, revision)
	return nil, nil //nolint:nilnil // 204
}
