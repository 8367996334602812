package situation

import (
	"maps"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/state"
)

// Switches are the managed ports of the fabrics that are Ethernets, by cell and place. A true one is a provisioning port.
func (f Fabrics) Switches() map[string]map[string]bool {
	all := map[string]map[string]bool{}
	for cell, keeper := range f {
		if s := keeper.Switching(); s != nil {
			all[cell] = s.Places()
		}
	}
	return all
}

// InfiniBand are the cells of the fabrics that are no Ethernets, in order.
func (f Fabrics) InfiniBand() []string {
	var all []string
	for _, cell := range f.Names() {
		if f[cell].Switching() == nil {
			all = append(all, cell)
		}
	}
	return all
}

// wired are the ports of managed switches that a machine has alone: those that it boots from, or all others. One that two machines claim is nobody's,
// unless the operators gave it to one of them. A provisioning port is only theirs to take: else a machine that says what is not true would open the port of
// another one that a tenant has.
func wired(view *state.View, n *state.Node, carried offer.Site, provisioning bool) []api.NodePort {
	if n.Machine == nil || len(carried.Switches) == 0 {
		return nil
	}
	return slices.DeleteFunc(offer.Wired(&n.Machine.Intent.Spec, n.Hardware(), carried), func(p api.NodePort) bool {
		if carried.Provisions(p) != provisioning {
			return true
		}
		said := saidOf(n, p)
		return slices.ContainsFunc(view.Nodes, func(other *state.Node) bool {
			return other.Name != n.Name && (saidOf(other, p) || !said && !provisioning && claims(other, p))
		})
	})
}

// saidOf reports whether operators gave a port to a machine.
func saidOf(n *state.Node, p api.NodePort) bool {
	return n.Machine != nil && slices.ContainsFunc(n.Machine.Intent.Spec.SwitchPorts, func(s api.SwitchPort) bool { return s.Cell == p.Fabric && s.Port == p.At })
}

// claims reports whether a node has a port by any word: its operators', a switch's or its agent's. Every node is asked for each port of every other one.
func claims(n *state.Node, p api.NodePort) bool {
	if saidOf(n, p) || n.Agent != nil && slices.ContainsFunc(n.Agent.Capacity.Ports, func(o api.NodePort) bool { return o.Fabric == p.Fabric && o.At == p.At }) {
		return true
	}
	hw := n.Hardware()
	if hw == nil {
		return false
	}
	sw, port, _ := strings.Cut(p.At, "/")
	return slices.ContainsFunc(hw.NICs, func(nic api.NIC) bool {
		return nic.LLDP != nil && nic.LLDP.System == sw && nic.LLDP.Port == port &&
			!slices.ContainsFunc(switchPortsOf(n), func(s api.SwitchPort) bool { return s.MAC == nic.MAC })
	})
}

// withWired are the ports that a node's agent offers, without those of managed switches that another node claims, and those that its machine has.
func withWired(view *state.View, n *state.Node, offered []api.NodePort, carried offer.Site) []api.NodePort {
	if len(carried.Switches) == 0 {
		return offered
	}
	wired := DataPorts(view, n, carried)
	return slices.Concat(slices.DeleteFunc(slices.Clone(offered), func(p api.NodePort) bool {
		return p.Technology == api.FabricEthernet && (slices.ContainsFunc(wired, func(w api.NodePort) bool { return w.Fabric == p.Fabric && w.At == p.At }) ||
			slices.ContainsFunc(view.Nodes, func(other *state.Node) bool { return other.Name != n.Name && claims(other, p) }))
	}), wired)
}

// DataPorts are the ports of managed switches that members with the whole node have.
func DataPorts(view *state.View, n *state.Node, carried offer.Site) []api.NodePort {
	return wired(view, n, carried, false)
}

// ProvisioningPorts are the ports of managed switches from which a machine boots.
func ProvisioningPorts(view *state.View, n *state.Node, carried offer.Site) []api.NodePort {
	return wired(view, n, carried, true)
}

// Isolated are the provisioning ports of the machines that tenants have, by cell. A machine is a tenant's until that was proved clean, or its quarantine
// ends.
func Isolated(view *state.View, carried offer.Site) map[string][]site.Port {
	nodes := map[string]bool{}
	note := func(a *api.Assignment) {
		if a.Whole {
			nodes[a.Node] = true
		}
	}
	for _, c := range view.Clusters {
		for a := range c.All() {
			note(a)
		}
	}
	for _, q := range view.Quarantines {
		note(&q.Assignment)
	}
	all := map[string][]site.Port{}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		n := view.Node(name)
		if n == nil {
			continue
		}
		for _, p := range ProvisioningPorts(view, n, carried) {
			all[p.Fabric] = append(all[p.Fabric], site.Port{At: p.At, Limited: true})
		}
	}
	return all
}

// switchPortsOf are the ports that operators gave to a node's machine.
func switchPortsOf(n *state.Node) []api.SwitchPort {
	if n.Machine == nil {
		return nil
	}
	return n.Machine.Intent.Spec.SwitchPorts
}
