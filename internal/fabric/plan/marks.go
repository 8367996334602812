package plan

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Packets of ports with a DSCP have it outside of tunnels, too. The tunnel's device could copy the mark of the packet inside, but it would do so
// for all members, also those without a DSCP, which could then choose how the underlay treats their packets. So the node's own table marks what
// leaves the device, by network and inner source, which the port is pinned to. The table has these parts only if there are such ports: no other
// packet pays.

// markPattern matches a mark in a rule. nft(8) prints names for some.
var markPattern = regexp.MustCompile(`^(\s*ip dscp set )(\w+)$`)

// markNames are nft's own names of code points.
var markNames = map[string]string{"df": "0", "be": "0", "lephb": "1", "va": "44"}

// normalMark writes a mark in a line of rules as a number.
func normalMark(line string) string {
	m := markPattern.FindStringSubmatch(line)
	if m == nil {
		return line
	}
	name := m[2]
	if number, known := markNames[name]; known {
		name = number
	}
	var number int
	if _, err := fmt.Sscanf(name, "0x%x", &number); err == nil {
		return fmt.Sprintf("%s%d", m[1], number)
	}
	if dscp, err := api.ParseDSCP(name); err == nil {
		return m[1] + string(dscp)
	}
	return line
}

// marked returns the networks whose ports' marks can be written.
func marked(networks []fabric.Network, seen Observed) []fabric.Network {
	if seen.CanShape {
		return networks
	}
	return nil
}

// addMarks adds the marks of a network's ports to the map, and returns the text with what the map leads to. Networks without a tunnel have none.
func addMarks(text string, networks []fabric.Network, inet map[string][]string) string {
	var values []int
	for _, n := range networks {
		for _, p := range n.Ports {
			if len(n.Remotes) == 0 || n.OnVLAN() || p.DSCP == "" {
				continue
			}
			inet["marks"] = append(inet["marks"], fmt.Sprintf("0x%x . %s : goto mark_%s", n.Index, number(p.Address), p.DSCP))
			values = append(values, p.DSCP.Number())
		}
	}
	if len(values) == 0 {
		return text
	}
	var chains strings.Builder
	slices.Sort(values)
	for _, value := range slices.Compact(values) {
		fmt.Fprintf(&chains, "\tchain mark_%d {\n\t\tip dscp set %d\n\t}\n", value, value)
	}
	chains.WriteString(`	chain marking {
		type filter hook output priority -150; policy accept;
		udp dport 4789 @th,96,24 . @th,336,32 vmap @marks
	}
`)
	const table = `	map marks {
		typeof @th,96,24 . @th,336,32 : verdict
	}
`
	at := strings.Index(text, "\tchain ")
	return text[:at] + table + strings.TrimSuffix(text[at:], "}\n") + chains.String() + "}\n"
}
