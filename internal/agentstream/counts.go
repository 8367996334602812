package agentstream

import "github.com/nearmetal/nearmetal/api"

// PortCounts are the counters of a node's ports, by port ID. The first message of a stream has all ports, and later ones those that changed.
// They are apart from the observation: they change all the time, and nothing is decided by them.
type PortCounts struct {
	All     bool                        `json:"all,omitempty"`
	Changed map[string]api.PortCounters `json:"changed,omitempty"`
	// Gone are ports that are no longer there.
	Gone []string `json:"gone,omitempty"`
}

// MaxCounts is how many ports of a node are counted, at most.
const MaxCounts = 1 << 14

// CountsSince returns what changed since the counters that were sent last, nil if nothing did. Without these, all is new.
func CountsSince(sent, now map[string]api.PortCounters) *PortCounts {
	c := PortCounts{All: sent == nil, Changed: map[string]api.PortCounters{}}
	for id, counters := range now {
		if was, known := sent[id]; !known || was != counters {
			c.Changed[id] = counters
		}
	}
	for id := range sent {
		if _, there := now[id]; !there {
			c.Gone = append(c.Gone, id)
		}
	}
	if !c.All && len(c.Changed) == 0 && len(c.Gone) == 0 {
		return nil
	}
	return &c
}

// Apply returns the counters that a server knows once it has heard this.
func (c *PortCounts) Apply(known map[string]api.PortCounters) map[string]api.PortCounters {
	if c.All || known == nil {
		known = map[string]api.PortCounters{}
	}
	for id, counters := range c.Changed {
		if _, there := known[id]; there || len(known) < MaxCounts {
			known[id] = counters
		}
	}
	for _, id := range c.Gone {
		delete(known, id)
	}
	return known
}
