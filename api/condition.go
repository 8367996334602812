package api

// NetworkCondition is what happens to what members of a cluster send on its own network. Two members exchange packets that each meet the condition of their
// sender, so a round trip has it twice. The zero value changes nothing.
type NetworkCondition struct {
	// Delay is how much longer each packet takes, and Jitter by how much that varies either way. Packets keep their order.
	Delay  Duration `json:"delay,omitempty"`
	Jitter Duration `json:"jitter,omitempty"`
	// Loss, Duplicate, Corrupt and Reorder are the percentages of packets that are lost, come twice, have one bit turned over, and overtake those that wait
	// for Delay.
	Loss      float64 `json:"loss,omitempty"`
	Duplicate float64 `json:"duplicate,omitempty"`
	Corrupt   float64 `json:"corrupt,omitempty"`
	Reorder   float64 `json:"reorder,omitempty"`
	// Rate is what each member sends at most, and what it gets at most from outside; it is counted with IP headers. 0 is no limit.
	Rate Rate `json:"rate,omitempty"`
	// Seed chooses which packets are lost, come twice and so on: with the same seed it is the same ones of a sequence.
	Seed int64 `json:"seed,omitempty"`
}

// The bounds of a condition: it must be possible to measure it in seconds.
const (
	MaxConditionDelay = Duration(1e9)
	// MaxConditionLoss bounds the sum of Loss and Corrupt, in percent: packets with a wrong bit are mostly lost, too.
	MaxConditionLoss = 50
)

// The states of a cluster's network condition.
const (
	ConditionSetting  = "setting"
	ConditionInForce  = "in force"
	ConditionClearing = "clearing"
)

// NetworkConditionStatus is the condition of a cluster's network as its members have it.
type NetworkConditionStatus struct {
	NetworkCondition
	// State is setting, in force or clearing. In force means that each member's node has measured it.
	State string `json:"state"`
	// Waiting is how many members do not have it yet, or have one that is to go; Message is what the first of them waits for.
	Waiting int    `json:"waiting,omitempty"`
	Message string `json:"message,omitempty"`
}
