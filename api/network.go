package api

import (
	"net/netip"
	"slices"
	"strings"
)

// Technology is how a network is carried from node to node.
type Technology string

// TechnologyVXLAN is Ethernet in UDP (RFC 7348), between the nodes that have ports of the network.
const TechnologyVXLAN Technology = "vxlan"

// Network is a tenant network; stored, immutable. It lives until the last of its ports was proved clean.
type Network struct {
	UID string `json:"uid"`
	// Name is that of the cluster whose private network it is, or CLUSTER:NETWORK for a further one of the cluster.
	Name    string `json:"name"`
	Project string `json:"project,omitempty"`
	// Cluster and ClusterUID own a private network.
	Cluster    string     `json:"cluster,omitempty"`
	ClusterUID string     `json:"cluster_uid,omitempty"`
	Technology Technology `json:"technology,omitempty"`
	// Index, 1 to 65535, is unique among the networks of a site. It is the VXLAN network identifier, and names bridge nmbrINDEX and tunnel
	// nmvxINDEX on every node.
	Index int `json:"index"`
	// Prefix is its subnet. Gateway is the subnet's first host.
	Prefix  netip.Prefix `json:"prefix"`
	Gateway netip.Addr   `json:"gateway"`
	// Egress lets members open connections to the outside (NAT).
	Egress bool `json:"egress,omitempty"`
}

// NetworkRef names a network, with its subnet, which never changes.
type NetworkRef struct {
	UID    string       `json:"uid"`
	Prefix netip.Prefix `json:"prefix"`
}

// FurtherNetworks returns the names of the further networks of groups, each once, in the order in which they are first named.
func FurtherNetworks(groups []Group) []string {
	var names []string
	for i := range groups {
		for _, name := range groups[i].Networks {
			if !slices.Contains(names, name) {
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

// OwnName returns the name of a further private network of a cluster within it, empty for the cluster's own.
func (n *Network) OwnName() string {
	_, name, _ := strings.Cut(n.Name, ":")
	return name
}

// NetworkStatus is a network as the API shows it.
type NetworkStatus struct {
	Network
	// Ports are its ports, those that are still being cleaned included.
	Ports []NetworkPort `json:"ports"`
}

// NetworkPort is a member's end of a network as the API shows it.
type NetworkPort struct {
	Member  string     `json:"member"`
	Node    string     `json:"node"`
	Kind    PortKind   `json:"kind"`
	Address netip.Addr `json:"address"`
	MAC     string     `json:"mac"`
	// Releasing: it is being cleaned. Quarantined: it was not proved clean in time.
	Releasing   bool `json:"releasing,omitempty"`
	Quarantined bool `json:"quarantined,omitempty"`
}
