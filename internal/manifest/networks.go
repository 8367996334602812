package manifest

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
)

// networks checks the names of the further networks of a group.
func (n *normalizer) networks(path string, names []string) {
	if len(names) > MaxGroupNetworks {
		n.add(path, strconv.Itoa(len(names)), "has %d networks; at most %d are possible beside the cluster's own", len(names), MaxGroupNetworks)
		return
	}
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", path, i)
		if problem := LabelProblem(name, MaxNetworkName); problem != "" {
			n.add(at, name, "%q %s", name, problem)
		} else if j := slices.Index(names, name); j < i {
			n.add(at, name, "%q is also %s[%d]; name every network once", name, path, j)
		}
	}
}

// allNetworks refuses more networks than a cluster may have. Groups that name the same network share it.
func (n *normalizer) allNetworks(groups []api.Group) {
	if names := api.FurtherNetworks(groups); len(names) > MaxClusterNetworks {
		n.add("groups", strconv.Itoa(len(names)), "name %d networks in all; at most %d are possible beside the cluster's own", len(names), MaxClusterNetworks)
	}
}
