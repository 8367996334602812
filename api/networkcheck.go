package api

// NetworkCheck is the result of a check of a network by the agents of its nodes.
type NetworkCheck struct {
	Findings []NetworkFinding `json:"findings"`
}

// NetworkFinding is one thing that was checked.
type NetworkFinding struct {
	Node string `json:"node"`
	// Check is what was checked: "in force", "ports", "hears NODE" or "sends to NODE".
	Check string `json:"check"`
	// OK is false if something is wrong or could not be checked.
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
}

// NetworkTrace is the way of the first packet of a connection between two ports, from a port to an address, or from outside to a floating address;
// and the way of the answer to it.
type NetworkTrace struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Packet is the packet as rules name it, such as "tcp 22".
	Packet string `json:"packet"`
	// Passes and Answered report whether the packet arrives, and whether the answer to it does.
	Passes   bool `json:"passes"`
	Answered bool `json:"answered"`
	// Request ends with the hop that stops the packet. Reply is empty if there is no answer.
	Request []TraceHop `json:"request"`
	Reply   []TraceHop `json:"reply"`
}

// TraceHop is one place on the way of a packet.
type TraceHop struct {
	Node   string `json:"node"`
	Place  string `json:"place"`
	Passes bool   `json:"passes"`
	Detail string `json:"detail"`
}
