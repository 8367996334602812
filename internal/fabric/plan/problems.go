package plan

import "github.com/nearmetal/nearmetal/internal/fabric"

// Problems returns what is wrong with the ports of networks, by port ID, given the links by name as the kernel has them.
func Problems(networks []fabric.Network, links map[string]Link) map[string]string {
	wrong := map[string]string{}
	for _, n := range fabric.OnBridges(networks) {
		for _, p := range n.Ports {
			if problem := portProblem(links, PortName(p.ID), BridgeName(n.Index)); problem != "" {
				wrong[p.ID] = problem
			}
		}
	}
	return wrong
}

// portProblem reports what is wrong with a port, "" for nothing.
func portProblem(links map[string]Link, name, bridge string) string {
	port, exists := links[name]
	switch {
	case !exists:
		return "its network port is gone"
	case !port.Up:
		return "its network port is down"
	case port.Master != bridge:
		return "its network port is not on its network's bridge"
	case !links[bridge].Up:
		return "its network's bridge is down"
	default:
		return ""
	}
}
