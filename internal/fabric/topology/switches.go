package topology

import (
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// FromPorts is the Ethernet of switches that a site manages, with the ports of its nodes. Places are the managed ports, SWITCH/PORT; nodes may have others.
func FromPorts(places []string, nodes map[string][]api.NodePort) api.FabricTopology {
	b := newBuilder()
	ports := map[string]int{}
	for _, at := range places {
		name, _, _ := strings.Cut(at, "/")
		ports[name]++
		b.switches[name] = &api.FabricSwitch{ID: name, Name: name, Ports: ports[name]}
	}
	for node, own := range nodes {
		for _, p := range own {
			if !slices.Contains(places, p.At) {
				continue
			}
			name, port, _ := strings.Cut(p.At, "/")
			b.hosts[node] = &api.FabricHost{ID: node, Name: node, Node: node}
			b.link(api.FabricLink{From: api.FabricEnd{ID: name, Port: port}, To: api.FabricEnd{ID: node, Host: true, Port: p.Name, At: p.At}})
		}
	}
	t := b.finish()
	t.Technology = api.FabricEthernet
	return t
}
