package lifecycle

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// verify wakes a machine that has been off for long, to prove that it still boots: it is inspected, and goes off again. One that does not boot has failed, and
// is given to nobody. nil: it is not to be woken now.
func (in MachineInput) verify() []MachineOperation {
	due := in.verifyAt()
	switch {
	case due.IsZero():
		return nil
	case in.Now.Before(due):
		return []MachineOperation{WakeAt{Time: due}}
	case !in.MayVerify:
		return nil // another one is being verified, and its end is followed by another look
	}
	if _, problem := in.Environment(InspectEnvironment); problem != "" {
		return nil
	}
	r := in.Record
	ops := []MachineOperation{machineEvent(in, EventMachineVerifying, "machine %s is woken to prove that it still boots", r.Name)}
	return append(ops, in.begin(api.BootInspect, InspectEnvironment, TakeUp{Request: r.DoneRequest, Inspect: r.DoneInspect})...)
}

// verifyAt is when a machine that is off has to prove again that it boots; zero: never, as it is.
func (in MachineInput) verifyAt() time.Time {
	r := in.Record
	if in.Deadlines.Verify <= 0 || r.Phase != api.MachineOff || r.Power != api.PowerOff || r.InspectedAt == nil || r.Tenant != nil || r.Quarantine != nil ||
		in.Tenant.Holds() {
		return time.Time{}
	}
	since := *r.InspectedAt
	if r.LastVerifiedAt != nil {
		since = *r.LastVerifiedAt
	}
	return since.Add(in.Deadlines.Verify)
}
