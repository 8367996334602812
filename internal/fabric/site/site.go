// Package site is the contract of executors that act on a fabric beyond its nodes: on the subnet manager of an InfiniBand fabric, or on
// the switches of an Ethernet.
//
// A node can't prove that a switch forgot a port, nor that a partition lost a member. A claim may name the fabric among the executors
// that must prove it clean. Then the site's executor is asked, and the port is clean once it was read back as absent. An executor gets
// the whole desired state each time and never decides anything. State that the executor can't read is unknown, and unknown is never
// absent. The package must never import store or apiserver. Start with Site, then Observation.Clean.
package site

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearmetal/nearmetal/api"

	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// Network is one network as it should be on the fabric.
type Network struct {
	// Number is how the fabric knows the network: a partition key, without its membership bit, or a VLAN.
	Number int
	// Partition is how an InfiniBand partition carries IP; zero on other fabrics.
	Partition api.Partition
	Ports     []Port
}

// Port is one member's end of a network, as the fabric sees it.
type Port struct {
	// At is how the fabric knows the port: a GUID, or a switch with one of its ports. A place may be in several networks.
	At string
	// Limited: the port reaches full members only, as a client of shared storage does.
	Limited bool
}

// ErrStale reports that a desired state of a later epoch was applied before.
var ErrStale = errors.New("a newer desired state was applied to the fabric")

// Site makes networks on a fabric. Its methods may be called at once by several goroutines.
//
// The newest epoch is kept with the fabric, not with the executor's process: a deposed leader's executor must be refused by what the
// next leader's has told the fabric. Where switches or subnet managers can't keep an epoch, there is one executor beside them, which
// keeps it durably.
type Site interface {
	// Apply makes exactly these networks the desired state: ports of numbers that this product hands out and that are not among them
	// are removed, whoever made them. It returns nil once the fabric has accepted it, which may be before all of it is in force: Observe
	// reports that. Applying the same again is harmless. It returns ErrStale, and changes nothing, when a later epoch was applied
	// before. What Validate refuses changes nothing either. After any other error, part of it may be in force.
	Apply(ctx context.Context, epoch lifecycle.Epoch, networks []Network) error
	// Observe reads the fabric's own tables, never what was desired. A table that can't be read is no error: it makes its places
	// unknown. An error means that nothing was read.
	Observe(ctx context.Context) (Observation, error)
}

// Checker is a Site that can say at once, and without asking anything of the fabric, whether it could carry out networks. It lets the control plane
// refuse a member before anything is planned.
type Checker interface {
	// Check returns nil for networks that Apply would accept, as far as that is known beforehand. It returns a *Refusal for those that the fabric can't
	// have. Another error means that it can't be known now.
	Check(networks []Network) error
}

// Guarded is a Site that knows whether its fabric is safe from whoever has a whole adapter, as a virtual machine with the whole port or a tenant of a
// whole machine has: they can send any packet of subnet management.
type Guarded interface {
	// Guarded reports whether the fabric's ports obey nobody without a key.
	Guarded() bool
}

// Switching is a Site on the switches of an Ethernet, which machines also boot through.
type Switching interface {
	// Places are the ports that are managed. A true one is a provisioning port, from which a machine boots: while no network has it, it is in the
	// provisioning network, and hears the other machines there. Any other port then hears nobody. The map must not be changed.
	Places() map[string]bool
	// Isolated is the number of the network in which provisioning ports, as limited members, reach the server alone.
	Isolated() int
}

// Refusal is why a fabric can't have a set of networks. It names no other tenant.
type Refusal struct {
	// Number is of a network that is not free on this fabric, such as a partition key of the operator's; 0: another number would not help.
	Number int
	Err    error
}

// Error implements error.
func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap returns the reason.
func (r *Refusal) Unwrap() error { return r.Err }

// Observation is the state that was read back.
type Observation struct {
	// Epoch is that of the newest desired state that was wholly in force before anything of this was read: nothing older takes effect
	// any more. A reading of a place holds for up to half a minute while nothing else is desired of the place than when it was read. It is zero until this executor has brought one into force; an executor that was started anew begins with that.
	Epoch lifecycle.Epoch
	// Networks are all ports that were found in networks, by number and place.
	Networks []Network
	// Unknown says why a place could not be read, by place.
	Unknown map[string]string
	// Managed are the places that the executor would see; nil: it sees all. Of others nothing is known.
	Managed map[string]bool
}

// Clean returns nil when the observation proves that the network is gone from a place, and else why it does not. The epoch is that of
// a desired state without the port: an absence that was read earlier proves nothing, as the port may have been on its way.
func (o Observation) Clean(epoch lifecycle.Epoch, network int, at string) error {
	if o.Epoch == (lifecycle.Epoch{}) || epoch.Accept(o.Epoch) != nil {
		return fmt.Errorf("the fabric has not yet carried out that network %d leaves port %s", network, at)
	}
	if why, unknown := o.Unknown[at]; unknown {
		return fmt.Errorf("port %s of network %d can't be read: %s", at, network, why)
	}
	if o.Managed != nil && !o.Managed[at] {
		return fmt.Errorf("port %s of network %d is none that the fabric's settings name; add it again, so that it can be read", at, network)
	}
	for _, n := range o.Networks {
		for _, p := range n.Ports {
			if n.Number == network && p.At == at {
				return fmt.Errorf("network %d is still on port %s", network, at)
			}
		}
	}
	return nil
}

// Validate reports what is wrong with a set of networks before anything is done about it.
func Validate(networks []Network) error {
	numbers := map[int]bool{}
	for _, n := range networks {
		if n.Number <= 0 {
			return fmt.Errorf("network number %d is not positive", n.Number)
		}
		if numbers[n.Number] {
			return fmt.Errorf("network %d appears twice", n.Number)
		}
		numbers[n.Number] = true
		places := map[string]bool{}
		for _, p := range n.Ports {
			if p.At == "" || places[p.At] {
				return fmt.Errorf("network %d: place %q is empty or appears twice", n.Number, p.At)
			}
			places[p.At] = true
		}
	}
	return nil
}
