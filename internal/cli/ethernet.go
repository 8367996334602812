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
