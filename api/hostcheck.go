package api

// HostCheck is what a node's agent finds on its host at this moment.
type HostCheck struct {
	Findings []HostFinding `json:"findings"`
}

// HostFinding is one line of a check.
type HostFinding struct {
	// Area is what it is about: a stack, or "network" or "builder".
	Area string `json:"area"`
	Name string `json:"name"`
	// Status is "ok", "warning" or "missing".
	Status string `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Fix is what to do.
	Fix string `json:"fix,omitempty"`
}
