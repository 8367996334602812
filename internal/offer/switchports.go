package offer

import (
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// Wired are the ports of managed switches that a machine's NICs are connected to: as operators say, and else as the switches told the machine by LLDP.
// Each has the NIC's MAC as its name. Hardware is nil where nobody looked.
func Wired(spec *api.MachineSpec, hardware *api.Hardware, site Site) []api.NodePort {
	var all []api.NodePort
	add := func(mac, cell, at string) {
		_, managed := site.Switches[cell][at]
		if managed && !slices.ContainsFunc(all, func(p api.NodePort) bool { return p.Name == mac || p.Fabric == cell && p.At == at }) {
			all = append(all, api.NodePort{Name: mac, Fabric: cell, At: at, Technology: api.FabricEthernet, MAC: mac})
		}
	}
	for _, p := range spec.SwitchPorts {
		add(p.MAC, p.Cell, p.Port)
	}
	if hardware == nil {
		return all
	}
	for _, nic := range hardware.NICs {
		said := slices.ContainsFunc(spec.SwitchPorts, func(p api.SwitchPort) bool { return p.MAC == nic.MAC })
		if nic.LLDP == nil || said {
			continue
		}
		for cell := range site.Switches { // a place is in one cell: no two fabrics have switches of one name
			add(nic.MAC, cell, nic.LLDP.System+"/"+nic.LLDP.Port)
		}
	}
	return all
}

// Provisions reports whether a port is one from which a machine boots, and no network can have.
func (s Site) Provisions(p api.NodePort) bool { return s.Switches[p.Fabric][p.At] }
