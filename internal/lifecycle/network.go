package lifecycle

import "github.com/nearmetal/nearmetal/api"

// PlanNetworks returns the UIDs of networks that are over: their cluster is gone, and no quarantined assignment has a port on them. Until then
// their numbers are nobody else's.
func PlanNetworks(networks []*api.Network, living func(clusterUID string) bool, quarantined []*api.Quarantine) []string {
	var over []string
	for _, n := range networks {
		if n.ClusterUID == "" || living(n.ClusterUID) || hasPort(quarantined, n.UID) {
			continue
		}
		over = append(over, n.UID)
	}
	return over
}

func hasPort(quarantined []*api.Quarantine, network string) bool {
	for _, q := range quarantined {
		for i := range q.Assignment.Ports {
			if q.Assignment.Ports[i].Network == network {
				return true
			}
		}
	}
	return false
}
