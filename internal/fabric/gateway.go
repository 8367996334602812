package fabric

import "github.com/nearmetal/nearmetal/api"

// LeadsOut reports whether the member at a port has its default route by the port's network. All networks of the member are among networks.
func LeadsOut(networks []Network, portID string) bool {
	var of []api.Network
	at := -1
	for _, n := range networks {
		for _, p := range n.Ports {
			if AssignmentOf(p.ID) != AssignmentOf(portID) {
				continue
			}
			if p.ID == portID {
				at = len(of)
			}
			of = append(of, n.Network)
		}
	}
	return at >= 0 && api.WayOut(of) == at
}
