package lifecycle

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
)

// A whole machine whose member's cluster is paused is off, and stays the member's: its disks hold what the member left on them. What the member had
// changed in its root, which was in memory, was saved before (api.MemberFiles), and is laid into the root of the boot that ends the pause.

// OffInPause reports whether the machine of a member is to be off: its cluster is pausing or paused, and the member's files were saved. A cluster whose time
// limit has passed resumes for what is frozen; its machines need not boot to be cleaned.
func OffInPause(record *api.ClusterRecord, a *api.Assignment) bool {
	if record == nil {
		return false
	}
	over := record.Phase == api.ClusterResuming && record.ExpiredAt != nil
	if record.Phase != api.ClusterPausing && record.Phase != api.ClusterPaused && !over {
		return false
	}
	f := FilesOf(record, a.Member)
	return f != nil && f.Assignment == a.ID
}

// FilesOf are the files that a member gets when it boots, by its name: if its machine was lost in a pause, another one boots with them. Nil: it gets none.
func FilesOf(record *api.ClusterRecord, member string) *api.MemberFiles {
	if record == nil {
		return nil
	}
	for i, f := range record.Files {
		if f.Member == member {
			return &record.Files[i]
		}
	}
	return nil
}

// pauseTenant powers a machine off whose member's cluster is paused.
func (in MachineInput) pauseTenant() []MachineOperation {
	return append([]MachineOperation{PauseTenant{}}, in.stop(api.MachineStopping, false, "")...)
}

// reserved reports whether a machine is off, or goes off, for a pause of the cluster of the member that it carried.
func (in MachineInput) reserved() bool {
	t := in.Record.Tenant
	return t != nil && t.Paused && in.Tenant.Holds() && in.Tenant.Assignment == t.Assignment
}

func (in MachineInput) reservedText() string {
	return fmt.Sprintf("it is reserved for cluster %s, which is paused", in.Record.Tenant.Cluster)
}

// pausedAtRest keeps a machine as its member left it until the pause ends, and boots it then. If it was on meanwhile, nobody knows what that did to its
// disks: the member goes on elsewhere.
func (in MachineInput) pausedAtRest(t *TenantSeen) []MachineOperation {
	r := in.Record
	if why := in.touched(); why != "" {
		return in.fail(why + " while its cluster is paused")
	}
	if !t.Paused {
		return in.beginMember(t)
	}
	if in.Intent.Clean.Number > r.DoneClean {
		message := "can't be cleaned: " + in.reservedText()
		return []MachineOperation{
			TakeUpClean{Number: in.Intent.Clean.Number},
			SetMachinePhase{To: r.Phase, Message: message},
			machineEvent(in, EventMachineRefused, "machine %s %s", r.Name, message),
		}
	}
	if in.Intent.RemoveRequestedAt != nil {
		message := "removal waits until the machine is free: " + in.reservedText() + "; to remove it now, use --force"
		if r.Message != api.ShortMessage(message) {
			return []MachineOperation{SetMachinePhase{To: r.Phase, Message: message}}
		}
	}
	return nil
}

// touched is how a machine that went off for a pause is known to have been on since; "": it is not.
func (in MachineInput) touched() string {
	p, off := in.Power, in.Record.ChangedAt
	switch {
	case in.Agent.Connected, p.Known && p.Observes && p.State == api.PowerOn && p.ObservedAt.After(off):
		return "was powered on"
	case in.Boot.Restarted.After(off):
		return "asked what to boot"
	}
	return ""
}

// memberOnPaused is what the record of a machine in a pause tells of its member.
func memberOnPaused(r *api.MachineRecord, o Observation) Observation {
	switch {
	case r.Quarantine != nil:
		o.Phase, o.Message = api.MemberFailed, "its machine is "+quarantineText(r.Quarantine)
	case r.Phase == api.MachineOff:
		o.Phase, o.Message = api.MemberPaused, "its machine is off"
	case r.Phase == api.MachineStopping:
		o.Phase, o.Message = api.MemberStarting, "its machine is powering off"
	default:
		o.Phase, o.Message = api.MemberFailed, "its machine is "+string(r.Phase)
		if r.Message != "" {
			o.Message += ": " + r.Message
		}
	}
	return o
}

// HeldInPause reports whether a machine carries a member through a pause, from its power-off to the end of the boot after it.
func HeldInPause(r *api.MachineRecord, assignment string) bool {
	t := r.Tenant
	return t != nil && t.Assignment == assignment && (t.Paused || r.Boot != nil && r.Boot.Member == assignment && r.Boot.Files != nil)
}
