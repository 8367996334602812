package api

import (
	"strconv"
)

// DeviceChoice narrows which devices serve a request. The zero value takes any.
type DeviceChoice struct {
	// Device is the ID of the device on its node, such as 0000:3b:00.0, or the GUID of its port; empty: any.
	Device string `json:"device,omitempty"`
	// NUMANode is the NUMA node that the device is attached to; nil: any.
	NUMANode *int `json:"numa_node,omitempty"`
	// Rail is as in Device; nil: any.
	Rail *int `json:"rail,omitempty"`
}

// The keys of a choice, as users write it behind an interface: vf,rail=1.
const (
	ChoicePF   = "pf"
	ChoiceNUMA = "numa"
	ChoiceRail = "rail"
)

// Pairs returns the choice as users write it behind an interface, KEY=VALUE.
func (c DeviceChoice) Pairs() []string {
	var pairs []string
	if c.Device != "" {
		pairs = append(pairs, ChoicePF+"="+c.Device)
	}
	if c.NUMANode != nil {
		pairs = append(pairs, ChoiceNUMA+"="+strconv.Itoa(*c.NUMANode))
	}
	if c.Rail != nil {
		pairs = append(pairs, ChoiceRail+"="+strconv.Itoa(*c.Rail))
	}
	return pairs
}

// Same reports whether two choices take the same devices.
func (c DeviceChoice) Same(o DeviceChoice) bool {
	same := func(a, b *int) bool { return a == b || a != nil && b != nil && *a == *b }
	return c.Device == o.Device && same(c.NUMANode, o.NUMANode) && same(c.Rail, o.Rail)
}
