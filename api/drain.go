package api

import "time"

// DrainCause is a kind of finding for which policy drains a node.
type DrainCause string

// The causes of drains by policy.
const (
	DrainCriticalSensor DrainCause = "critical-sensor" // a sensor of its machine's BMC is critical
	DrainECCUncorrected DrainCause = "ecc-uncorrected" // its memory had an error that could not be corrected
	DrainECCCorrected   DrainCause = "ecc-corrected"   // its memory corrected more errors since the boot than a healthy one does
	DrainDiskFailing    DrainCause = "disk-failing"    // a disk predicts its failure, or has failed in part
)

// DrainCauses are all causes, in the order of documents.
func DrainCauses() []DrainCause {
	return []DrainCause{DrainCriticalSensor, DrainECCUncorrected, DrainECCCorrected, DrainDiskFailing}
}

// DrainPolicy names, as the user who drained a node, the policy of the site.
const DrainPolicy = "policy"

// MaintenanceWindow is a time in which a node gets no members, announced before.
type MaintenanceWindow struct {
	// ID names the window on its node.
	ID     string    `json:"id"`
	From   time.Time `json:"from"`
	To     time.Time `json:"to"`
	Reason string    `json:"reason"`
	By     string    `json:"by,omitempty"`
	// Begun is set once the node was drained for it.
	Begun bool `json:"begun,omitempty"`
}

// MaintenanceRequest is the body that announces a window.
type MaintenanceRequest struct {
	From time.Time `json:"from"`
	// For is how long it lasts.
	For    Duration `json:"for"`
	Reason string   `json:"reason"`
}

// The reasons of events about nodes that are kept from members.
const (
	ReasonNodeDrained       = "NodeDrained"
	ReasonMachineDegraded   = "MachineDegraded"
	ReasonMaintenanceBegins = "MaintenanceBegins"
	ReasonMaintenanceEnds   = "MaintenanceEnds"
)
