package manifest

import (
	"fmt"
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
	return n.err()
}

// NetworkProblem returns what is wrong with a network that a group names: NAME or project/NAME; "" if nothing is.
func NetworkProblem(name string) string {
	own, joined := api.CutProjectNetwork(name)
	if !joined && strings.Contains(name, "/") {
		return "names no network; write NAME for a private network of the cluster, or project/NAME for a network of the cluster's own project"
	}
	return LabelProblem(own, MaxNetworkName)
}

// networks checks the names of the networks of a group besides the cluster's own.
func (n *normalizer) networks(path string, names []string) {
	if len(names) > MaxGroupNetworks {
		n.add(path, strconv.Itoa(len(names)), "has %d networks; at most %d are possible beside the cluster's own", len(names), MaxGroupNetworks)
		return
	}
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", path, i)
		if problem := NetworkProblem(name); problem != "" {
			n.add(at, name, "%q %s", name, problem)
		} else if j := slices.Index(names, name); j < i {
			n.add(at, name, "%q is also %s[%d]; name every network once", name, path, j)
		}
	}
}

// allNetworks refuses more networks than a cluster may have. Groups that name the same network share it.
func (n *normalizer) allNetworks(groups []api.Group) {
	if names := slices.Concat(api.FurtherNetworks(groups), api.JoinedNetworks(groups)); len(names) > MaxClusterNetworks {
		n.add("groups", strconv.Itoa(len(names)), "name %d networks in all; at most %d are possible beside the cluster's own", len(names), MaxClusterNetworks)
	}
}
