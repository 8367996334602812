package api

import "time"

// CleanRequest is one request to clean a machine.
type CleanRequest struct {
	// Number grows with each request of a machine; 0 is none yet.
	Number int64 `json:"number"`
	// DryRun: the machine boots and reports what would be done. Nothing is erased.
	DryRun bool      `json:"dry_run,omitempty"`
	At     time.Time `json:"at,omitzero"`
	By     string    `json:"by,omitempty"`
}

// HoldAction is what an operator does to keep a machine from being given to anybody.
type HoldAction string

// The actions.
const (
	HoldQuarantine HoldAction = "quarantine"
	HoldRelease    HoldAction = "release"
)

// HoldRequest is one request to quarantine or to release a machine.
type HoldRequest struct {
	// Number grows with each request of a machine; 0 is none yet.
	Number int64      `json:"number"`
	Action HoldAction `json:"action,omitempty"`
	// Reason is why a machine is quarantined.
	Reason string    `json:"reason,omitempty"`
	At     time.Time `json:"at,omitzero"`
	By     string    `json:"by,omitempty"`
}

// MachineQuarantine keeps a machine from being given to anybody.
type MachineQuarantine struct {
	Reason string `json:"reason"`
	// By is the operator who asked for it. Empty: a cleaning failed, or the BMC could not be closed to a member; a cleaning that succeeds ends it.
	By    string    `json:"by,omitempty"`
	Since time.Time `json:"since"`
	// Firmware: its firmware is not on the site's list. An inspection or a cleaning that finds other firmware ends it.
	Firmware bool `json:"firmware,omitempty"`
}

// MachineClean is one cleaning of a machine.
type MachineClean struct {
	// Generation is that of the boot that cleaned it.
	Generation int64 `json:"generation"`
	// DryRun: the steps say what would have been done. Nothing was erased.
	DryRun bool `json:"dry_run,omitempty"`
	// WasOff: its power was read as off when the boot was decided, so its memory had lost what it held.
	WasOff    bool      `json:"was_off,omitempty"`
	StartedAt time.Time `json:"started_at"`
	// At is the time of the newest report, and of the end once there is one.
	At time.Time `json:"at,omitzero"`
	// Done: all steps have ended.
	Done bool `json:"done,omitempty"`
	// Bytes of TotalBytes have been erased or read back.
	Bytes      int64       `json:"bytes,omitempty"`
	TotalBytes int64       `json:"total_bytes,omitempty"`
	Steps      []CleanStep `json:"steps,omitempty"`
}

// CleanKind is a part of a machine that a tenant can leave something in.
type CleanKind string

// The parts.
const (
	CleanDisk       CleanKind = "disk"
	CleanController CleanKind = "controller" // a disk controller, where its disks can't be reached
	CleanFirmware   CleanKind = "firmware"   // the variables of UEFI firmware
	CleanTPM        CleanKind = "tpm"
	CleanMemory     CleanKind = "memory"
)

// CleanState is how far a step of a cleaning is.
type CleanState string

// The states.
const (
	CleanPlanned CleanState = "planned" // not begun; in a dry run it stays so
	CleanRunning CleanState = "running"
	CleanDone    CleanState = "done"    // done, and verified as Verified tells
	CleanSkipped CleanState = "skipped" // nothing to be done, as Message tells
	CleanFailed  CleanState = "failed"  // the machine may still hold what a tenant left; Message tells why
)

// CleanStep is one step of a cleaning.
type CleanStep struct {
	Kind CleanKind `json:"kind"`
	// Target is its name on the machine, such as nvme0n1.
	Target string `json:"target"`
	Model  string `json:"model,omitempty"`
	Serial string `json:"serial,omitempty"`
	// SizeBytes is the size of a disk.
	SizeBytes int64      `json:"size_bytes,omitempty"`
	State     CleanState `json:"state"`
	// Method is the method in use, or the one that succeeded. In a plan it is the first one that would be tried.
	Method string `json:"method,omitempty"`
	// Fallbacks are the methods that follow if Method fails.
	Fallbacks []string `json:"fallbacks,omitempty"`
	// Tried are the methods that were given up, each with its reason.
	Tried []string `json:"tried,omitempty"`
	// Bytes have been erased or read back, of TotalBytes.
	Bytes      int64 `json:"bytes,omitempty"`
	TotalBytes int64 `json:"total_bytes,omitempty"`
	// Seconds is how long it took.
	Seconds float64 `json:"seconds,omitempty"`
	// Verified is how it was verified.
	Verified string `json:"verified,omitempty"`
	// Message is the reason of a failure, of a step that is skipped, or what stays.
	Message string `json:"message,omitempty"`
}

// NodesCleanRequest is the body that asks for machines to be cleaned. An empty selection is refused.
type NodesCleanRequest struct {
	Nodes []string `json:"nodes"`
	// DryRun: nothing is erased; each machine boots and reports what would be done.
	DryRun bool `json:"dry_run,omitempty"`
}

// NodeHoldRequest is the body that quarantines or releases a machine.
type NodeHoldRequest struct {
	Action HoldAction `json:"action"`
	// Reason is needed for a quarantine.
	Reason string `json:"reason,omitempty"`
}
