package placement

import (
	"github.com/nearmetal/nearmetal/api"
)

// Constraint is what a placement failed on.
type Constraint string

// The constraints.
const (
	ConstraintRequest     Constraint = "request"     // the request itself makes no sense, such as a size of 0
	ConstraintAddresses   Constraint = "addresses"   // more members than one cluster network has addresses
	ConstraintNodes       Constraint = "nodes"       // the site has no node at all
	ConstraintLabels      Constraint = "labels"      // the node selector
	ConstraintStack       Constraint = "stack"       // no node, or too few, offer the stack
	ConstraintEnvironment Constraint = "environment" // no node, or too few, can run the environment
	ConstraintDown        Constraint = "unavailable" // nodes that would do are down, drained or not heard of
	ConstraintCores       Constraint = "cores"
	ConstraintMemory      Constraint = "memory"
	ConstraintQuarantine  Constraint = "quarantine" // what would do is quarantined
	ConstraintTogether    Constraint = "together"   // every group fits, but not all at once
)

// Refusal tells why a cluster can't be placed, and what would fit.
type Refusal struct {
	Cluster string `json:"cluster"`
	// Group is the group that does not fit; empty when it is the cluster as a whole.
	Group      string     `json:"group,omitempty"`
	Constraint Constraint `json:"constraint"`
	// Never is true when the site could not hold the cluster even with every node up and nothing else on it.
	Never bool `json:"never"`
	// Undecided is true when nodes that are not heard of, but not given up, would make it fit: ask again when they are
	// ready or down before refusing for good.
	Undecided bool `json:"undecided,omitempty"`
	// Need is the group as asked for. Fits of its members fit now, on FitNodes.
	Need     api.Group `json:"need"`
	Fits     int       `json:"fits"`
	FitNodes []string  `json:"fit_nodes,omitempty"`
	// Message is the whole sentence for people.
	Message string `json:"message"`
}

func (r *Refusal) Error() string { return r.Message }

func checkRequest(r Request) *Refusal { return nil }

func refuse(v *View, r Request, f *failure) *Refusal {
	g := r.Groups[f.group]
	return &Refusal{Cluster: r.Cluster, Group: g.Name, Constraint: ConstraintCores, Need: g, Fits: f.fits, Message: "cluster can't be placed"}
}
