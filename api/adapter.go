package api

// LinkEthernet is the link layer of an adapter whose functions can carry VLANs.
const LinkEthernet = "Ethernet"

// Adapter is a network adapter of a node that its agent was given a cell for, as the agent last saw it.
type Adapter struct {
	// ID is its PCI address, such as 0000:3b:00.0, or what the agent was given where it found none.
	ID   string `json:"id"`
	Cell string `json:"cell"`
	// NUMANode is the NUMA node that it is attached to, -1 where that is not known. Rail is as in Device.
	NUMANode int `json:"numa_node"`
	Rail     int `json:"rail"`
	// Interface and RDMA are the names of its network interface and RDMA device, absent where it has none at the moment.
	Interface string `json:"interface,omitempty"`
	RDMA      string `json:"rdma,omitempty"`
	// LinkLayer is Ethernet or InfiniBand. RoCE: it carries RDMA over UDP (RoCE version 2).
	LinkLayer string `json:"link_layer,omitempty"`
	RoCE      bool   `json:"roce,omitempty"`
	// GUID is the port's on InfiniBand, 16 hexadecimal digits.
	GUID string `json:"guid,omitempty"`
	// RateMbps is the rate of its link in Mbit/s; 0: the link is down, or the rate not known.
	RateMbps int64 `json:"rate_mbps,omitempty"`
	Up       bool  `json:"up,omitempty"`
	// VirtualFunctions is how many it has, of at most TotalVirtualFunctions.
	VirtualFunctions      int `json:"virtual_functions,omitempty"`
	TotalVirtualFunctions int `json:"total_virtual_functions,omitempty"`
	// Problems are why it, or a part of it, is not offered to members, one a line.
	Problems []string `json:"problems,omitempty"`
}
