package placement

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/pool"
)

// HasMachines reports whether a cluster has members with whole machines.
func HasMachines(spec *api.ClusterSpec) bool {
	for i := range spec.Groups {
		if Whole(spec.Groups[i].Stack) {
			return true
		}
	}
	return false
}

// ServeVolumes gives each node where claimed volumes lie an address on the cluster's own network: members with whole machines reach the node by it. A node keeps
// the address that claims of held assignments have for it. Nobody has an address in held or in fresh.
func ServeVolumes(claims []api.VolumeClaim, own *api.Network, held, fresh []api.Assignment) error {
	hosts := freeHosts(own, held, fresh)
	at := map[string]*api.VolumeClaim{}
	for _, list := range [][]api.Assignment{held, fresh} {
		for i := range list {
			for j := range list[i].Volumes {
				if c := &list[i].Volumes[j]; c.Server.IsValid() {
					at[c.Node] = c
				}
			}
		}
	}
	for i := range claims {
		c := &claims[i]
		if known := at[c.Node]; known != nil {
			c.Server = known.Server
			continue
		}
		host, ok := hosts.Take(serverOf(c.Node))
		if !ok {
			return fmt.Errorf("network %s (%s) has no free address for node %s, where volume %q lies: it has room for %d members", own.Name, own.Prefix, c.Node, c.Name, Room(own))
		}
		c.Server = pool.Offset(own.Prefix.Addr(), uint32(host))
		at[c.Node] = c
	}
	return nil
}

// ServerMAC is the MAC address that a node has at an address for volumes.
func ServerMAC(own *api.Network, claim *api.VolumeClaim) string {
	return MAC(own.Index, int(pool.Host(own.Prefix.Addr(), claim.Server)))
}

// serverOf holds an address for a node's volumes. No assignment has such an ID.
func serverOf(node string) string { return "volumes of " + node }
