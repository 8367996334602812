package lifecycle

import "github.com/nearmetal/nearmetal/api"

// PlanProjectNetworks returns the networks of projects that are over: their deletion was requested, and no assignment that is not proved clean
// by all its provers, quarantined or not, has a port on them.
func PlanProjectNetworks(networks []*api.NetworkIntent, used func(uid string) bool, quarantined []*api.Quarantine) []*api.NetworkIntent {
	var over []*api.NetworkIntent
	for _, n := range networks {
		if n.DeleteRequestedAt != nil && !used(n.UID) && !hasPort(quarantined, n.UID) {
			over = append(over, n)
		}
	}
	return over
}

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
