package api

import "time"

// NodesPowerRequest is the body of a power request for several nodes. Either Nodes is given or Selector; an empty selection is refused.
type NodesPowerRequest struct {
	Nodes []string `json:"nodes,omitempty"`
	// Selector selects the machines that carry all these labels. It can't be given together with force: what members run on is named.
	Selector map[string]string `json:"selector,omitempty"`
	NodePowerRequest
}

// EnrollList is a file of machines to enroll. What a machine leaves out is as said at the top.
type EnrollList struct {
	Power    PowerControl      `json:"power,omitzero"`
	Password string            `json:"password,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	// Inspect is true unless it is said otherwise.
	Inspect  bool            `json:"inspect,omitempty"`
	Machines []EnrollRequest `json:"machines"`
}

// EnrollTokenRequest is the body that makes an enrollment token.
type EnrollTokenRequest struct {
	// Prefix begins the names of what it enrolls: machines become PREFIX1, PREFIX2 and so on, nodes have names of their own.
	Prefix string `json:"prefix"`
	// Uses is the number of machines or nodes that it enrolls. The default is 1.
	Uses int `json:"uses,omitempty"`
	// Approve: the nodes it enrolls need no approval. Machines need none: whoever enrolls them gives them their identity at each boot.
	Approve bool `json:"approve,omitempty"`
	// ValidFor is the lifetime of the token. The default is a day.
	ValidFor Duration `json:"valid_for,omitempty"`
	// Power is the control of the machines' power, "manual" by default. A BMC's address may be omitted: inspection finds it.
	Power PowerControl `json:"power,omitzero"`
	// Password is the BMCs'. It is sealed at once and never shown.
	Password string `json:"password,omitempty"`
}

// ConsoleLogin is the login at a machine's console for its present boot.
type ConsoleLogin struct {
	User     string `json:"user"`
	Password string `json:"password"`
}

// BMCLogin is the login at a machine's BMC.
type BMCLogin struct {
	User     string `json:"user"`
	Password string `json:"password"`
	// Next is a password that is being set, and may be right instead; empty: there is none.
	Next string `json:"next,omitempty"`
}

// Recipe is a recipe that comes with the product.
type Recipe struct {
	Name string `json:"name"`
	// Text is the recipe, in YAML.
	Text string `json:"text"`
}

// EnvironmentCheck reports where an environment can run, as far as the nodes are known.
type EnvironmentCheck struct {
	Environment string            `json:"environment"`
	Digest      string            `json:"digest,omitempty"`
	CheckedAt   time.Time         `json:"checked_at"`
	Nodes       []EnvironmentNode `json:"nodes"`
}
