package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// maxNetworks is how many networks a project may have: each takes an index and a subnet of the site.
const maxNetworks = 32

// networkInput names a network, by its name or its UID.
type networkInput struct {
	Name string `path:"name" doc:"CLUSTER, CLUSTER:NETWORK, project/NETWORK, NETWORK where no cluster has that name, or a UID; of another project PROJECT.CLUSTER or project/PROJECT.NETWORK"`
}

func (s *Server) registerNetworks() {
	operation(s, "GET /v1/networks", AccessRead, "list-networks", "List networks",
		"Networks by name, with their ports: those of the token's project; for an administrator those of all projects. Every placed cluster has one of "+
			"its own, and those that its groups name. A cluster's network is gone once the last of its ports is confirmed clean. A project's network stays until it is deleted.",
		http.StatusOK, s.listNetworks)
	operation(s, "POST /v1/networks", AccessChange, "create-network", "Create a network of a project",
		"Stores the request and returns at once, phase `pending`; the network is `ready` a moment later. Members of all clusters of the project whose groups "+
			"name `project/NAME` have a port on it.",
		http.StatusCreated, s.createNetwork, bodyCodes(codeInvalidRequest, codeNetworkExists, codeSubnetTaken, codeVLANTaken, codeNoVLANs, codePKeyTaken, codeNoInfiniBand, codeTooManyNetworks, codeNoProject)...)
	operation(s, "GET /v1/networks/{name}", AccessRead, "get-network", "Show a network",
		"By its name or its UID: CLUSTER for a cluster's own network, CLUSTER:NETWORK for a further one, project/NETWORK (the slash as %2F) for one of a project.",
		http.StatusOK, s.getNetwork, codeNoNetwork)
	operation(s, "GET /v1/networks/{name}/check", AccessRun, "check-network", "Check a network",
		"The agents of all nodes of the network compare the kernel with what should be in force, and exchange probes as large as the network's packets "+
			"become in a tunnel. Changes nothing. An agent repairs what differs by itself, after at most 30 seconds.",
		http.StatusOK, s.checkNetwork, codeNoNetwork, codeNetworkUnchecked)
	operation(s, "GET /v1/networks/{name}/trace", AccessRead, "trace-packet", "Trace a packet on a network",
		"Follows the first packet of a connection, hop by hop, and names the rule that lets it pass or stops it; then the answer to it. The packet goes from "+
			"a port to another port of the network or of one that it is routed to, to a floating address or to the outside; or from outside to a floating "+
			"address. Evaluates what nodes should have in force, and sends nothing.",
		http.StatusOK, s.traceNetwork, codeParameter, codeInvalidRequest, codeNoNetwork, codeNoMember, codeNetworkUnchecked)
	operation(s, "POST /v1/networks/{name}/records", AccessChange, "change-network-records", "Change the records of a project's network",
		"`set` adds records, and replaces those of the same names; `remove` removes records. Members of clusters on the network find them by DNS and in "+
			"/etc/hosts, running members at once. Names of members and clusters win.",
		http.StatusOK, s.changeNetworkRecords, bodyCodes(codeInvalidRequest, codeNoNetwork)...)
	operation(s, "DELETE /v1/networks/{name}", AccessChange, "delete-network", "Delete a network of a project",
		"Marks the network as to be deleted and returns at once; it is gone once the last of its ports is confirmed clean. Refused while a cluster names it. "+
			"Repeating the request is not an error.",
		http.StatusAccepted, s.deleteNetwork, codeNoNetwork, codeNetworkInUse)
}

func noNetwork(name string) *failure {
	return fail(codeNoNetwork, "network %q does not exist; 'nearmetal network list' lists the networks", name)
}

func (s *Server) listNetworks(ctx context.Context, _ *struct{}) (*body[api.List[api.NetworkStatus]], error) {
	return &body[api.List[api.NetworkStatus]]{api.List[api.NetworkStatus]{Items: networksOf(who(ctx), s.cfg.Reader.View())}}, nil
}

// networksOf returns the networks that a principal may know of, by name.
func networksOf(p tenancy.Principal, view *state.View) []api.NetworkStatus {
	all := []api.NetworkStatus{}
	quarantined := quarantinedPorts(view)
	for _, n := range view.Networks {
		if !n.OfProject() && seesCluster(p, n.Cluster) {
			all = append(all, joinNetwork(view, n, quarantined))
		}
	}
	for _, in := range view.NetworkIntents {
		if knowsNetwork(p, in) {
			all = append(all, joinProjectNetwork(p, view, in, quarantined))
		}
	}
	slices.SortFunc(all, func(a, b api.NetworkStatus) int {
		return cmp.Or(cmp.Compare(a.Project, b.Project), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return all
}

func (s *Server) getNetwork(ctx context.Context, in *networkInput) (*body[api.NetworkStatus], error) {
	view, p := s.cfg.Reader.View(), who(ctx)
	n, intent := findNetwork(p, view, in.Name)
	var status api.NetworkStatus
	switch {
	case intent != nil:
		status = joinProjectNetwork(p, view, intent, quarantinedPorts(view))
	case n != nil:
		status = joinNetwork(view, n, quarantinedPorts(view))
	default:
		return nil, noNetwork(in.Name)
	}
	s.count(view, &status)
	return &body[api.NetworkStatus]{status}, nil
}

// findNetwork returns the network that a principal means by a name or a UID, and may know of: one of a cluster, or what is wanted of one of a
// project. A name of no cluster's network is short for project/NAME.
func findNetwork(p tenancy.Principal, view *state.View, name string) (*api.Network, *api.NetworkIntent) {
	if intent := findProjectNetwork(p, view, name); intent != nil {
		return nil, intent
	}
	n := view.Network(name)
	cluster, own, further := strings.Cut(name, ":")
	if full, err := tenancy.Resolve(p, "", cluster); err == nil && (own != "" || !further) {
		if named := view.NetworkNamed(api.NetworkName(full, own)); named != nil {
			n = named
		}
	}
	switch {
	case n != nil && !n.OfProject() && seesCluster(p, n.Cluster):
		return n, nil
	case further:
		return nil, nil
	default:
		return nil, findProjectNetwork(p, view, api.ProjectNetwork(name))
	}
}

// findProjectNetwork returns what is wanted of the project's network that a principal means and may know of, or nil.
func findProjectNetwork(p tenancy.Principal, view *state.View, name string) *api.NetworkIntent {
	var intent *api.NetworkIntent
	if own, ok := api.CutProjectNetwork(name); ok {
		full, err := tenancy.Resolve(p, "", own)
		if err != nil {
			return nil
		}
		intent = view.NetworkIntent(full)
	} else if i := slices.IndexFunc(view.NetworkIntents, func(n *api.NetworkIntent) bool { return n.UID == name }); i >= 0 {
		intent = view.NetworkIntents[i]
	}
	if intent == nil || !knowsNetwork(p, intent) {
		return nil
	}
	return intent
}

// knowsNetwork reports whether a principal may know of a project's network: its own project's, and those that others share with it.
func knowsNetwork(p tenancy.Principal, in *api.NetworkIntent) bool {
	return seesProject(p, in.Project) || in.IsOpenTo(projectOr(p.Project))
}

// quarantinedPorts returns the assignments that were not proved clean in time, by the UIDs of the networks that they have ports on.
func quarantinedPorts(view *state.View) map[string][]*api.Assignment {
	all := map[string][]*api.Assignment{}
	for _, q := range view.Quarantines {
		for i := range q.Assignment.Ports {
			uid := q.Assignment.Ports[i].Network
			all[uid] = append(all[uid], &q.Assignment)
		}
	}
	return all
}

// joinNetwork makes what users see of a cluster's network: as it is stored, with its ports by their addresses.
func joinNetwork(view *state.View, n *api.Network, quarantined map[string][]*api.Assignment) api.NetworkStatus {
	out := api.NetworkStatus{Network: *n, Phase: api.NetworkReady}
	project, cluster := tenancy.Split(n.Cluster)
	out.Project, out.Cluster, out.Name = project, cluster, api.NetworkName(cluster, n.OwnName())
	var on []*state.Cluster
	if c := view.ClusterByUID(n.ClusterUID); c != nil {
		on = append(on, c)
	}
	out.Ports = portsOf(n.UID, on, quarantined[n.UID])
	return out
}

// joinProjectNetwork makes what users see of a project's network: what is wanted of it, what is stored, and the ports of clusters that the
// principal may know of.
func joinProjectNetwork(p tenancy.Principal, view *state.View, in *api.NetworkIntent, quarantined map[string][]*api.Assignment) api.NetworkStatus {
	_, own := tenancy.Split(in.Name)
	out := api.NetworkStatus{
		Network: api.Network{UID: in.UID, Technology: cmp.Or(in.Technology, api.TechnologyVXLAN), VLAN: in.VLAN, Cell: in.Cell, PKey: in.PKey, Partition: in.Partition, Prefix: in.Prefix, Prefix6: in.Prefix6, Egress: in.Egress, Routed: in.Routed, MTU: in.MTU}, Phase: api.NetworkPending,
	}
	if n := view.Network(in.UID); n != nil {
		out.Network, out.Phase = *n, api.NetworkReady
		if n.Refused != "" {
			out.Prefix, out.Prefix6, out.Phase = in.Prefix, in.Prefix6, api.NetworkRefused
		}
	}
	if in.DeleteRequestedAt != nil {
		out.Phase = api.NetworkDeleting
	}
	out.Name, out.Project, out.Records = api.ProjectNetwork(own), projectOr(in.Project), in.Records
	if seesProject(p, in.Project) {
		out.SharedWith = in.SharedWith
	}
	var on []*state.Cluster
	for _, c := range view.ClustersOnNetwork(in.UID) {
		if seesCluster(p, c.Name()) {
			on = append(on, c)
		}
	}
	held := slices.DeleteFunc(slices.Clone(quarantined[in.UID]), func(a *api.Assignment) bool { return !seesCluster(p, a.Cluster) })
	out.Ports = portsOf(in.UID, on, held)
	for i := range out.Ports {
		out.Ports[i].Address6 = out.Address6(out.Ports[i].Address)
	}
	return out
}

// portsOf lists the ports of clusters and of quarantined assignments on a network, by their addresses. Spares hold addresses and have no ports.
func portsOf(network string, on []*state.Cluster, quarantined []*api.Assignment) []api.NetworkPort {
	ports := []api.NetworkPort{}
	add := func(a *api.Assignment, releasing, quarantined bool) {
		_, cluster := tenancy.Split(a.Cluster)
		for i := range a.Ports {
			if p := &a.Ports[i]; p.Network == network && !a.Spare {
				ports = append(ports, api.NetworkPort{
					Cluster: cluster, Member: a.Member, Node: a.Node, Kind: p.Kind, Address: p.Address, MAC: p.MAC, Device: p.Device, Part: p.Part, GUID: p.GUID, Limited: p.Limited, SecurityGroups: p.SecurityGroups, Quality: p.Quality,
					Releasing: releasing, Quarantined: quarantined,
				})
			}
		}
	}
	for _, c := range on {
		for a, ref := range c.AllWithRef() {
			if a.IsSuccessor() && !ref.Releasing { // its member's ports, until it takes over
				continue
			}
			add(a, ref.Releasing, false)
		}
	}
	for _, a := range quarantined {
		add(a, false, true)
	}
	slices.SortFunc(ports, func(a, b api.NetworkPort) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Member, b.Member))
	})
	return ports
}

func (s *Server) createNetwork(ctx context.Context, in *rawBody) (*created[api.NetworkStatus], error) {
	req, src, err := readBody[api.NetworkRequest](*in)
	if err != nil {
		return nil, err
	}
	if err := manifest.CheckNetwork(req, src); err != nil {
		return nil, failInvalid(err, codeInvalidRequest)
	}
	prefix, err := s.requestedPrefix(req, src)
	if err != nil {
		return nil, err
	}
	prefix6, err := s.requestedPrefix6(req, src)
	if err != nil {
		return nil, err
	}
	p, view := who(ctx), s.cfg.Reader.View()
	project := cmp.Or(req.Project, projectOr(p.Project))
	if err := mayChangeShared(p, view, project, "networks"); err != nil {
		return nil, err
	}
	full := tenancy.FullName(project, req.Name)
	if err := networkIsNew(p, view, project, full, prefix); err != nil {
		return nil, err
	}
	if err := subnet6IsFree(p, view, prefix6); err != nil {
		return nil, err
	}
	if err := s.vlanFits(p, view, req, src); err != nil {
		return nil, err
	}
	if err := s.partitionFits(p, view, &req, src); err != nil {
		return nil, err
	}
	if err := s.mtuFits(view, req, src); err != nil {
		return nil, err
	}
	intent := api.NetworkIntent{
		Name: full, UID: newID(uidLetters), Project: project, User: userOf(ctx), Prefix: prefix, IPv6: req.IPv6 || prefix6.IsValid(), Prefix6: prefix6, Egress: req.Egress, Routed: req.Routed, MTU: req.MTU,
		Technology: intendedTechnology(req), VLAN: req.VLAN, Cell: req.Cell, PKey: req.PKey, Partition: req.Partition, SharedWith: req.SharedWith,
		CreatedAt: s.cfg.Now().UTC(),
	}
	revision, err := s.cfg.Writer.CreateNetwork(ctx, intent)
	switch {
	case errors.Is(err, state.ErrExists):
		return nil, networkExists(req.Name, false)
	case errors.Is(err, state.ErrNoProject):
		return nil, noProject(project)
	case err != nil:
		return nil, err
	}
	view, _ = s.readOwnWrite(ctx, revision)
	return &created[api.NetworkStatus]{
		Location: "/v1/networks/" + intent.UID, Body: joinProjectNetwork(p, view, &intent, quarantinedPorts(view)),
	}, nil
}

// requestedPrefix reads the prefix of a request; not valid when there is none.
func (s *Server) requestedPrefix(req api.NetworkRequest, src *manifest.Source) (netip.Prefix, error) {
	if req.Prefix == "" && !src.Has("prefix") {
		return netip.Prefix{}, nil
	}
	prefix, err := netip.ParsePrefix(req.Prefix)
	if err != nil {
		prefix = netip.Prefix{}
		err = fmt.Errorf("%q is not a prefix: give one such as 10.64.128.0/24", req.Prefix)
	} else {
		err = s.cfg.Pool.CheckSubnet(prefix)
	}
	if err != nil {
		return prefix, failFields(codeInvalidRequest, api.FieldProblem{Location: "prefix", Line: src.Line("prefix"), Value: req.Prefix, Message: err.Error()})
	}
	return prefix, nil
}

// mayChangeShared refuses objects of another project, such as networks, and tokens that are limited to some of a project's clusters: all of these
// use the object.
func mayChangeShared(p tenancy.Principal, view *state.View, project, objects string) error {
	switch {
	case !seesProject(p, project):
		return fail(codeForbidden, "your token is for project %q; only an administrator may change %s of project %q", projectOr(p.Project), objects, project)
	case len(p.Limits.Clusters) > 0:
		return fail(codeForbidden, "your token is limited to clusters named %s, and %s are shared by all clusters of a project; use a token without that limit",
			strings.Join(p.Limits.Clusters, ", "), objects)
	case view.Project(project) == nil:
		return noProject(project)
	}
	return nil
}

// networkIsNew refuses a network whose name or subnet is taken, or that would be one too many.
func networkIsNew(p tenancy.Principal, view *state.View, project, full string, prefix netip.Prefix) error {
	_, name := tenancy.Split(full)
	if in := view.NetworkIntent(full); in != nil {
		return networkExists(name, in.DeleteRequestedAt != nil)
	}
	count := 0
	for _, in := range view.NetworkIntents {
		if projectOr(in.Project) == project {
			count++
		}
		if prefix.IsValid() && in.Prefix.Overlaps(prefix) {
			return subnetTaken(prefix, in.Prefix, seesProject(p, in.Project), api.ProjectNetwork(in.Name))
		}
	}
	if count >= maxNetworks {
		return fail(codeTooManyNetworks, "project %q has %d networks, the most that a project may have; delete one first", project, count)
	}
	for _, n := range view.Networks {
		if prefix.IsValid() && n.Prefix.Overlaps(prefix) {
			return subnetTaken(prefix, n.Prefix, !n.OfProject() && seesCluster(p, n.Cluster) || n.OfProject() && seesProject(p, n.Project), n.Name)
		}
	}
	return nil
}

func networkExists(name string, deleting bool) *failure {
	if deleting {
		return fail(codeNetworkExists, "network %q is still being deleted; wait until it is gone, or choose another name", api.ProjectNetwork(name))
	}
	return fail(codeNetworkExists, "network %q already exists; choose another name, or delete it first: nearmetal network delete %s", api.ProjectNetwork(name), api.ProjectNetwork(name))
}

// subnetTaken names the other network only to who may know of it.
func subnetTaken(prefix, other netip.Prefix, known bool, name string) *failure {
	if known {
		return fail(codeSubnetTaken, "prefix %s overlaps subnet %s of network %q; choose another prefix, or omit it to get a free one", prefix, other, name)
	}
	return fail(codeSubnetTaken, "prefix %s overlaps another network's subnet; choose another prefix, or omit it to get a free one", prefix)
}

func (s *Server) deleteNetwork(ctx context.Context, in *networkInput) (*body[api.NetworkStatus], error) {
	view, p := s.cfg.Reader.View(), who(ctx)
	n, intent := findNetwork(p, view, in.Name)
	switch {
	case n != nil:
		return nil, fail(codeNetworkInUse, "network %q is a private network of cluster %q and ends with it: nearmetal cluster delete %s", in.Name,
			shownName(p, n.Cluster), shownName(p, n.Cluster))
	case intent == nil:
		return nil, noNetwork(in.Name)
	}
	if err := mayChangeShared(p, view, projectOr(intent.Project), "networks"); err != nil {
		return nil, err
	}
	revision, err := s.cfg.Writer.RequestNetworkDelete(ctx, intent.Name, s.cfg.Now().UTC())
	switch {
	case errors.Is(err, state.ErrNotFound):
		return nil, noNetwork(in.Name)
	case errors.Is(err, state.ErrInUse):
		return nil, fail(codeNetworkInUse, "%v", err)
	case err != nil:
		return nil, err
	}
	view, _ = s.readOwnWrite(ctx, revision)
	gone := *intent
	now := s.cfg.Now().UTC()
	gone.DeleteRequestedAt = &now
	return &body[api.NetworkStatus]{joinProjectNetwork(p, view, &gone, quarantinedPorts(view))}, nil
}

// knownNetworks refuses a cluster that names networks which its project does not have.
func knownNetworks(spec api.ClusterSpec, project string, view *state.View) error {
	for i, g := range spec.Groups {
		for j, network := range g.Networks {
			name := network.Name
			own, joined := api.CutProjectNetwork(name)
			if !joined {
				continue
			}
			in := view.NetworkIntent(state.NetworkIntentName(project, own))
			if in != nil && !in.IsOpenTo(project) {
				in = nil
			}
			if in != nil && in.DeleteRequestedAt == nil {
				continue
			}
			problem := "is not a network of project " + project
			if in != nil {
				problem = "is being deleted"
			}
			f := fail(codeUnknownNetwork, "network %q of group %q %s; %s", name, g.Name, problem, networksOfProject(project, name, view))
			f.Errors = []api.FieldProblem{{Location: fmt.Sprintf("%s[%d]", groupField(spec, i, "networks"), j), Value: name, Message: problem}}
			return f
		}
	}
	return nil
}

// networksOfProject lists the networks of a project, and the one that was perhaps meant.
func networksOfProject(project, asked string, view *state.View) string {
	var names []string
	for _, in := range view.NetworkIntents {
		_, own := tenancy.Split(in.Name)
		switch {
		case in.DeleteRequestedAt != nil || !in.IsOpenTo(project):
		case in.IsOwnedBy(project):
			names = append(names, api.ProjectNetwork(own))
		default:
			names = append(names, api.ProjectNetwork(projectOr(in.Project)+"."+own))
		}
	}
	if len(names) == 0 {
		own, _ := api.CutProjectNetwork(asked)
		return "the project has none: nearmetal network create " + own
	}
	text := "its networks: " + quoteAll(names)
	if near := manifest.Closest(asked, names); near != "" {
		text += fmt.Sprintf("; did you mean %q?", near)
	}
	return text
}
