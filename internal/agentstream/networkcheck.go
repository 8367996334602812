package agentstream

import "github.com/nearmetal/nearmetal/internal/fabric"

// CheckNetwork asks the agent to audit one network now, and to exchange probes with the nodes that have it. They are all asked at once.
type CheckNetwork struct {
	// ID names the question on this stream.
	ID int64 `json:"id"`
	// Network is the network's index.
	Network int `json:"network"`
	// Mark is the same for all nodes that are asked for one check.
	Mark uint64 `json:"mark"`
}

// MaxReported is how many entries each list of a NetworkReport has, at most.
const MaxReported = 1024

// NetworkReport is what an agent found of one network.
type NetworkReport struct {
	// Pending is why the newest desired state of the node's networks is not in force. It is empty if it is.
	Pending string `json:"pending,omitempty"`
	// Drift is what the kernel has otherwise than was applied.
	Drift []fabric.Drift `json:"drift,omitempty"`
	// Ports counts the ports of the network, and Wrong is what is wrong with some of them, by their IDs.
	Ports int               `json:"ports,omitempty"`
	Wrong map[string]string `json:"wrong,omitempty"`
	// Meetings are what was heard of the network's peers.
	Meetings []fabric.Meeting `json:"meetings,omitempty"`
}

// NetworkChecked is the answer to a CheckNetwork.
type NetworkChecked struct {
	Answer
	NetworkReport
}
