package ibsim

import (
	"fmt"
	"strings"
)

// Host is a host with one adapter of one port.
type Host struct {
	Name string
	// NodeGUID is the adapter's. Its port's GUID is one more.
	NodeGUID uint64
	// Switch and Port are where it is connected: an index of Topology.Switches, and a port of that switch, from 1.
	Switch, Port int
}

// PortGUID returns the GUID of the host's port, 16 hexadecimal digits.
func (h Host) PortGUID() string { return fmt.Sprintf("%016x", h.NodeGUID+1) }

// Switch is a switch.
type Switch struct {
	Name  string
	GUID  uint64
	Ports int
}

// Cable is between two switches: indexes of Topology.Switches, and ports of them.
type Cable struct{ From, FromPort, To, ToPort int }

// Topology is the hosts, switches and cables of a fabric.
type Topology struct {
	Switches []Switch
	Hosts    []Host
	Cables   []Cable
}

// The GUIDs that OneSwitch and FatTree give, with the company identifier 00:02:c9.
const (
	firstSwitchGUID = 0x0002c90000100000
	firstHostGUID   = 0x0002c90000200000
	guidsApart      = 0x10
)

// The ports of the switches of FatTree, and how many of a leaf's are for hosts.
const (
	switchPorts = 36
	hostsALeaf  = switchPorts / 2
	// MostHosts is the most hosts of FatTree.
	MostHosts = switchPorts * hostsALeaf
)

func hosts(n int) []Host {
	all := make([]Host, n)
	for i := range all {
		all[i] = Host{Name: fmt.Sprintf("n%d", i+1), NodeGUID: firstHostGUID + uint64(i)*guidsApart}
	}
	return all
}

func (t *Topology) add(name string, ports int) {
	guid := uint64(firstSwitchGUID + len(t.Switches)*guidsApart)
	t.Switches = append(t.Switches, Switch{Name: name, GUID: guid, Ports: ports})
}

// OneSwitch returns hosts n1, n2 and so on, at one switch, s1, on the ports of their numbers.
func OneSwitch(n int) Topology {
	t := Topology{Hosts: hosts(n)}
	t.add("s1", max(n, 8))
	for i := range t.Hosts {
		t.Hosts[i].Port = i + 1
	}
	return t
}

// FatTree returns hosts n1, n2 and so on, up to MostHosts, in a tree of two levels without contention: 18 hosts at each leaf, l1, l2 and so on,
// and one cable from each leaf to each of 18 spines, t1 to t18.
func FatTree(n int) Topology {
	n = min(n, MostHosts)
	t := Topology{Hosts: hosts(n)}
	leaves := (n + hostsALeaf - 1) / hostsALeaf
	for i := range leaves {
		t.add(fmt.Sprintf("l%d", i+1), switchPorts)
	}
	for i := range hostsALeaf {
		t.add(fmt.Sprintf("t%d", i+1), switchPorts)
	}
	for i := range t.Hosts {
		t.Hosts[i].Switch, t.Hosts[i].Port = i/hostsALeaf, i%hostsALeaf+1
	}
	for leaf := range leaves {
		for spine := range hostsALeaf {
			t.Cables = append(t.Cables, Cable{From: leaf, FromPort: hostsALeaf + spine + 1, To: leaves + spine, ToPort: leaf + 1})
		}
	}
	return t
}

// Text returns the topology as ibsim reads it.
func (t Topology) Text() string {
	lines := make([]map[int]string, len(t.Switches))
	for i := range lines {
		lines[i] = map[int]string{}
	}
	for _, h := range t.Hosts {
		lines[h.Switch][h.Port] = fmt.Sprintf("[%d]\t%q[1]", h.Port, h.Name)
	}
	for _, c := range t.Cables {
		lines[c.From][c.FromPort] = fmt.Sprintf("[%d]\t%q[%d]", c.FromPort, t.Switches[c.To].Name, c.ToPort)
		lines[c.To][c.ToPort] = fmt.Sprintf("[%d]\t%q[%d]", c.ToPort, t.Switches[c.From].Name, c.FromPort)
	}
	var text strings.Builder
	for i, s := range t.Switches {
		fmt.Fprintf(&text, "switchguid=0x%016x\nSwitch\t%d %q\n", s.GUID, s.Ports, s.Name)
		for port := 1; port <= s.Ports; port++ {
			if line := lines[i][port]; line != "" {
				text.WriteString(line + "\n")
			}
		}
		text.WriteString("\n")
	}
	for _, h := range t.Hosts {
		fmt.Fprintf(&text, "caguid=0x%016x\nHca\t1 %q\n[1]\t%q[%d]\n\n", h.NodeGUID, h.Name, t.Switches[h.Switch].Name, h.Port)
	}
	return text.String()
}

// Host returns a host by its name.
func (t Topology) Host(name string) (Host, bool) {
	for _, h := range t.Hosts {
		if h.Name == name {
			return h, true
		}
	}
	return Host{}, false
}
