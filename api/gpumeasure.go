package api

import "time"

// NodeMeasures is what was measured of a node that hands out GPUs to members of any node: what choices of such GPUs rest on, and how those turned out.
type NodeMeasures struct {
	Node string `json:"node"`
	// Loads are how busy its GPUs are, by the IDs of devices.
	Loads map[string]GPULoad `json:"loads,omitempty"`
	// RoundTrips are how far it is to other nodes, by their names.
	RoundTrips map[string]RoundTrip `json:"round_trips,omitempty"`
	// Served are what its servers did, by the assignments that they are.
	Served map[string]GPUService `json:"served,omitempty"`
}

// GPULoad is how busy a GPU was, by all who use it.
type GPULoad struct {
	// Busy is the part of the time in which it calculated, from 0 to 1, of the interval that ended at At.
	Busy float64   `json:"busy"`
	At   time.Time `json:"at"`
}

// RoundTrip is how long the shortest of a few packets took to another node and back, by their kernels.
type RoundTrip struct {
	Seconds float64   `json:"seconds"`
	At      time.Time `json:"at"`
}

// GPUService is what a server of a member's remote GPUs did since it was started, as that server says: programs of the member run in its processes, so it
// may say anything of itself.
type GPUService struct {
	// Calls counts the calls of the member's programs, Waits those for whose answers they waited.
	Calls int64 `json:"calls"`
	Waits int64 `json:"waits"`
	// BusySeconds is how long the server worked on calls that were waited for.
	BusySeconds float64 `json:"busy_seconds"`
	// WaitSeconds is the least time between an answer and the next call of the same thread: what a call waits for beyond the server's work. 0: not known.
	WaitSeconds float64 `json:"wait_seconds,omitempty"`
}

// Cost is how many times as long as the server's work the calls took that were waited for; 0: not known.
func (s GPUService) Cost() float64 {
	if s.Waits == 0 || s.BusySeconds <= 0 || s.WaitSeconds <= 0 {
		return 0
	}
	return 1 + float64(s.Waits)*s.WaitSeconds/s.BusySeconds
}
