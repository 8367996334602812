package api

import (
	"net/netip"
	"time"
)

// FloatingAddress is an address of the site's floating pool that a project holds. Only the API writes it. Nothing follows from it but where packets
// go, so the leader has no record of it.
type FloatingAddress struct {
	Address netip.Addr `json:"address"`
	Project string     `json:"project"`
	User    string     `json:"user,omitempty"`
	// Target is the member that the address leads to, nil for none. It is over when its cluster is gone.
	Target      *AddressTarget `json:"target,omitempty"`
	AllocatedAt time.Time      `json:"allocated_at"`
}

// AddressTarget is a member by its name: whatever replaces the member has the address, too.
type AddressTarget struct {
	// Cluster is the cluster's name among all, and ClusterUID tells it from a later one of that name.
	Cluster    string `json:"cluster"`
	ClusterUID string `json:"cluster_uid"`
	Member     string `json:"member"`
	// Ports are the only ports of the address that lead to the member, such as "tcp/2222=22". Empty: all packets do.
	Ports      []string  `json:"ports,omitempty"`
	AssignedAt time.Time `json:"assigned_at"`
}

// AddressRequest is the body of an allocation.
type AddressRequest struct {
	// Address is one of the floating pool; by default the lowest free one.
	Address string `json:"address,omitempty"`
	// Project holds it; it defaults to the token's.
	Project string `json:"project,omitempty"`
}

// AddressAssignment is the body of an assignment.
type AddressAssignment struct {
	// Cluster is the name of a cluster of the address's project, Member the name of one of its members.
	Cluster string `json:"cluster"`
	Member  string `json:"member"`
	// Ports are PROTOCOL/PORT=MEMBERPORT, such as "tcp/2222=22". Empty: all packets lead to the member.
	Ports []string `json:"ports,omitempty"`
}

// AddressState is where a floating address leads.
type AddressState string

// The states of floating addresses.
const (
	// AddressFree leads nowhere.
	AddressFree AddressState = "free"
	// AddressActive leads to a member on a node.
	AddressActive AddressState = "active"
	// AddressWaiting is assigned to a member that is on no node now.
	AddressWaiting AddressState = "waiting"
)

// FloatingAddressStatus is a floating address as the API shows it.
type FloatingAddressStatus struct {
	Address netip.Addr   `json:"address"`
	Project string       `json:"project"`
	User    string       `json:"user,omitempty"`
	State   AddressState `json:"state"`
	// Cluster and Member are where it leads, without the project. Ports are the only ports that do so; empty means all.
	Cluster string   `json:"cluster,omitempty"`
	Member  string   `json:"member,omitempty"`
	Ports   []string `json:"ports"`
	// Node has the member now, whose own address is MemberAddress.
	Node          string     `json:"node,omitempty"`
	MemberAddress netip.Addr `json:"member_address,omitzero"`
	AllocatedAt   time.Time  `json:"allocated_at"`
	AssignedAt    *time.Time `json:"assigned_at,omitempty"`
}
