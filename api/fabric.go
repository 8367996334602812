package api

import "time"

// FabricTechnology is what a fabric is made of.
type FabricTechnology string

// The technologies of fabrics.
const (
	FabricEthernet   FabricTechnology = "ethernet"
	FabricInfiniBand FabricTechnology = "infiniband"
)

// EthernetCell is the cell of the nodes' data network, which carries VXLAN tunnels and VLANs. Every site has it.
const EthernetCell = "ethernet"

// Fabric is a fabric of the site as the API shows it. A node is in one cell for each fabric that its ports are connected to.
type Fabric struct {
	// Name is the cell's.
	Name       string           `json:"name"`
	Technology FabricTechnology `json:"technology"`
	// Problem is why the fabric could not be read last; empty when it could.
	Problem string `json:"problem,omitempty"`
	// ReadAt is when the topology was last read; absent while it was not.
	ReadAt *time.Time `json:"read_at,omitempty"`
	// Switches and Links count what was found at ReadAt.
	Switches int `json:"switches"`
	Links    int `json:"links"`
	// Nodes are the site's nodes in the cell, with their ports.
	Nodes []FabricNode `json:"nodes"`
	// Managers are the subnet managers of an InfiniBand fabric.
	Managers []SubnetManager `json:"managers,omitempty"`
	// Partitions are the networks that the fabric carries. Of networks that the token may not see, there are none.
	Partitions []FabricPartition `json:"partitions"`
	// Faults are links with too many errors. Placement avoids the nodes at their ends while it has others.
	Faults []FabricFault `json:"faults,omitempty"`
	// Alarms are what endangers the fabric, one a line, such as a second subnet manager of equal priority.
	Alarms []string `json:"alarms,omitempty"`
}

// FabricNode is a port of a node in a cell.
type FabricNode struct {
	Node string `json:"node"`
	// At is how the fabric knows the port: a GUID, or a switch with one of its ports. It is empty for a node's end of an Ethernet that is not known.
	At string `json:"at,omitempty"`
	// Switch is the name of the switch that the port is connected to, SwitchPort its port there; empty while the topology is not known.
	Switch     string `json:"switch,omitempty"`
	SwitchPort string `json:"switch_port,omitempty"`
	// RateBitsPerSecond is that of the link; 0: not known.
	RateBitsPerSecond int64 `json:"rate_bits_per_second,omitempty"`
	// Rail numbers the planes of switches that have no link between them, from 0.
	Rail int `json:"rail"`
}

// SubnetManager is a subnet manager of an InfiniBand fabric.
type SubnetManager struct {
	// GUID is that of its port. Node is the node on which it runs, where that is known.
	GUID     string `json:"guid"`
	Node     string `json:"node,omitempty"`
	Priority int    `json:"priority"`
	// State is master, standby, discovering or not_active (InfiniBand architecture 1.4, section 14.4.1).
	State string `json:"state"`
}

// FabricPartition is a network as the fabric carries it.
type FabricPartition struct {
	// Number is the partition key without its membership bit, or the VLAN ID, or the VXLAN network identifier.
	Number int `json:"number"`
	// Network is the name of the network, Project that of its project.
	Network string `json:"network"`
	Project string `json:"project,omitempty"`
	// Members are the full members, Limited the ports that reach only those.
	Members int `json:"members"`
	Limited int `json:"limited,omitempty"`
	// Ports are how the fabric knows its members' ports.
	Ports []string `json:"ports,omitempty"`
	// LoadBitsPerSecond is the sum of what its ports send between the last two readings. A port in several partitions counts in each.
	LoadBitsPerSecond int64 `json:"load_bits_per_second,omitempty"`
}

// FabricFault is a link with too many errors.
type FabricFault struct {
	// Message names the link and its errors for people.
	Message string `json:"message"`
	// Nodes are the site's nodes at its ends.
	Nodes []string  `json:"nodes,omitempty"`
	Since time.Time `json:"since"`
	// LastSeenAt is when errors were last counted.
	LastSeenAt time.Time `json:"last_seen_at"`
}

// FabricTopology is the switches, ports and links of a fabric. Its lists are in a stable order.
type FabricTopology struct {
	Fabric     string           `json:"fabric"`
	Technology FabricTechnology `json:"technology"`
	ReadAt     *time.Time       `json:"read_at,omitempty"`
	Switches   []FabricSwitch   `json:"switches"`
	Hosts      []FabricHost     `json:"hosts"`
	Links      []FabricLink     `json:"links"`
}

// FabricSwitch is a switch.
type FabricSwitch struct {
	// ID is the GUID of an InfiniBand switch, in 16 hexadecimal digits, or the chassis ID of an Ethernet switch (IEEE 802.1AB, section 8.5.2).
	ID string `json:"id"`
	// Name is how the switch describes itself, made unique with its ID where two have the same.
	Name string `json:"name"`
	// Ports counts the switch's ports; 0: not known.
	Ports int `json:"ports,omitempty"`
	// Level is 0 for a leaf, a switch with hosts, and else one more than that of the nearest leaf.
	Level int `json:"level"`
	// Rail numbers the planes of switches that have no link between them, from 0. Pod is the name of the lowest leaf of those that are connected
	// below the highest level.
	Rail int    `json:"rail"`
	Pod  string `json:"pod,omitempty"`
}

// FabricHost is an adapter, or a machine, with ports on the fabric.
type FabricHost struct {
	// ID is the GUID of the adapter, or the name of the node.
	ID string `json:"id"`
	// Name is how the host describes itself. Node is the site's node; empty for a host that is none.
	Name string `json:"name"`
	Node string `json:"node,omitempty"`
}

// FabricLink is a cable. From is the end with the lower ID, a host's after a switch's.
type FabricLink struct {
	From FabricEnd `json:"from"`
	To   FabricEnd `json:"to"`
	// Width and Speed are as the technology names them, such as 4x and HDR. A rate of 0 is not known.
	Width             string `json:"width,omitempty"`
	Speed             string `json:"speed,omitempty"`
	RateBitsPerSecond int64  `json:"rate_bits_per_second,omitempty"`
	// Fault says what is wrong with the link; empty for one in order.
	Fault string `json:"fault,omitempty"`
}

// FabricEnd is one end of a link.
type FabricEnd struct {
	// ID is that of the switch or host, Name its name.
	ID   string `json:"id"`
	Name string `json:"name"`
	Host bool   `json:"host,omitempty"`
	// Port is the number of the port, or its name.
	Port string `json:"port"`
	// At is how the fabric knows a host's port: a GUID. It is empty for a switch.
	At string `json:"at,omitempty"`
	// Errors are the errors counted at this end since the counters were cleared, by the names of IBTA, such as SymbolErrorCounter.
	Errors map[string]int64 `json:"errors,omitempty"`
	// SentBitsPerSecond is what this end sent between the last two readings.
	SentBitsPerSecond int64 `json:"sent_bits_per_second,omitempty"`
}

// FabricAudit is the difference between what the fabric has and what it is to have.
type FabricAudit struct {
	Fabric string `json:"fabric"`
	// ReadAt is when the fabric was read.
	ReadAt time.Time `json:"read_at"`
	// Ports counts the ports in networks that were read. Drift lists, one a line, the differences; empty when there are none.
	Ports int      `json:"ports"`
	Drift []string `json:"drift"`
	// Unknown lists, one a line, what could not be read: nothing is known of it.
	Unknown []string `json:"unknown"`
}

// NodePlace is where a node is on a fabric. It is for placement, and never stored: it follows from the fabric's topology.
type NodePlace struct {
	Cell       string
	Technology FabricTechnology
	// Switch is the leaf switch of the node's first port; empty: not known. Pod is as in FabricSwitch.
	Switch, Pod string
	// RateBitsPerSecond is that of the fastest port; 0: not known.
	RateBitsPerSecond int64
	// RDMA: members that get a port there can use RDMA.
	RDMA bool
	// Fault says why the node is avoided; empty: it is not.
	Fault string
}

// Interconnect says what fabric the nodes of a group must be connected to. The zero value asks for nothing.
type Interconnect struct {
	// Technology is ethernet or infiniband; empty: either.
	Technology FabricTechnology `json:"technology,omitempty"`
	// MinRate is the least rate of the node's link, such as 100Gbit.
	MinRate Rate `json:"min_rate,omitempty"`
	// RDMA asks for a fabric whose ports carry RDMA.
	RDMA bool `json:"rdma,omitempty"`
}

// String names it for people, such as "infiniband at 100Gbit with RDMA".
func (i Interconnect) String() string {
	text := string(i.Technology)
	if text == "" {
		text = "any fabric"
	}
	if i.MinRate > 0 {
		text += " at " + i.MinRate.String()
	}
	if i.RDMA {
		text += " with RDMA"
	}
	return text
}

// Meets reports whether a place has what is asked for.
func (p NodePlace) Meets(i Interconnect) bool {
	return (i.Technology == "" || p.Technology == i.Technology) && p.RateBitsPerSecond >= int64(i.MinRate) && (p.RDMA || !i.RDMA)
}
