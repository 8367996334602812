package api

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Technology is how a network is carried from node to node.
type Technology string

// TechnologyVXLAN is Ethernet in UDP (RFC 7348), between the nodes that have ports of the network.
const TechnologyVXLAN Technology = "vxlan"

// TechnologyVLAN is Ethernet with a tag (IEEE 802.1Q), on the trunk interfaces of the nodes that have ports of the network.
const TechnologyVLAN Technology = "vlan"

// TechnologyInfiniBand is a partition of an InfiniBand fabric, made by the fabric's subnet manager.
const TechnologyInfiniBand Technology = "infiniband"

// The partition keys that a network can have, without the membership bit 0x8000. 0 is invalid, 0x7fff is the default partition, in which subnet
// management is done (InfiniBand Architecture Specification 1.2.1, 10.9). 0x7ff0 to 0x7ffe mark which file of partitions the subnet manager has carried out.
const (
	MinPKey = 0x0001
	MaxPKey = 0x7fef
)

// Partition is how an InfiniBand partition carries IP.
type Partition struct {
	// IPoIB makes the subnet manager create the partition's broadcast group (RFC 4391).
	IPoIB bool `json:"ipoib,omitempty"`
	// IPoIBMode is how members' interfaces carry IP; "": datagram.
	IPoIBMode IPoIBMode `json:"ipoib_mode,omitempty"`
	// MTUBytes is that of the broadcast group: 256, 512, 1024, 2048 or 4096; 0: the subnet manager's default.
	MTUBytes int `json:"mtu_bytes,omitempty"`
	// RateGbps is the least rate of a port that may join, in Gbit/s, such as 10 or 100; 0: the subnet manager's default.
	RateGbps int `json:"rate_gbps,omitempty"`
	// ServiceLevel is 0 to 15.
	ServiceLevel int `json:"service_level,omitempty"`
}

// IPoIBMode is how an interface carries IP over InfiniBand.
type IPoIBMode string

// The modes of IPoIB.
const (
	// IPoIBDatagram sends packets as datagrams (RFC 4391). The MTU is that of the broadcast group, less a header.
	IPoIBDatagram IPoIBMode = "datagram"
	// IPoIBConnected makes a connection to each neighbour (RFC 4755), with packets of up to 65,520 bytes.
	IPoIBConnected IPoIBMode = "connected"
)

// The VLAN IDs that a network can have (IEEE 802.1Q, table 9-2: 0 and 4095 are reserved).
const (
	MinVLAN = 1
	MaxVLAN = 4094
)

// NetworkIntent is the user's side of a project's network; only the API writes it. The network outlives clusters.
type NetworkIntent struct {
	// Name is NAME, or PROJECT.NAME outside the default project.
	Name    string `json:"name"`
	UID     string `json:"uid"`
	Project string `json:"project,omitempty"`
	User    string `json:"user,omitempty"`
	// Prefix is the requested subnet; not valid: any of the site's pool.
	Prefix netip.Prefix `json:"prefix,omitzero"`
	// IPv6 gives the network an IPv6 subnet as well. Prefix6 is the requested one; not valid: any of the site's.
	IPv6    bool         `json:"ipv6,omitempty"`
	Prefix6 netip.Prefix `json:"prefix6,omitzero"`
	// Egress lets members open connections to the outside (NAT).
	Egress bool `json:"egress,omitempty"`
	// Routed lets members reach those on other routed networks of the project.
	Routed bool `json:"routed,omitempty"`
	// Technology is empty for TechnologyVXLAN. VLAN is the requested VLAN ID; 0: any of the site's pool.
	Technology Technology `json:"technology,omitempty"`
	VLAN       int        `json:"vlan,omitempty"`
	// Cell is the requested cell; "": any that has the technology. PKey is the requested partition key of an InfiniBand network; 0: any of the
	// site's pool. Partition is of an InfiniBand network.
	Cell      string    `json:"cell,omitempty"`
	PKey      int       `json:"pkey,omitempty"`
	Partition Partition `json:"partition,omitzero"`
	// SharedWith are other projects whose clusters may join it as limited members, "*" for all.
	SharedWith []string `json:"shared_with,omitempty"`
	// Records are names of the project's own, by name.
	Records []NetworkRecord `json:"records,omitempty"`
	// MTU was chosen, in bytes; 0: what the underlay leaves.
	MTU               int        `json:"mtu,omitempty"`
	CreatedAt         time.Time  `json:"created_at"`
	DeleteRequestedAt *time.Time `json:"delete_requested_at,omitempty"`
}

// IsOpenTo reports whether clusters of a project may join the network.
func (n *NetworkIntent) IsOpenTo(project string) bool {
	return n.IsOwnedBy(project) || slices.ContainsFunc(n.SharedWith, func(with string) bool { return with == AnyProject || with == project })
}

// IsOwnedBy reports whether the network is the project's own.
func (n *NetworkIntent) IsOwnedBy(project string) bool {
	return cmp.Or(n.Project, DefaultProject) == cmp.Or(project, DefaultProject)
}

// AnyProject stands for all projects that a network is shared with.
const AnyProject = "*"

// Network is a tenant network; stored, immutable; only the leader writes it. It lives until the last of its ports was proved clean, a
// project's network until its deletion as well.
type Network struct {
	UID string `json:"uid"`
	// Name is that of the cluster whose private network it is, CLUSTER:NETWORK for a further one of the cluster, or project/NETWORK for one
	// of a project.
	Name    string `json:"name"`
	Project string `json:"project,omitempty"`
	// Cluster and ClusterUID own a private network; they are empty for a project's.
	Cluster    string     `json:"cluster,omitempty"`
	ClusterUID string     `json:"cluster_uid,omitempty"`
	Technology Technology `json:"technology,omitempty"`
	// Index, 1 to 65535, is unique among the networks of a site. It is the VXLAN network identifier, and names bridge nmbrINDEX and tunnel
	// nmvxINDEX on every node.
	Index int `json:"index"`
	// VLAN is the VLAN ID of a network on a VLAN, unique among those of a site; 0 for others.
	VLAN int `json:"vlan,omitempty"`
	// Cell is the cell of the fabric that carries the network; empty for the nodes' data network.
	Cell string `json:"cell,omitempty"`
	// PKey is the partition key of a network on InfiniBand, without the membership bit 0x8000, unique among those of a site; 0 for others.
	PKey int `json:"pkey,omitempty"`
	// Partition is how the partition carries IP.
	Partition Partition `json:"partition,omitzero"`
	// Prefix is its subnet. Gateway is the subnet's first host.
	Prefix  netip.Prefix `json:"prefix"`
	Gateway netip.Addr   `json:"gateway"`
	// Prefix6 is its IPv6 subnet of length 64, if it has one. Members have the same number of a host in both subnets.
	Prefix6 netip.Prefix `json:"prefix6,omitzero"`
	// Egress lets members open connections to the outside (NAT).
	Egress bool `json:"egress,omitempty"`
	// Routed lets members reach those on other routed networks of the project, through the gateway.
	Routed bool `json:"routed,omitempty"`
	// MTU was chosen: the bytes of the largest packet of a member, on every node. 0: each node carries what its underlay leaves.
	MTU int `json:"mtu,omitempty"`
	// Pool is what members of a routed network reach through the gateway: all that the site's networks are cut from. So a new network changes no
	// route in a member.
	Pool netip.Prefix `json:"pool,omitzero"`
	// Refused is why a project's network has neither index nor subnet, and never will: its prefix was taken by then.
	Refused string `json:"refused,omitempty"`
}

// NetworkRef names a network, with its subnet, which never changes.
type NetworkRef struct {
	UID string `json:"uid"`
	// Name is that of a project's network, as a group writes it. It is empty for a cluster's own.
	Name    string       `json:"name,omitempty"`
	Prefix  netip.Prefix `json:"prefix"`
	Prefix6 netip.Prefix `json:"prefix6,omitzero"`
}

// Domain ends the full names of members and clusters: MEMBER.CLUSTER.nearmetal.internal. The top-level domain is reserved for private use.
const Domain = "nearmetal.internal"

// SearchDomains returns the domains that complete short names in the members of a cluster: MEMBER first, then MEMBER.CLUSTER. The cluster's name is
// that within its project.
func SearchDomains(cluster string) []string { return []string{cluster + "." + Domain, Domain} }

// ofProject begins the names of a project's networks: project/NETWORK.
const ofProject = "project/"

// ProjectNetwork returns the name of a project's network as groups write it.
func ProjectNetwork(name string) string { return ofProject + name }

// CutProjectNetwork returns the name that a network has within its project, and whether the name is one of a project's network.
func CutProjectNetwork(name string) (string, bool) { return strings.CutPrefix(name, ofProject) }

// FurtherNetworks returns the names of the further private networks of groups, each once, in the order in which they are first named.
func FurtherNetworks(groups []Group) []string { return networkNames(groups, false) }

// JoinedNetworks returns the names of the project's networks of groups, each once, in the order in which they are first named.
func JoinedNetworks(groups []Group) []string { return networkNames(groups, true) }

func networkNames(groups []Group, joined bool) []string {
	var names []string
	for i := range groups {
		for _, n := range groups[i].Networks {
			if name := n.Name; strings.HasPrefix(name, ofProject) == joined && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// NetworkUID returns the UID of a private network of a cluster: the cluster's own, or a further one by its name.
func NetworkUID(clusterUID, name string) string {
	if name == "" {
		return clusterUID
	}
	return clusterUID + "." + name
}

// OwnNetworkName returns the name that a further private network of a cluster has within it, by its UID; empty for the cluster's own.
func OwnNetworkName(networkUID string) string {
	_, name, _ := strings.Cut(networkUID, ".")
	return name
}

// NetworkName returns the name of a private network of a cluster.
func NetworkName(cluster, name string) string {
	if name == "" {
		return cluster
	}
	return cluster + ":" + name
}

// OfProject reports whether it is a network of a project, which outlives clusters.
func (n *Network) OfProject() bool { return strings.HasPrefix(n.Name, ofProject) }

// OwnName returns the name that groups write for a network. It is empty for a cluster's own network.
func (n *Network) OwnName() string {
	if n.OfProject() {
		return n.Name
	}
	_, name, _ := strings.Cut(n.Name, ":")
	return name
}

// NetworkRequest is the body of a create: a network of a project.
type NetworkRequest struct {
	// Name is a DNS label, unique in the project. Groups write project/NAME.
	Name string `json:"name"`
	// Project owns it; it defaults to the token's.
	Project string `json:"project,omitempty"`
	// Prefix is its subnet: an IPv4 prefix of length 16 to 28 within the site's pool for networks. It defaults to a free one.
	Prefix string `json:"prefix,omitempty"`
	// IPv6 gives the network an IPv6 subnet of length 64 as well.
	IPv6 bool `json:"ipv6,omitempty"`
	// Prefix6 is its IPv6 subnet: a prefix of length 64 within fd00::/8 or within the site's IPv6 pool. It defaults to a free one of that pool. A
	// network with a prefix6 has IPv6.
	Prefix6 string `json:"prefix6,omitempty"`
	// Egress lets members open connections to the outside (NAT). Their default route is by this network.
	Egress bool `json:"egress,omitempty"`
	// Routed lets members reach those on other routed networks of the project, on whichever node.
	Routed bool `json:"routed,omitempty"`
	// Technology is vxlan, the default, vlan: on the trunk interfaces of nodes, or infiniband: a partition of an InfiniBand fabric.
	Technology Technology `json:"technology,omitempty"`
	// VLAN is its VLAN ID, of the site's pool; only networks on VLANs have one. It defaults to a free one.
	VLAN int `json:"vlan,omitempty"`
	// Cell is the cell of the fabric that carries a network on InfiniBand. It may be omitted where the site has only one.
	Cell string `json:"cell,omitempty"`
	// PKey is the partition key of a network on InfiniBand, of the site's pool, without the membership bit. It defaults to a free one.
	PKey int `json:"pkey,omitempty"`
	// Partition is how the partition of a network on InfiniBand carries IP.
	Partition Partition `json:"partition,omitzero"`
	// SharedWith are other projects whose clusters may join a network on InfiniBand, "*" for all. Their members are limited members of its partition:
	// they reach full members, which are the owner's, and not each other.
	SharedWith []string `json:"shared_with,omitempty"`
	// MTU is the bytes of the largest packet of a member, from 576. With the overhead of a tunnel it has to fit the underlay of all nodes. It
	// defaults to what the underlay leaves.
	MTU int `json:"mtu,omitempty"`
}

// NetworkPhase is how far a network is.
type NetworkPhase string

// The phases of networks. Those of clusters are ready.
const (
	NetworkPending  NetworkPhase = "pending"  // it has no index yet
	NetworkReady    NetworkPhase = "ready"    // clusters can use it
	NetworkRefused  NetworkPhase = "refused"  // its subnet was taken by then: delete it
	NetworkDeleting NetworkPhase = "deleting" // it goes with its last port
)

// NetworkStatus is a network as the API shows it.
type NetworkStatus struct {
	Network
	Phase NetworkPhase `json:"phase"`
	// SharedWith are other projects whose clusters may join it; only its own project sees them.
	SharedWith []string `json:"shared_with,omitempty"`
	// Records are names of the project's own, by name.
	Records []NetworkRecord `json:"records,omitempty"`
	// Ports are its ports, those that are still being cleaned included. Of clusters that the token may not see, there are none.
	Ports []NetworkPort `json:"ports"`
}

// NetworkPort is a member's end of a network as the API shows it.
type NetworkPort struct {
	// Cluster is the member's.
	Cluster string     `json:"cluster"`
	Member  string     `json:"member"`
	Node    string     `json:"node"`
	Kind    PortKind   `json:"kind"`
	Address netip.Addr `json:"address"`
	// Address6 is its IPv6 address, on a network with IPv6.
	Address6 netip.Addr `json:"address6,omitzero"`
	MAC      string     `json:"mac"`
	// Device is the adapter's port that it is on, Part the part of it, such as "vf3", and GUID its own on InfiniBand; empty for ports on bridges.
	Device string `json:"device,omitempty"`
	Part   string `json:"part,omitempty"`
	GUID   string `json:"guid,omitempty"`
	// Limited: on InfiniBand, it reaches full members of the partition only.
	Limited bool `json:"limited,omitempty"`
	// SecurityGroups are the names of the port's groups. A port without one is not restricted.
	SecurityGroups []string `json:"security_groups,omitempty"`
	// Quality is the port's quality of service.
	Quality
	// Releasing: it is being cleaned. Quarantined: it was not proved clean in time.
	Releasing   bool `json:"releasing,omitempty"`
	Quarantined bool `json:"quarantined,omitempty"`
	// Counters are what the node's agent last counted. They are only in the answer for a single network.
	Counters *PortCounters `json:"counters,omitempty"`
}

// PortCounters count what passed a port since it was made, as the member sees it: Sent left the member. Packets are counted as the kernel passes
// them, which may be many of the wire's in one. Dropped counts packets that the port's own links dropped, not those that rules dropped.
type PortCounters struct {
	SentBytes       int64 `json:"sent_bytes"`
	SentPackets     int64 `json:"sent_packets"`
	SentDropped     int64 `json:"sent_dropped"`
	ReceivedBytes   int64 `json:"received_bytes"`
	ReceivedPackets int64 `json:"received_packets"`
	ReceivedDropped int64 `json:"received_dropped"`
}
