package lifecycle

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
)

// request takes up a request about the power of a machine that is at rest.
func (in MachineInput) request(req api.PowerRequest) []MachineOperation {
	took := TakeUp{Request: req.Number, Inspect: in.Record.DoneInspect}
	if in.Tenant.Holds() && req.Action != api.PowerActionOff {
		return in.refuse(took, in.Record.Phase, fmt.Sprintf("can't be powered %s: it is a member of cluster %s", req.Action, in.Tenant.Cluster))
	}
	switch req.Action {
	case api.PowerActionOn, api.PowerActionCycle:
		if ops := in.keptBack(took); ops != nil {
			return ops
		}
		environment := req.Environment
		if environment == "" && in.Record.Boot != nil {
			environment = in.Record.Boot.Environment
		}
		return in.begin(api.BootEnvironment, environment, took)
	default:
		if in.offByHand() {
			return []MachineOperation{
				took,
				SetMachinePhase{To: api.MachineOff, Message: "reported off by the operator; its power is unreadable"},
				machineEvent(in, EventMachineOff, "machine %s is off", in.Record.Name),
			}
		}
		waits := in.Record.Phase == api.MachineWarm
		if waits || in.Record.Phase == api.MachineFailed || in.Record.Phase == api.MachineEnrolled || in.Power.State == api.PowerOn {
			return append([]MachineOperation{took}, in.stop(api.MachineStopping, req.Force || !waits && in.Record.Phase != api.MachineReady, "")...)
		}
		return []MachineOperation{took}
	}
}

// whileReady takes up a request about a machine that is on.
func (in MachineInput) whileReady(req api.PowerRequest) []MachineOperation {
	r := in.Record
	took := TakeUp{Request: req.Number, Inspect: r.DoneInspect}
	environment := orElse(req.Environment, r.Boot.Environment)
	switch {
	case req.Action == api.PowerActionOn && environment == r.Boot.Environment && !in.silent():
		return []MachineOperation{took}
	case (in.InUse != "" || in.Tenant.Holds()) && !req.Force:
		message := fmt.Sprintf("can't be powered %s: %s; use --force to do it anyway", req.Action, orElse(in.InUse, "it is a member of a cluster"))
		return []MachineOperation{took, SetMachinePhase{To: r.Phase, Message: message}, machineEvent(in, EventMachineRefused, "machine %s %s", r.Name, message)}
	case req.Action == api.PowerActionOff:
		return append([]MachineOperation{took}, in.stop(api.MachineStopping, req.Force, "")...)
	case in.dirty() != "": // its member would not be there again
		return append([]MachineOperation{took}, in.stop(api.MachineStopping, req.Force, "")...)
	case in.silent():
		return in.begin(api.BootEnvironment, environment, took) // there is nobody to ask to go off first: it is woken, and reset if that can be done
	default:
		if _, problem := in.Environment(environment); problem != "" {
			return in.begin(api.BootEnvironment, environment, took) // tells why not, and leaves it as it is
		}
		return append([]MachineOperation{took}, in.stop(api.MachineStopping, req.Force, environment)...)
	}
}

// anotherBoot takes up a request to power a machine on that comes while it boots: it boots the environment asked for last, and nobody who wants
// something else of it has to wait until it is up with the former one. What is only looked at ends that first.
func (in MachineInput) anotherBoot() []MachineOperation {
	r, req := in.Record, in.Intent.Request
	if r.Phase != api.MachineBooting || req.Number <= r.DoneRequest || req.Action != api.PowerActionOn {
		return nil
	}
	took := TakeUp{Request: req.Number, Inspect: r.DoneInspect}
	environment := orElse(req.Environment, r.Boot.Environment)
	if environment == r.Boot.Environment {
		return []MachineOperation{took}
	}
	if in.Tenant.Holds() {
		return in.refuse(took, r.Phase, fmt.Sprintf("can't boot %q: it is a member of cluster %s", environment, in.Tenant.Cluster))
	}
	return in.begin(api.BootEnvironment, environment, took)
}

// refuse takes up a request that is not carried out, and says why.
func (in MachineInput) refuse(took TakeUp, rest api.MachinePhase, message string) []MachineOperation {
	return []MachineOperation{
		took, SetMachinePhase{To: rest, Message: message}, machineEvent(in, EventMachineRefused, "machine %s: %s", in.Record.Name, message),
	}
}
