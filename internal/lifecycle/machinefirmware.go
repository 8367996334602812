package lifecycle

import "github.com/nearmetal/nearmetal/api"

// firmware quarantines a machine that was inspected or cleaned, and whose firmware is not on the site's list; nil: it may go on. A quarantine for firmware that
// the machine no longer has ends, and what an operator has quarantined stays so.
func (in MachineInput) firmware() []MachineOperation {
	r := in.Record
	ours := r.Quarantine == nil || r.Quarantine.By == ""
	switch {
	case in.FirmwareProblem != "" && ours:
		ops := []MachineOperation{
			QuarantineMachine{Reason: api.ShortMessage(in.FirmwareProblem), Firmware: true},
			machineEvent(in, EventMachineHeld, "machine %s is quarantined: %s", r.Name, in.FirmwareProblem),
		}
		return append(ops, in.stop(api.MachineStopping, false, "")...)
	case in.FirmwareProblem == "" && r.Quarantine != nil && r.Quarantine.Firmware:
		ops := []MachineOperation{ReleaseMachine{}, machineEvent(in, EventMachineReleased, "machine %s is out of quarantine: its firmware is on the list", r.Name)}
		return append(ops, in.stop(api.MachineStopping, false, "")...)
	}
	return nil
}
