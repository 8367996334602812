package resource

import (
	"iter"
	"maps"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// Devices is an amount of each counter of devices, by the name that Counter gives it. It is never changed once it is made, and may be shared.
// No amount is 0 or less; nil is nothing.
type Devices map[string]int64

// Counter is the name of a counter of the devices of a class, such as "gpu/slices".
func Counter(class, counter string) string { return class + "/" + counter }

// Plus returns the sum.
func (d Devices) Plus(o Devices) Devices {
	if len(d) == 0 {
		return o
	}
	if len(o) == 0 {
		return d
	}
	sum := maps.Clone(d)
	sum.add(o)
	return sum
}

// add adds to what nobody else has yet.
func (d Devices) add(o Devices) {
	for counter, n := range o {
		d[counter] = sumOf(d[counter], n)
	}
}

// Beyond returns how much more than o d has of each counter: nothing where o has as much.
func (d Devices) Beyond(o Devices) Devices {
	if len(d) == 0 || len(o) == 0 {
		return d
	}
	var more Devices
	for counter, n := range d {
		if n > o[counter] {
			more = more.with(counter, n-o[counter])
		}
	}
	return more
}

// Times returns n times d; nothing when n is not positive.
func (d Devices) Times(n int) Devices {
	var product Devices
	for counter, amount := range d {
		product = product.with(counter, multiply(amount, int64(n)))
	}
	return product
}

// Max returns the larger amount of each counter.
func (d Devices) Max(o Devices) Devices {
	return d.Plus(o.Beyond(d))
}

// with sets the amount of a counter of what nobody else has yet. What is not positive is not set.
func (d Devices) with(counter string, n int64) Devices {
	if n <= 0 {
		return d
	}
	if d == nil {
		d = Devices{}
	}
	d[counter] = n
	return d
}

// named returns the amounts of a class's counters by their full names.
func named(class string, amounts map[string]int64) Devices {
	var d Devices
	for counter, n := range amounts {
		d = d.with(Counter(class, counter), n)
	}
	return d
}

// OfDevices returns what all devices have when nothing of them is held.
func OfDevices(devices []api.Device) Devices {
	var sum Devices
	for i := range devices {
		sum = sum.Plus(named(devices[i].Class, devices[i].Counters))
	}
	return sum
}

// Parts is what one part of a device takes, by the class of devices and the way they are handed out: of each counter, the most that any
// device of the class takes for it. So it is known before a device is chosen, and what is chosen never takes more. nil is for requests
// that ask for no devices.
type Parts map[part]Devices

// part has a profile for slices of GPUs of one size alone.
type part struct{ class, way, profile string }

// PartsOf returns what parts of these devices take.
func PartsOf(devices iter.Seq[*api.Device]) Parts {
	all := Parts{}
	for d := range devices {
		for way, w := range d.Ways {
			takes := named(d.Class, w.Takes)
			for _, key := range slices.Compact([]part{{d.Class, way, ""}, {d.Class, way, d.Profile}}) {
				all[key] = all[key].Max(takes)
			}
		}
	}
	return all
}

// of returns what the parts take that each member of a group asks for.
func (p Parts) of(g *api.Group) Devices {
	var sum Devices
	for i := range g.Devices {
		r := g.Devices[i]
		takes := func(r api.DeviceRequest) Devices {
			return p[part{r.Class, r.Way, r.Profile}].Times(r.Count * int(r.Times()))
		}
		if r.Class == api.ClassGPU && r.Way == api.WayAny { // which way is decided later, so both must be within the quota
			sum = sum.Plus(takes(r.By(api.WholeWay(g.Stack))).Max(takes(r.By(api.WayRemote))))
			continue
		}
		sum = sum.Plus(takes(r))
	}
	return sum
}
