package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
)

// ethernetFlag adds the files with the settings of the site's Ethernet switches.
func ethernetFlag(cmd *cobra.Command, files *map[string]string) {
	cmd.Flags().StringToStringVar(files, "ethernet", nil, "Ethernet switches of a cell, CELL=FILE with their settings in YAML (repeatable; see docs/guides/switches.md)")
}

// switchPortFlag adds the ports of switches that a machine is connected to. instead ends the description.
func (f *enrollFlags) switchPortFlag(cmd *cobra.Command, instead string) {
	cmd.Flags().StringArrayVar(&f.switchPorts, "switch-port", nil, "port of a managed switch that a NIC is connected to: MAC=CELL:SWITCH/PORT (repeatable; default: what the switches tell by LLDP when the machine is inspected)"+instead)
}

// parseSwitchPorts reads the values of --switch-port, MAC=CELL:SWITCH/PORT. "" stands for none.
func parseSwitchPorts(texts []string) ([]api.SwitchPort, error) {
	ports := []api.SwitchPort{} // a list in a patch, also where it is empty
	for _, text := range slices.DeleteFunc(slices.Clone(texts), func(t string) bool { return t == "" }) {
		mac, rest, connected := strings.Cut(text, "=")
		cell, port, named := strings.Cut(rest, ":")
		if !connected || !named || mac == "" || cell == "" || !strings.Contains(port, "/") {
			return nil, usage("--switch-port %q: write MAC=CELL:SWITCH/PORT, such as 52:54:00:12:34:56=lan1:leaf1/swp7", text)
		}
		ports = append(ports, api.SwitchPort{MAC: mac, Cell: cell, Port: port})
	}
	return ports, nil
}

// dataNetworkText is by which ports members with the whole node are apart from others; empty for a node that carries no such members.
func dataNetworkText(n api.Node) string {
	if !slices.Contains(offered(n), string(api.StackMetal)) {
		return ""
	}
	ports := slices.DeleteFunc(slices.Clone(n.Offer.Capacity.Ports), func(p api.NodePort) bool { return p.Technology != api.FabricEthernet })
	if len(ports) == 0 {
		return "shared: none of its ports is on a switch that the site manages, so members with the whole node share it with others"
	}
	return switchPortsText(ports)
}

// bootPortText is what else hears the port that a machine boots from while a tenant has it; empty for a node that carries no members with whole nodes.
func bootPortText(n api.Node) string {
	switch {
	case len(n.Machine.ProvisioningPorts) > 0:
		return switchPortsText(n.Machine.ProvisioningPorts)
	case !slices.Contains(offered(n), string(api.StackMetal)):
		return ""
	default:
		return "shared: it boots from no port of a switch that the site manages, so a tenant of the whole machine reaches what is there"
	}
}

func switchPortsText(ports []api.NodePort) string {
	var all []string
	for _, p := range ports {
		all = append(all, p.Fabric+":"+p.At+" ("+p.Name+")")
	}
	return strings.Join(all, ", ")
}

// sharedText warns of members with whole machines that are in no VLAN.
func sharedText(spec *api.ClusterSpec) string {
	metal := slices.ContainsFunc(spec.Groups, func(g api.Group) bool { return g.Stack == api.StackMetal })
	if !metal || spec.TechnologyOf("") == api.TechnologyVLAN {
		return ""
	}
	return "shared: no switch keeps the Ethernet ports of its whole machines apart from others"
}
