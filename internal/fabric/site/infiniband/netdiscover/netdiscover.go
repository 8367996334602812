// Package netdiscover reads what ibnetdiscover, of infiniband-diags, writes: which adapter ports a fabric has, and where they are connected.
//
// It is pure. Start with Parse.
package netdiscover

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"strconv"
)

// Port is an adapter's port.
type Port struct {
	GUID uint64
	// Node is the adapter's description, which its host chose.
	Node string
	LID  int
	// Switch is where it is connected.
	Switch SwitchPort
}

// SwitchPort is a port of a switch.
type SwitchPort struct {
	GUID uint64
	LID  int
	Port int
	// Name is the switch's description.
	Name string
}

// The lines, as ibnetdiscover 44.0 writes them:
//
//	Ca	1 "H-0002c90000200280"		# "n41"
//	[1](2c90000200281) 	"S-0002c90000100020"[5]		# lid 83 lmc 0 "l3" lid 13 4xSDR
func nodeLine() *regexp.Regexp {
	return regexp.MustCompile(`^(Ca|Rt|Switch)\t\d+ "[HSRX]-([0-9a-f]{16})"\t+# "(.*)"`)
}

func portLine() *regexp.Regexp {
	return regexp.MustCompile(`^\[\d+\]\(([0-9a-f]+)\) *\t"S-([0-9a-f]{16})"\[(\d+)\](?:\([0-9a-f]+\))?[ \t]+# lid (\d+) lmc \d+ "(.*)" lid (\d+) `)
}

// Parse returns the ports of adapters that are connected to switches, in the order in which they were discovered.
func Parse(text io.Reader) ([]Port, error) {
	nodes, ports := nodeLine(), portLine()
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, 1<<20)
	var all []Port
	adapter, node := false, ""
	for number := 1; lines.Scan(); number++ {
		line := lines.Text()
		if m := nodes.FindStringSubmatch(line); m != nil {
			adapter, node = m[1] == "Ca", m[3]
			continue
		}
		if line == "" || line[0] != '[' || !adapter {
			continue
		}
		m := ports.FindStringSubmatch(line)
		if m == nil {
			continue // connected to another adapter, or to a router
		}
		p := Port{Node: node, Switch: SwitchPort{Name: m[5]}}
		var err [5]error
		p.GUID, err[0] = strconv.ParseUint(m[1], 16, 64)
		p.Switch.GUID, err[1] = strconv.ParseUint(m[2], 16, 64)
		p.Switch.Port, err[2] = number8(m[3])
		p.LID, err[3] = number16(m[4])
		p.Switch.LID, err[4] = number16(m[6])
		for _, e := range err {
			if e != nil {
				return nil, fmt.Errorf("ibnetdiscover wrote in line %d: %q: %w", number, line, e)
			}
		}
		all = append(all, p)
	}
	return all, lines.Err()
}

func number8(text string) (int, error) { n, err := strconv.ParseUint(text, 10, 8); return int(n), err }

func number16(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	return int(n), err
}
