package api

// HostCheck is the result of a check of a host by its node's agent.
type HostCheck struct {
	Findings []HostFinding `json:"findings"`
}

// HostFinding is one line of a check.
type HostFinding struct {
	// Area is the subject of the finding: a stack, "network" or "builder".
	Area string `json:"area"`
	Name string `json:"name"`
	// Status is "ok", "warning" or "missing".
	Status string `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Fix is the action that corrects the finding.
	Fix string `json:"fix,omitempty"`
}
