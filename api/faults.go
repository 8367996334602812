package api

import "time"

// HardwareFaults are the errors that a running machine's memory and disks have counted, as its agent reads them.
type HardwareFaults struct {
	// Boot names the kernel's boot: counters of memory begin at zero with it.
	Boot   string         `json:"boot"`
	Memory []MemoryFaults `json:"memory,omitempty"`
	Disks  []DiskFaults   `json:"disks,omitempty"`
}

// MemoryFaults are the errors that a memory controller has counted since the boot.
type MemoryFaults struct {
	// Controller is its name (EDAC), such as mc0.
	Controller  string `json:"controller"`
	Corrected   int64  `json:"corrected"`
	Uncorrected int64  `json:"uncorrected"`
}

// DiskFaults are what a disk says of itself.
type DiskFaults struct {
	Name   string `json:"name"`
	Model  string `json:"model,omitempty"`
	Serial string `json:"serial,omitempty"`
	// Failing is why it predicts its failure or has failed in part; empty: it does not.
	Failing string `json:"failing,omitempty"`
	// MediaErrors are those that it has counted in its life; 0 also where it counts none.
	MediaErrors int64 `json:"media_errors,omitempty"`
}

// FaultRecord are the faults of a node that events have told; stored with them.
type FaultRecord struct {
	Node string `json:"node"`
	HardwareFaults
	ToldAt time.Time `json:"told_at"`
}

// ReasonHardwareFault is the reason of an event about errors of a node's memory or disks.
const ReasonHardwareFault = "HardwareFault"
