package controller

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/state"
)

// tunnelEnd is where tunnels to a node end: its underlay address, not valid where it has none, and its public WireGuard key where the site's
// underlay is encrypted.
type tunnelEnd struct {
	address netip.Addr
	key     string
}

// remote is a member behind this end.
func (t tunnelEnd) remote(p fabric.Port) fabric.Remote {
	return fabric.Remote{Peer: t.address, Address: p.Address, MAC: p.MAC, Key: t.key}
}

// reported is what a node says of the end of its tunnels, as a view has it.
type reported struct{ underlay, key string }

func reportedBy(view *state.View, node string) reported {
	if n := view.Agent(node); n != nil {
		return reported{n.Underlay, n.WireGuardKey}
	}
	return reported{}
}

// addressesOf returns where tunnels to nodes end. With an error those are missing that no tunnel can lead to. Where the underlay is encrypted,
// none leads to a node without a key.
func (d *desiredStates) addressesOf(view *state.View, nodes map[string]bool) (map[string]tunnelEnd, error) {
	addresses := make(map[string]tunnelEnd, len(nodes))
	var missing error
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		by := reportedBy(view, node)
		address, err := netip.ParseAddr(by.underlay)
		switch {
		case err == nil && d.networks.encrypted && by.key == "":
			err = fmt.Errorf("node %q has no WireGuard, and the site's underlay is encrypted: load the kernel's module there "+
				"(modprobe wireguard) and restart its agent, or drain the node", node)
		case err == nil && d.networks.encrypted:
			addresses[node] = tunnelEnd{address, by.key}
		case err == nil:
			addresses[node] = tunnelEnd{address: address}
		default:
			err = fmt.Errorf("node %q has no usable underlay address (%q); members on several nodes need one: "+
				"start its agent with --underlay", node, by.underlay)
		}
		if err != nil && len(nodes) > 1 && missing == nil {
			missing = err
		}
	}
	return addresses, missing
}
