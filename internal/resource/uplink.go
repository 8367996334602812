package resource

import "github.com/nearmetal/nearmetal/api"

// Unmeasured is the uplink of a node whose rate nobody knows: more than all ports of a node can be promised. Sums of a few stay below the largest
// number.
const Unmeasured = 1 << 60

// minimumRates returns what the ports of one member of a group are promised together. No agent holds the ports of a whole node to rates.
func minimumRates(g *api.Group) int64 {
	sum := int64(0)
	if g.Stack == api.StackMetal {
		return sum
	}
	for i := range g.Networks {
		if g.Networks[i].Interface.OnFunction() {
			continue // the adapter keeps its promise
		}
		sum = sumOf(sum, least(int64(g.Networks[i].MinRate)))
	}
	return sum
}

// heldRates returns what the ports of an assignment are promised. A saved member keeps its ports and sends nothing.
func heldRates(a *api.Assignment) int64 {
	sum := int64(0)
	if a.Whole || a.Saved {
		return sum
	}
	for i := range a.Ports {
		if a.Ports[i].OnFunction(a.Whole) {
			continue
		}
		sum = sumOf(sum, least(int64(a.Ports[i].MinRate)))
	}
	return sum
}

// offeredRate returns what a node can promise to ports.
func offeredRate(c *api.NodeCapacity) int64 {
	if c.UplinkBitsPerSecond <= 0 {
		return Unmeasured
	}
	return min(c.UplinkBitsPerSecond, Unmeasured)
}
