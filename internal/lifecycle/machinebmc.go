package lifecycle

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// dutyPatience is how long a duty on a BMC may take in all, with its retries.
const dutyPatience = 5 * time.Minute

// BMCSeen is what the provisioner knows of a machine's BMC itself; fields are as in its Guarded.
type BMCSeen struct {
	Number     int64
	Done       bool
	Problem    string
	Final      bool
	Host       api.HostInterface
	HostReason string
	Baseline   *api.BMCBaseline
	Unwatched  string
	Restored   string
	Rotated    bool
	Unrotated  string
	Drift      string
	WatchedAt  time.Time
}

// BeginDuty decides a duty on the machine's BMC. Next is the sealed password to set; nil: none, or the one that is being set already.
type BeginDuty struct {
	Kind     api.BMCDutyKind
	For      string
	Deadline time.Time
	Next     []byte
}

// EndDuty takes down that the duty was done, and what it found. Replaces is the sum of the operators' password at that time (SealSum).
type EndDuty struct {
	Seen     BMCSeen
	Replaces []byte
}

// DropDuty gives the duty up.
type DropDuty struct{}

// NoteDrift takes down what a tenant has changed on the BMC.
type NoteDrift struct{ Text string }

func (BeginDuty) machineOperation() {}
func (EndDuty) machineOperation()   {}
func (DropDuty) machineOperation()  {}
func (NoteDrift) machineOperation() {}

// hasBMC reports whether the machine's power is controlled by a BMC.
func (in MachineInput) hasBMC() bool {
	kind := in.Intent.Spec.Power.Kind
	return kind == api.PowerIPMI || kind == api.PowerRedfish
}

// lock closes the BMC to a member before the machine boots for it, and reads who can get in. ops are what is to be done about that, before anything else;
// locked: it is done with them.
func (in MachineInput) lock(t *TenantSeen) (ops []MachineOperation, locked bool) {
	r := in.Record
	if !in.hasBMC() || r.BMC != nil && r.BMC.Duty == nil && r.BMC.LockedFor == t.Assignment {
		return nil, true
	}
	if r.BMC == nil || r.BMC.Duty == nil || r.BMC.Duty.Kind != api.BMCLock || r.BMC.Duty.For != t.Assignment {
		return in.beginDuty(BeginDuty{Kind: api.BMCLock, For: t.Assignment}), false
	}
	ops, done, problem := in.duty()
	if problem != "" {
		reason := "its BMC can't be closed to members: " + problem
		return append(ops, QuarantineMachine{Reason: reason}, SetMachinePhase{To: r.Phase, Message: reason},
			machineEvent(in, EventMachineHeld, "machine %s is quarantined: %s", r.Name, reason)), false
	}
	return ops, done
}

// renew sets right what a member may have changed on the BMC, and changes the site's password. ops are what is to be done about that; renewed: it is done
// with them; problem: why it failed.
func (in MachineInput) renew() (ops []MachineOperation, renewed bool, problem string) {
	r := in.Record
	if !in.hasBMC() || r.BMC == nil || r.BMC.LockedFor == "" && r.BMC.Duty == nil {
		return nil, true, "" // no member ever had it
	}
	if r.BMC.Duty == nil || r.BMC.Duty.Kind != api.BMCRenew || r.BMC.Duty.For != in.boot() {
		begin := BeginDuty{Kind: api.BMCRenew, For: in.boot()}
		if in.NewPassword != nil && len(r.BMC.Next) == 0 {
			begin.Next = in.NewPassword()
		}
		return in.beginDuty(begin), false, ""
	}
	return in.duty()
}

// boot names the boot that goes on.
func (in MachineInput) boot() string { return fmt.Sprintf("boot %d", in.Record.Boot.Generation) }

func (in MachineInput) beginDuty(begin BeginDuty) []MachineOperation {
	begin.Deadline = in.Now.Add(dutyPatience)
	return []MachineOperation{begin, WakeAt{Time: begin.Deadline}}
}

// duty looks how far the duty is that was decided.
func (in MachineInput) duty() (ops []MachineOperation, done bool, problem string) {
	duty, seen := in.Record.BMC.Duty, in.BMC
	if seen.Number != duty.Number {
		seen = BMCSeen{}
	}
	switch {
	case seen.Done:
		return append([]MachineOperation{EndDuty{Seen: seen, Replaces: SealSum(in.Intent.Sealed)}}, in.found(seen)...), true, ""
	case seen.Final:
		return []MachineOperation{DropDuty{}}, false, seen.Problem
	case !in.Now.Before(duty.Deadline):
		return []MachineOperation{DropDuty{}}, false, orElse(seen.Problem, "it was not done in "+dutyPatience.String())
	}
	return []MachineOperation{WakeAt{Time: duty.Deadline}}, false, ""
}

// found are the events of what a duty found, as far as that is news.
func (in MachineInput) found(seen BMCSeen) (ops []MachineOperation) {
	was, name := in.Record.BMC, in.Record.Name
	if seen.Host != was.Host || seen.Host == api.HostFixed && seen.HostReason != was.HostMessage {
		if seen.Host == api.HostClosed {
			ops = append(ops, machineEvent(in, EventMachineBMC, "the host interface of machine %s is closed", name))
		} else {
			watched := "its users are watched"
			if seen.Baseline == nil {
				watched = "its users can't be watched either"
			}
			ops = append(ops, machineEvent(in, EventMachineBMCOpen, "the host interface of machine %s can't be closed to members (%s); %s", name, seen.HostReason, watched))
		}
	}
	if seen.Restored != "" {
		ops = append(ops, machineEvent(in, EventMachineBMCRestored, "the BMC of machine %s was set right: %s", name, seen.Restored))
	}
	switch {
	case seen.Rotated:
		ops = append(ops, machineEvent(in, EventMachineBMC, "the BMC password of machine %s was changed", name))
	case seen.Unrotated != "" && seen.Unrotated != was.Unrotated:
		ops = append(ops, machineEvent(in, EventMachineBMCOpen, "the BMC password of machine %s can't be changed: %s", name, seen.Unrotated))
	}
	return ops
}

// watchBMC takes down what a tenant has changed on the BMC.
func (in MachineInput) watchBMC() []MachineOperation {
	r, seen := in.Record, in.BMC
	if r.BMC == nil || !WatchesBMC(r) || seen.WatchedAt.IsZero() || seen.Number != r.BMC.Duties || api.ShortMessage(seen.Drift) == r.BMC.Drift {
		return nil
	}
	if seen.Drift == "" {
		return []MachineOperation{NoteDrift{}, machineEvent(in, EventMachineBMCRestored, "the BMC of machine %s is as it was before its member", r.Name)}
	}
	return []MachineOperation{
		NoteDrift{Text: seen.Drift},
		machineEvent(in, EventMachineBMCChanged, "the BMC of machine %s was changed while a member of cluster %s has it: %s", r.Name, r.Tenant.Cluster, seen.Drift),
	}
}

// WatchesBMC reports whether a machine's BMC is looked at for what a tenant changes there.
func WatchesBMC(r *api.MachineRecord) bool {
	return r.BMC != nil && r.BMC.Baseline != nil && r.BMC.Duty == nil && r.Tenant != nil &&
		(r.Phase == api.MachineBooting || r.Phase == api.MachineReady) && r.Boot != nil && r.Boot.Purpose == api.BootMember
}

// The reasons of events of machines' BMCs.
const (
	EventMachineBMC         = "MachineBMC"
	EventMachineBMCOpen     = "MachineBMCOpen"
	EventMachineBMCChanged  = "MachineBMCChanged"
	EventMachineBMCRestored = "MachineBMCRestored"
)

// SealSum returns the sum by which a sealed password is known.
func SealSum(sealed []byte) []byte {
	sum := sha256.Sum256(sealed)
	return sum[:]
}

// BMCPassword returns the sealed password of a machine's BMC, and the one that may be right instead because it is being set; nil: there is none. record may be
// nil. A password that an operator entered after the last change counts.
func BMCPassword(intent *api.MachineIntent, record *api.MachineRecord) (sealed, next []byte) {
	sealed = intent.Sealed
	if record == nil || record.BMC == nil {
		return sealed, nil
	}
	if b := record.BMC; len(b.Sealed) > 0 && bytes.Equal(b.Replaces, SealSum(intent.Sealed)) {
		sealed = b.Sealed
	}
	return sealed, record.BMC.Next
}
