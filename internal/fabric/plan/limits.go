package plan

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Limit is what a port is held to, by package shaper; the zero value: to nothing. Rates are in bits per second.
type Limit struct {
	// Class is the port's class among those that share the node's device, 0 if what the port sends is not limited. Min and Max are its rates.
	Class    uint16
	Min, Max int64
	// In bounds what the port receives, 0 for no limit.
	In int64
	// DSCP marks packets from the port, "" leaves them as they are.
	DSCP string
	// Broken: the kernel's state is not whole.
	Broken bool
}

// Limits is what the kernel holds ports to.
type Limits struct {
	// Parent is the rate of all classes together, 0 without any.
	Parent  int64
	Classes []uint16
	// Ports are the limits by name of link.
	Ports map[string]Limit
}

// The rates that users don't give: of a port without a minimum, and of all ports where nobody knows what the uplink carries.
const (
	leastRate = int64(api.MinRate)
	unbounded = int64(api.MaxRate)
)

// Classes are multiples of 16, from 16 on: packets have them as their priority.
const (
	classStep = 16
	classes   = fabric.MaxShapedPorts
)

// AnyShaped reports whether networks have ports with a quality of service.
func AnyShaped(networks []fabric.Network) bool {
	return slices.ContainsFunc(fabric.OnBridges(networks), func(n fabric.Network) bool { return slices.ContainsFunc(n.Ports, fabric.Port.Shaped) })
}

// ParentRate is what all classes share.
func ParentRate(seen Observed) int64 { return cmp.Or(seen.UplinkRate/8*8, unbounded) }

// LimitsOf returns what the ports of networks should be held to, by name of link. A class follows from the port's ID and hardly ever from other ports,
// so that it stays when they come and go.
func LimitsOf(networks []fabric.Network, parent int64) map[string]Limit {
	limits := map[string]Limit{}
	var sending []string
	for _, n := range fabric.OnBridges(networks) {
		for _, p := range n.Ports {
			if !p.Shaped() {
				continue
			}
			name := PortName(p.ID)
			limits[name] = limitOf(p.Quality, parent)
			if p.MinRate > 0 || p.MaxRate > 0 {
				sending = append(sending, name)
			}
		}
	}
	slices.SortFunc(sending, func(a, b string) int { return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a, b)) })
	taken := map[int]bool{}
	for _, name := range sending {
		at := place(name)
		for taken[at] {
			at = (at + 1) % classes
		}
		taken[at] = true
		limit := limits[name]
		limit.Class = uint16((at + 1) * classStep)
		limits[name] = limit
	}
	return limits
}

// place is the class that a port has unless another one has it.
func place(name string) int {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(name))
	return int(sum.Sum32() % classes)
}

// limitOf returns the limit for a quality of service, without a class.
func limitOf(q api.Quality, parent int64) Limit {
	limit := Limit{DSCP: string(q.DSCP)}
	if q.MinRate > 0 || q.MaxRate > 0 {
		limit.In = int64(q.MaxRate) / 8 * 8
		limit.Max = cmp.Or(limit.In, parent)
		limit.Min = min(cmp.Or(int64(q.MinRate)/8*8, leastRate), limit.Max)
	}
	return limit
}

// planLimits lists what holds ports to their limits. Limits that are not wanted are cleared before anything else changes, and their classes go when
// no port sends by them any more; wanted ones are set when their ports' links are as they should be.
func planLimits(networks []fabric.Network, seen Observed) (clearing, setting []Operation) {
	limits := map[string]Limit{}
	parent := ParentRate(seen)
	if seen.CanShape && AnyShaped(networks) {
		limits = LimitsOf(networks, parent)
		if seen.Limits.Parent != parent {
			setting = append(setting, SetParentRate{Rate: parent, Got: seen.Limits.Parent})
		}
	}
	used := map[uint16]bool{}
	for _, name := range sortedKeys(limits) {
		limit := limits[name]
		used[limit.Class] = true // also of a member that has just ended, and of one that is being attached
		if _, exists := seen.Links[name]; !exists {
			continue
		}
		if got := seen.Limits.Ports[name]; got != limit {
			setting = append(setting, SetLimit{Port: name, Limit: limit, Got: got})
		}
	}
	for _, name := range sortedKeys(seen.Limits.Ports) {
		if _, wanted := limits[name]; !wanted {
			clearing = append(clearing, ClearLimit{Port: name, Got: seen.Limits.Ports[name]})
		}
	}
	for _, class := range slices.Sorted(slices.Values(seen.Limits.Classes)) {
		if len(limits) > 0 && !used[class] { // without any, the device goes with them
			setting = append(setting, DeleteClass{Class: class})
		}
	}
	return clearing, setting
}

// SetParentRate sets the rate that all classes of ports share, and makes the tree of queues.
type SetParentRate struct{ Rate, Got int64 }

// SetLimit holds a port to a limit.
type SetLimit struct {
	Port       string
	Limit, Got Limit
}

// ClearLimit removes the limits of a port.
type ClearLimit struct {
	Port string
	Got  Limit
}

// DeleteClass removes the class of a port that is gone.
type DeleteClass struct{ Class uint16 }

func (o SetParentRate) String() string {
	return fmt.Sprintf("tc class replace dev %s parent 6e6d: classid 6e6d:1 htb rate %v", ShaperName, api.Rate(o.Rate))
}

func (o SetLimit) String() string { return fmt.Sprintf("tc replace dev %s # %s", o.Port, o.Limit) }

func (o ClearLimit) String() string { return fmt.Sprintf("tc delete dev %s # %s", o.Port, o.Got) }

func (o DeleteClass) String() string {
	return fmt.Sprintf("tc class delete dev %s classid 6e6d:%x", ShaperName, o.Class)
}

// String writes a limit for logs.
func (l Limit) String() string {
	if l == (Limit{}) {
		return "no limit"
	}
	text := ""
	if l.Class != 0 {
		text = fmt.Sprintf("class 6e6d:%x rate %v ceil %v, ", l.Class, api.Rate(l.Min), api.Rate(l.Max))
	}
	if l.In != 0 {
		text += fmt.Sprintf("to the port %v, ", api.Rate(l.In))
	}
	if l.DSCP != "" {
		text += "DSCP " + l.DSCP + ", "
	}
	if l.Broken {
		return text + "broken"
	}
	return text + "whole"
}

// Drift implements Operation.
func (o SetParentRate) Drift() fabric.Drift {
	return fabric.Drift{Object: "rate of " + ShaperName, Want: api.Rate(o.Rate).String(), Got: api.Rate(o.Got).String()}
}

// Drift implements Operation.
func (o SetLimit) Drift() fabric.Drift {
	return fabric.Drift{Object: "limit of " + o.Port, Want: o.Limit.String(), Got: o.Got.String()}
}

// Drift implements Operation.
func (o ClearLimit) Drift() fabric.Drift {
	return fabric.Drift{Object: "limit of " + o.Port, Want: Limit{}.String(), Got: o.Got.String()}
}

// Drift implements Operation.
func (o DeleteClass) Drift() fabric.Drift {
	return fabric.Drift{Object: fmt.Sprintf("class 6e6d:%x of %s", o.Class, ShaperName), Want: "absent", Got: "present"}
}
