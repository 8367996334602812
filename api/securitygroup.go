package api

import "time"

// SecurityGroup says which packets ports may receive and send. It belongs to a project, and only the API writes it. A group hands out no
// numbers, so the leader decides nothing about it.
type SecurityGroup struct {
	// Name is NAME, or PROJECT.NAME outside the default project.
	Name    string `json:"name"`
	UID     string `json:"uid"`
	Project string `json:"project"`
	User    string `json:"user,omitempty"`
	// Rules are in words, such as "in tcp 22 from 10.0.0.0/8". They name other groups of the project by NAME.
	Rules     []string  `json:"rules"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// SecurityGroupRequest is the body of a create.
type SecurityGroupRequest struct {
	// Name is a DNS label, unique among the security groups of the project.
	Name string `json:"name"`
	// Project owns it; it defaults to the token's.
	Project string `json:"project,omitempty"`
	// Rules only allow. Without rules for "in", ports of the group receive replies alone. Without rules for "out", they send everything.
	Rules []string `json:"rules,omitempty"`
}

// SecurityGroupRules is the body of a change of rules. Either Rules replaces them all, or Remove and Add change some.
type SecurityGroupRules struct {
	Rules  *[]string `json:"rules,omitempty"`
	Add    []string  `json:"add,omitempty"`
	Remove []string  `json:"remove,omitempty"`
}

// SecurityGroupStatus is a security group as the API shows it.
type SecurityGroupStatus struct {
	// Name is NAME, without the project.
	Name    string   `json:"name"`
	UID     string   `json:"uid"`
	Project string   `json:"project"`
	User    string   `json:"user,omitempty"`
	Rules   []string `json:"rules"`
	// NamedBy are the other groups of the project with rules that name this one.
	NamedBy []string `json:"named_by"`
	// Clusters are those that name the group. Ports are those that have it, also those that are still being cleaned. Clusters that the token may
	// not see are not among them.
	Clusters  []string            `json:"clusters"`
	Ports     []SecurityGroupPort `json:"ports"`
	CreatedAt time.Time           `json:"created_at"`
	UpdatedAt time.Time           `json:"updated_at"`
}

// SecurityGroupPort is a port with a security group.
type SecurityGroupPort struct {
	// Network is the name of the port's network.
	Network string `json:"network"`
	NetworkPort
}
