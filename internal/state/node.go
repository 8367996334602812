package state

import (
	"iter"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// Node is everything stored about a node, as of one revision, in parts of one writer each; nil: there is no such part. It is immutable and shared,
// and so are its parts: a part that did not change is the same in the next view.
type Node struct {
	Name string
	// Machine is the part that operators and the leader write, of a node that the site powers and boots.
	Machine *Machine
	// Agent is the last report of the node's agent.
	Agent *api.NodeRecord
	// Control is the operators' intent for the node; nil: there is none.
	Control *api.NodeControl
	// Identity is the key whose holder may speak for the node; nil: nobody may.
	Identity *api.NodeIdentity
	// Faults are the errors of its hardware that events have told; nil: none were.
	Faults *api.FaultRecord
	// Measures are what was measured of the GPUs that it hands out; nil: nothing was.
	Measures *api.NodeMeasures

	faultsRevision int64
}

// Drained reports whether the node is to get no new members.
func (n *Node) Drained() bool { return n.Control != nil && n.Control.Drained }

// TrustedBuilder reports whether an operator trusts the node to build environments.
func (n *Node) TrustedBuilder() bool { return n != nil && n.Control != nil && n.Control.Builder != nil }

// IdentityID returns the ID of the node's identity, or "".
func (n *Node) IdentityID() string {
	if n == nil || n.Identity == nil {
		return ""
	}
	return n.Identity.ID
}

// Labels returns the labels that node selectors see: its agent's, or those of a machine whose agent has never called.
func (n *Node) Labels() map[string]string {
	switch {
	case n.Agent != nil:
		return n.Agent.Labels
	case n.Machine != nil:
		return n.Machine.Intent.Spec.Labels
	}
	return nil
}

// Hardware returns what was inspected of a node; nil when nobody looked.
func (n *Node) Hardware() *api.Hardware {
	if n == nil || n.Machine == nil {
		return nil
	}
	return n.Machine.Hardware
}

// Node returns the node of that name, or nil: it is an agent's, a machine, or both.
func (v *View) Node(name string) *Node { return nodes.find(v, name) }

// Agent returns what the agent of the node of that name reported last, or nil.
func (v *View) Agent(name string) *api.NodeRecord {
	if n := v.Node(name); n != nil {
		return n.Agent
	}
	return nil
}

// Machine returns the machine of that name, or nil.
func (v *View) Machine(name string) *Machine {
	if n := v.Node(name); n != nil {
		return n.Machine
	}
	return nil
}

// Agents yields what agents reported last, by the names of their nodes.
func (v *View) Agents() iter.Seq[*api.NodeRecord] {
	return func(yield func(*api.NodeRecord) bool) {
		for _, n := range v.Nodes {
			if n.Agent != nil && !yield(n.Agent) {
				return
			}
		}
	}
}

// Parts returns what parts of the site's devices take, and nil when no cluster asks for devices.
func (v *View) Parts() resource.Parts {
	asks := func(c *Cluster) bool {
		return slices.ContainsFunc(c.Intent.Spec.Groups, func(g api.Group) bool { return len(g.Devices) > 0 || g.HasFunctions() })
	}
	if !slices.ContainsFunc(v.Clusters, asks) {
		return nil
	}
	return resource.PartsOf(func(yield func(*api.Device) bool) {
		for n := range v.Agents() {
			for i := range n.Capacity.Devices {
				if !yield(&n.Capacity.Devices[i]) {
					return
				}
			}
		}
	})
}

// Machines yields all machines, by name.
func (v *View) Machines() iter.Seq[*Machine] {
	return func(yield func(*Machine) bool) {
		for _, n := range v.Nodes {
			if n.Machine != nil && !yield(n.Machine) {
				return
			}
		}
	}
}

// CountMachines returns how many machines there are.
func (v *View) CountMachines() int {
	count := 0
	for range v.Machines() {
		count++
	}
	return count
}

// AnyAgent reports whether any agent has ever joined.
func (v *View) AnyAgent() bool {
	for range v.Agents() {
		return true
	}
	return false
}

// machineOf returns the machine of a node that an index found, or nil.
func machineOf(n *Node) *Machine {
	if n == nil {
		return nil
	}
	return n.Machine
}
