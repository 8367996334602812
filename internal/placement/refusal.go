package placement

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
)

// Constraint is the reason that a placement failed.
type Constraint string

// The constraints.
const (
	ConstraintRequest     Constraint = "request"      // the request itself makes no sense, such as a size of 0
	ConstraintAddresses   Constraint = "addresses"    // more members than one cluster network has addresses
	ConstraintNodes       Constraint = "nodes"        // the site has no node at all
	ConstraintLabels      Constraint = "labels"       // the node selector
	ConstraintStack       Constraint = "stack"        // no node, or too few, offer the stack
	ConstraintCPUModel    Constraint = "cpu_model"    // no node, or too few, can carry the CPU model
	ConstraintEnvironment Constraint = "environment"  // no node, or too few, can run the environment
	ConstraintMTU         Constraint = "mtu"          // no node, or too few, have an underlay with room for the MTU of a network
	ConstraintFabric      Constraint = "interconnect" // no node, or too few, have a port in a cell as requested
	ConstraintLocalDisks  Constraint = "local_disks"  // no machine, or too few, have the disks that are asked for
	ConstraintGPUPrograms Constraint = "gpu_programs" // no node, or too few, have the programs by which members use remote GPUs
	ConstraintVolume      Constraint = "volume"       // its volumes lie on another node, on several, or nowhere yet
	ConstraintDown        Constraint = "unavailable"  // nodes that would do are down, drained or not heard of
	ConstraintCores       Constraint = "cores"
	ConstraintMemory      Constraint = "memory"
	ConstraintDisk        Constraint = "disk"       // too little room for private disks
	ConstraintHugePages   Constraint = "huge_pages" // too few huge pages
	ConstraintUplink      Constraint = "uplink"     // too little of the uplink for the minimum rates of ports
	ConstraintQuarantine  Constraint = "quarantine" // what would do is quarantined
	ConstraintDevices     Constraint = "devices"    // too few devices are free
	ConstraintTogether    Constraint = "together"   // every group fits, but not all at once
)

// Refusal says why a cluster can't be placed, and what would fit.
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
	// Largest is the largest shape of which all members of the group would fit: now, or when Never, on the empty site. It
	// is smaller in cores or in memory only, whichever binds; nil when there is none.
	Largest *api.Shape `json:"largest,omitempty"`
	// Unavailable are nodes that would do but for this: they are unknown, down or drained.
	Unavailable map[Availability][]string `json:"unavailable,omitempty"`
	// Message is the whole sentence for people.
	Message string `json:"message"`
}

func (r *Refusal) Error() string { return r.Message }

// Check refuses what no site could hold, and nothing else.
func Check(r Request) *Refusal {
	total := 0
	for i := range r.Groups {
		g := &r.Groups[i]
		if g.Size < 1 || g.Cores < 1 || g.Memory < 0 {
			return &Refusal{
				Cluster: r.Cluster, Constraint: ConstraintRequest, Never: true, Group: g.Name, Need: *g,
				Message: fmt.Sprintf("cluster %q can't be placed: group %q needs a size of at least 1, at least 1 core per member, and memory of 0 (no limit) or more",
					r.Cluster, g.Name),
			}
		}
		// Sizes are bounded one by one, so that their sum can't overflow.
		total += min(g.Size, MaxMembers+1)
	}
	switch {
	case len(r.Groups) == 0:
		return &Refusal{
			Cluster: r.Cluster, Constraint: ConstraintRequest, Never: true,
			Message: fmt.Sprintf("cluster %q can't be placed: it has no groups", r.Cluster),
		}
	case total > MaxMembers:
		return &Refusal{
			Cluster: r.Cluster, Constraint: ConstraintAddresses, Never: true,
			Message: fmt.Sprintf("cluster %q can't be placed: it has more members than the %d addresses of a cluster network; split it", r.Cluster, MaxMembers),
		}
	default:
		return nil
	}
}
