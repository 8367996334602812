package manifest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// CheckNetwork refuses a request for a network that no project can have, whatever its prefix. The error is an *Invalid.
func CheckNetwork(req api.NetworkRequest, src *Source) error {
	n := normalizer{src: src}
	n.label("name", req.Name, MaxNetworkName)
	if req.Project != "" || src.Has("project") {
		n.label("project", req.Project, MaxProjectName)
	}
	n.technology(req, src)
	n.sharedWith(req)
	n.partition(req, src)
	return n.err()
}

// maxSharedWith is how many projects a network can be shared with by name.
const maxSharedWith = 100

// sharedWith checks the projects that a network is shared with.
func (n *normalizer) sharedWith(req api.NetworkRequest) {
	switch {
	case len(req.SharedWith) == 0:
		return
	case req.Technology != api.TechnologyInfiniBand:
		n.add("shared_with", strings.Join(req.SharedWith, ","), "only a network of technology %s can be shared: it alone keeps members of different projects apart, as limited members",
			api.TechnologyInfiniBand)
	case len(req.SharedWith) > maxSharedWith:
		n.add("shared_with", strconv.Itoa(len(req.SharedWith)), "has %d projects; at most %d are possible, or %q for all", len(req.SharedWith), maxSharedWith, api.AnyProject)
		return
	}
	for i, project := range req.SharedWith {
		at := fmt.Sprintf("shared_with[%d]", i)
		switch {
		case slices.Contains(req.SharedWith[:i], project):
			n.add(at, project, "%q is listed twice; keep one", project)
		case project != api.AnyProject:
			n.label(at, project, MaxProjectName)
		}
	}
}

// NetworkProblem returns what is wrong with a network that a group names: NAME, project/NAME, or project/PROJECT.NAME for a network that another
// project shares; "" if nothing is.
func NetworkProblem(name string) string {
	own, joined := api.CutProjectNetwork(name)
	if !joined && strings.Contains(name, "/") {
		return "names no network; write NAME for a private network of the cluster, or project/NAME for a network of the cluster's own project"
	}
	if owner, name, foreign := strings.Cut(own, "."); joined && foreign {
		return cmp.Or(LabelProblem(owner, MaxProjectName), LabelProblem(name, MaxNetworkName))
	}
	return LabelProblem(own, MaxNetworkName)
}

// networks checks the networks of a group besides the cluster's own.
func (n *normalizer) networks(path string, networks []api.GroupNetwork) {
	if len(networks) > MaxGroupNetworks {
		n.add(path, strconv.Itoa(len(networks)), "has %d networks; at most %d are possible beside the cluster's own", len(networks), MaxGroupNetworks)
		return
	}
	for i, network := range networks {
		at, name := fmt.Sprintf("%s[%d]", path, i), network.Name
		if problem := NetworkProblem(name); problem != "" {
			n.add(at, name, "%q %s", name, problem)
		} else if j := slices.IndexFunc(networks, func(other api.GroupNetwork) bool { return other.Name == name }); j < i {
			n.add(at, name, "%q is also %s[%d]; name every network once", name, path, j)
		}
		n.securityGroups(join(at, "security_groups"), network.SecurityGroups)
		n.adapter(join(at, "adapter"), network.Interface, network.Adapter)
		if q := network.Quality; q.MaxRate > 0 && q.MinRate > q.MaxRate {
			n.add(join(at, "min_rate"), q.MinRate.String(), "%v is above the maximum rate, %v", q.MinRate, q.MaxRate)
		}
	}
}

// securityGroups checks the names of the security groups of ports.
func (n *normalizer) securityGroups(path string, names []string) {
	if len(names) > MaxPortGroups {
		n.add(path, strconv.Itoa(len(names)), "has %d security groups; a port has at most %d", len(names), MaxPortGroups)
		return
	}
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", path, i)
		if problem := LabelProblem(name, MaxSecurityGroupName); problem != "" {
			n.add(at, name, "%q %s", name, problem)
		} else if j := slices.Index(names, name); j < i {
			n.add(at, name, "%q is also %s[%d]; name every security group once", name, path, j)
		}
	}
}

// allNetworks refuses more networks than a cluster may have. Groups that name the same network share it.
func (n *normalizer) allNetworks(groups []api.Group) {
	if names := slices.Concat(api.FurtherNetworks(groups), api.JoinedNetworks(groups)); len(names) > MaxClusterNetworks {
		n.add("groups", strconv.Itoa(len(names)), "name %d networks in all; at most %d are possible beside the cluster's own", len(names), MaxClusterNetworks)
	}
}

// addresses checks the fixed addresses of a group. Whether a network has them is for the server to find out.
func (n *normalizer) addresses(path string, g api.Group) {
	if g.HasFixedAddress() {
		if g.Size > 1 {
			n.add(path, "", "fixes an address, which only a group of one member can have; this group has %d", g.Size)
		}
		if g.Spares > 0 {
			n.add(path, "", "fixes an address, and a spare can't hold it for its member; omit the spares, or the address")
		}
	}
	for i, network := range g.Networks {
		at, text := fmt.Sprintf("%s[%d].address", path, i), network.Address
		if text == "" {
			continue
		}
		if _, joined := api.CutProjectNetwork(network.Name); !joined {
			n.add(at, text, "%q is not a network of the project; only on those, project/NAME, an address can be fixed", network.Name)
		}
		if a, err := netip.ParseAddr(text); err != nil || !a.Is4() {
			n.add(at, text, "%q is not an IPv4 address such as 10.64.128.20", text)
		}
	}
}

// allAddresses refuses one address for two groups.
func (n *normalizer) allAddresses(groups []api.Group) {
	first := map[[2]string]int{}
	for i, g := range groups {
		for j, network := range g.Networks {
			if network.Address == "" {
				continue
			}
			key := [2]string{network.Name, network.Address}
			if k, taken := first[key]; taken {
				n.add(fmt.Sprintf("groups[%d].networks[%d].address", i, j), key[1], "%q is also the address of groups[%d] there; give each group its own", key[1], k)
				continue
			}
			first[key] = i
		}
	}
}
