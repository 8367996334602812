package lifecycle

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// MachineOperation is one step the controller is to take for a machine; decision.ApplyMachine carries it out. The set is closed: the types
// below that have the method, and Emit and WakeAt, which clusters have too. MachineOperations lists them.
type MachineOperation interface{ machineOperation() }

// EnrollMachine makes the record of a machine, with this place in the provisioning range.
type EnrollMachine struct{ Index int }

// SetMachinePhase gives a machine another phase, or only another message when To is the phase it has. ChangedAt changes with the phase.
type SetMachinePhase struct {
	To      api.MachinePhase
	Message string
}

// TakeUp notes the newest requests that were taken up.
type TakeUp struct{ Request, Inspect int64 }

// BeginBoot decides a boot: a new generation, in which the machine is woken and given this image.
type BeginBoot struct {
	Purpose             api.BootPurpose
	Environment, Digest string
	// Member is the assignment that the machine is booted for, Cluster its cluster's name; empty for other purposes.
	Member, Cluster string
	Deadline        time.Time
	Attempt         int
	// Files are as in api.Boot.
	Files *api.SavedFiles
	// DryRun: a boot that cleans only says what it would do.
	DryRun bool
	// Warm is as in api.Boot.
	Warm bool
}

// BeginStop decides that a machine goes off: a new generation, in which its power may be cut.
type BeginStop struct {
	CutAt, Deadline time.Time
	ThenBoot        string
}

// PauseTenant notes that a machine goes off because its member's cluster is paused: it is booted for the same member again.
type PauseTenant struct{}

// NoteUnheard notes that a stop failed of which the machine was never told.
type NoteUnheard struct{}

// NotePower takes down the power that was observed.
type NotePower struct {
	State   api.PowerState
	Message string
	At      time.Time
}

// NoteBoot takes down what was heard of the boot that goes on.
type NoteBoot struct{ Seen BootSeen }

// NoteInspection takes down the results of an inspection; the hardware is stored with it.
type NoteInspection struct{ Health []api.HealthResult }

// Verified notes that the machine has proved that it boots.
type Verified struct{}

// CleanedAfterTenant notes that nothing is left on the machine of the member that had it.
type CleanedAfterTenant struct{}

// ForgetMachine removes intent, record and hardware.
type ForgetMachine struct{}

func (EnrollMachine) machineOperation()      {}
func (PauseTenant) machineOperation()        {}
func (SetMachinePhase) machineOperation()    {}
func (TakeUp) machineOperation()             {}
func (BeginBoot) machineOperation()          {}
func (BeginStop) machineOperation()          {}
func (NoteUnheard) machineOperation()        {}
func (NotePower) machineOperation()          {}
func (NoteBoot) machineOperation()           {}
func (NoteInspection) machineOperation()     {}
func (Verified) machineOperation()           {}
func (CleanedAfterTenant) machineOperation() {}
func (ForgetMachine) machineOperation()      {}
func (Emit) machineOperation()               {}
func (WakeAt) machineOperation()             {}

// TakeUpClean notes the newest request to clean the machine that was taken up, TakeUpHold the newest to quarantine or release it.
type (
	TakeUpClean struct{ Number int64 }
	TakeUpHold  struct{ Number int64 }
)

// NoteClean takes down what was reported of the cleaning that goes on. Proved: it succeeded, and is the machine's proof from now on.
type NoteClean struct {
	Clean  api.MachineClean
	Proved bool
}

// QuarantineMachine keeps the machine from being given to anybody. By is empty where a cleaning failed.
type QuarantineMachine struct {
	Reason, By string
	// Firmware is as in api.MachineQuarantine.
	Firmware bool
}

// ReleaseMachine ends its quarantine.
type ReleaseMachine struct{}

func (TakeUpClean) machineOperation()       {}
func (TakeUpHold) machineOperation()        {}
func (NoteClean) machineOperation()         {}
func (QuarantineMachine) machineOperation() {}
func (ReleaseMachine) machineOperation()    {}

// The reasons of events of machines.
const (
	EventMachineEnrolled  = "MachineEnrolled"
	EventMachineInspected = "MachineInspected"
	EventMachineCleaned   = "MachineCleaned"
	EventMachineHeld      = "MachineQuarantined"
	EventMachineReleased  = "MachineReleased"
	EventMachineBooting   = "MachineBooting"
	EventMachineRetry     = "MachineRetry"
	EventMachineReady     = "MachineReady"
	EventMachineVerifying = "MachineVerifying"
	EventMachineWarm      = "MachineWarm"
	EventMachineStopping  = "MachineStopping"
	EventMachineFound     = "MachineFound"
	EventMachineOff       = "MachineOff"
	EventMachineLostPower = "MachineLostPower"
	EventMachineFailed    = "MachineFailed"
	EventMachineRefused   = "MachineRefused"
	EventMachineRemoved   = "MachineRemoved"
)
