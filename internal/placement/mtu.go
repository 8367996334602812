package placement

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
)

// aboutMTU tells of nodes whose underlay has no room for the MTU of a group's network.
func (d *diagnosis) aboutMTU(r *Refusal) []string {
	var texts []string
	for _, n := range d.failing(ConstraintMTU) {
		texts = append(texts, n.record.Name+": "+mtuProblem(n.record, r.Need.PortMTU))
	}
	if r.Need.PortMTU.VLAN != "" {
		what := "can carry network " + r.Need.PortMTU.VLAN + ", which is on a VLAN"
		return d.tooFew("no node "+what, "too few nodes "+what, texts)
	}
	what := fmt.Sprintf("can carry the MTU of network %s, %d bytes", r.Need.PortMTU.Network, r.Need.PortMTU.Bytes)
	return d.tooFew("no node "+what, "too few nodes "+what, texts)
}

// mtuProblem returns why a node can't carry the MTU of a network.
func mtuProblem(rec api.NodeRecord, m api.PortMTU) string {
	switch p := newPlatform(rec); {
	case m.Switched > p.switchPorts:
		return fmt.Sprintf("%d of its ports are on switches that the site manages, and %d are needed; name them with: nearmetal node set %s --switch-port MAC=CELL:SWITCH/PORT", p.switchPorts, m.Switched, rec.Name)
	case m.VLAN == "" || m.Switched > 0 || p.trunkMTU >= m.TrunkBytes:
	case rec.Trunk == nil:
		return "it has no trunk for the VLAN; start its agent with --trunk-interface"
	case !rec.Trunk.Usable():
		return "its trunk can't be used: " + rec.Trunk.Problem
	default:
		return fmt.Sprintf("its trunk %s has an MTU of %d bytes, and %d are needed", rec.Trunk.Interface, rec.Trunk.MTU, m.TrunkBytes)
	}
	if rec.UnderlayMTU == 0 {
		return "its agent does not report the MTU of its underlay"
	}
	return fmt.Sprintf("its underlay has an MTU of %d bytes, and %d are needed for %d in a tunnel", rec.UnderlayMTU, m.UnderlayBytes, m.Bytes)
}
