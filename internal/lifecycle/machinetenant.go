package lifecycle

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
)

// TenantSeen is the member that holds a whole machine, as far as is committed.
type TenantSeen struct {
	// Assignment is the member's, Cluster the name of its cluster.
	Assignment, Cluster string
	// Environment is what it boots, Digest that of the image's manifest.
	Environment, Digest string
	// Released: the member is to be stopped, and the machine cleaned.
	Released bool
	// Paused: its cluster is paused, and the machine is to be off meanwhile.
	Paused bool
	// Files are laid into its root when it boots; nil: none are.
	Files *api.SavedFiles
}

// Holds reports whether a member that is not released holds the machine.
func (t *TenantSeen) Holds() bool { return t != nil && !t.Released }

// tenantAtRest boots a machine that is off for the member that holds it. What had the machine before must be cleaned first, and what it was booted for
// once is booted for again only after a pause: a member that is gone is replaced.
func (in MachineInput) tenantAtRest() []MachineOperation {
	switch t, r := in.Tenant, in.Record; {
	case r.Tenant != nil && (!t.Holds() || t.Assignment != r.Tenant.Assignment):
		return in.clearTenant()
	case r.Tenant != nil && r.Tenant.Paused && r.Phase == api.MachineOff && r.Quarantine == nil:
		return in.pausedAtRest(t)
	case !t.Holds() || r.Tenant != nil || r.Phase == api.MachineFailed || r.Quarantine != nil:
		return nil
	default:
		return in.beginMember(t)
	}
}

// clearTenant brings a machine whose member is gone to be nobody's: it is powered off, and cleaned. One that could not be stopped, or not be cleaned, waits
// for an operator.
func (in MachineInput) clearTenant() []MachineOperation {
	r := in.Record
	switch {
	case r.Quarantine != nil:
	case r.Phase == api.MachineFailed && r.Stop == nil:
		return in.stop(api.MachineStopping, true, "")
	case r.Phase == api.MachineOff:
		_, problem := in.Environment(CleanEnvironment)
		if problem == "" {
			return in.clean(false)
		}
		if message := "it can't be cleaned: " + problem; r.Message != api.ShortMessage(message) {
			return []MachineOperation{SetMachinePhase{To: r.Phase, Message: message}, machineEvent(in, EventMachineRefused, "machine %s: %s", r.Name, message)}
		}
	}
	return nil
}

// beginMember decides the boot of a machine for the member that gets all of it.
func (in MachineInput) beginMember(t *TenantSeen) []MachineOperation {
	r := in.Record
	ops, locked := in.lock(t)
	if !locked {
		return ops
	}
	deadline := in.Now.Add(in.Deadlines.Boot)
	return append(append(ops,
		in.bootOps(BeginBoot{Purpose: api.BootMember, Environment: t.Environment, Digest: t.Digest, Member: t.Assignment, Cluster: t.Cluster, Files: t.Files, Deadline: deadline, Attempt: 1})...),
		SetMachinePhase{To: api.MachineBooting},
		machineEvent(in, EventMachineBooting, "machine %s boots %s for cluster %s%s", r.Name, t.Environment, t.Cluster, warmText(r)),
		WakeAt{Time: deadline},
	)
}

// tenantLeaves stops a machine whose member is released, was never to have it, or is gone: nil where the machine may go on. A machine that is a node
// goes off for the member that gets it.
func (in MachineInput) tenantLeaves() []MachineOperation {
	t, r := in.Tenant, in.Record
	booted := r.Boot != nil && r.Boot.Purpose == api.BootMember
	switch {
	case booted && t.Holds() && t.Assignment == r.Boot.Member && t.Paused && r.Phase == api.MachineReady:
		return in.pauseTenant()
	case booted && t.Holds() && t.Assignment == r.Boot.Member:
		return nil
	case booted:
		return in.stop(api.MachineStopping, !in.Agent.Connected || r.Phase != api.MachineReady, "")
	case t.Holds() && r.Phase == api.MachineReady:
		return in.stop(api.MachineStopping, false, "")
	}
	return nil
}

// cleansFirst reports whether what a member has, or left, on the machine comes before its removal: who enrolls the machine again would give it to somebody
// else. A machine that can't be stopped or cleaned is removed as it is, and so is one that is removed by force.
func (in MachineInput) cleansFirst() bool {
	r := in.Record
	return r.Tenant != nil && !in.Intent.RemoveForce && r.Quarantine == nil && !(r.Phase == api.MachineFailed && r.Stop != nil)
}

// dirty says, in words, whom a machine was given to after whom it has not been cleaned; empty: to nobody.
func (in MachineInput) dirty() string {
	if in.reserved() {
		return in.reservedText()
	}
	if t := in.Record.Tenant; t != nil {
		return fmt.Sprintf("it has not been cleaned since a member of cluster %s had it", t.Cluster)
	}
	return ""
}

// MemberOnMachine is what a machine's record tells of the member that gets all of it: its phase and a message, until its own agent speaks for it. The
// second result is false from then on.
func MemberOnMachine(r *api.MachineRecord, assignment string) (Observation, bool) {
	began := r.Tenant != nil && r.Tenant.Assignment == assignment
	o := Observation{Phase: api.MemberPreparing, Since: r.ChangedAt}
	switch {
	case !began && r.Quarantine != nil:
		o.Phase, o.Message = api.MemberFailed, "its machine is "+quarantineText(r.Quarantine)
	case !began && r.Phase == api.MachineFailed: // it was a node, and could not be stopped
		o.Phase, o.Message = api.MemberFailed, "its machine failed: "+r.Message
	case !began:
		o.Message = "its machine is about to boot"
	case r.Tenant.Paused:
		return memberOnPaused(r, o), true
	case r.Phase == api.MachineBooting:
		o.Message = "its machine boots"
		if n := len(r.Boot.Stages); n > 0 {
			o.Message = fmt.Sprintf("its machine boots: %s is done", r.Boot.Stages[n-1].Stage)
		}
		if r.Message != "" {
			o.Message += "; " + r.Message
		}
	case r.Phase == api.MachineReady:
		return Observation{}, false
	case r.Phase == api.MachineFailed:
		o.Phase, o.Message = api.MemberFailed, "its machine failed: "+r.Message
	default:
		o.Phase, o.Message = api.MemberFailed, "its machine is "+string(r.Phase)
		if r.Message != "" {
			o.Message += ": " + r.Message
		}
	}
	return o, true
}
