package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
)

// infiniBandFlag adds the files with the settings of the site's InfiniBand fabrics.
func infiniBandFlag(cmd *cobra.Command, files *map[string]string) {
	cmd.Flags().StringToStringVar(files, "infiniband", nil, "InfiniBand fabric of a cell, CELL=FILE with its settings in YAML (repeatable; see docs/guides/infiniband.md)")
}

// fabricPortFlag adds the ports that members with the whole machine have. Adapters with functions are named by --fabric.
func fabricPortFlag(cmd *cobra.Command, ports *[]string) {
	cmd.Flags().StringArrayVar(ports, "fabric-port", nil, "port of this machine on a fabric, for members that get the whole machine: NAME=CELL/PLACE; on InfiniBand, PLACE is the port GUID, 16 hexadecimal digits (repeatable; --fabric is for adapters whose functions or ports are given to members one by one)")
}

// parseFabricPorts reads the values of --fabric-port, NAME=CELL/PLACE.
func parseFabricPorts(texts []string) ([]api.NodePort, error) {
	var ports []api.NodePort
	for _, text := range texts {
		name, rest, named := strings.Cut(text, "=")
		cell, at, placed := strings.Cut(rest, "/")
		if !named || !placed || name == "" || cell == "" || at == "" {
			return nil, usage("--fabric-port %q: write NAME=CELL/PLACE, such as ib0=rack1/0002c903000e0b73", text)
		}
		ports = append(ports, api.NodePort{Name: name, Fabric: cell, At: at})
	}
	return ports, nil
}
