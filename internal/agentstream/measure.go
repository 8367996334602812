package agentstream

import (
	"net/netip"

	"github.com/nearmetal/nearmetal/api"
)

// MaxPeers is how many other nodes one question has a node measure, at most.
const MaxPeers = 64

// Measure asks the agent of a node that hands out GPUs how busy these are, what its servers did, and how far it is to other nodes.
type Measure struct {
	// ID names the question on this stream.
	ID int64 `json:"id"`
	// Peers are underlay addresses of other nodes.
	Peers []netip.Addr `json:"peers,omitempty"`
}

// Measured is the answer to a Measure. What can't be measured is missing.
type Measured struct {
	Answer
	// Loads are the parts of the last minute or so in which GPUs calculated, by the IDs of devices.
	Loads map[string]float64 `json:"loads,omitempty"`
	// RoundTrips are the shortest of a few round trips to peers, in seconds.
	RoundTrips map[netip.Addr]float64 `json:"round_trips,omitempty"`
	// Served are what servers of GPUs did, by assignment ID.
	Served map[string]api.GPUService `json:"served,omitempty"`
}
