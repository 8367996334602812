package sim

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// classes are the kinds of devices that nodes which are always on may have, and users ask for. Shares of one and the whole of it exclude each
// other by its mode, functions of two sizes by its counters.
var classes = []api.Device{
	{
		Class: "gpu", Counters: map[string]int64{"slices": 4},
		Ways: map[string]api.DeviceWay{
			"whole": {Mode: "whole", Takes: map[string]int64{"slices": 4}},
			"share": {Mode: "shared", Takes: map[string]int64{"slices": 1}},
		},
	},
	{
		Class: "nic", Counters: map[string]int64{"vf": 3, "queues": 8},
		Ways: map[string]api.DeviceWay{
			"vf":   {Mode: "sriov", Takes: map[string]int64{"vf": 1, "queues": 2}},
			"fast": {Mode: "sriov", Takes: map[string]int64{"vf": 1, "queues": 4}},
		},
	},
}

// drawDevices draws what devices a node has.
func (w *world) drawDevices() []api.Device {
	var devices []api.Device
	for _, class := range classes {
		for i := range max(0, w.deviceRandom.IntN(4)-1) {
			d := class
			d.ID, d.NUMANode, d.Rail = fmt.Sprintf("%s%d", class.Class, i), i%2, i
			devices = append(devices, d)
		}
	}
	if !w.cfg.Kinds.Has(Devices) {
		return nil
	}
	return devices
}

// drawDeviceRequests draws what devices each member of a group asks for: most ask for none.
func (w *world) drawDeviceRequests() []api.DeviceRequest {
	r := w.deviceRandom
	asks, class := r.IntN(4) == 0, classes[r.IntN(len(classes))]
	ways := slices.Sorted(maps.Keys(class.Ways))
	request := api.DeviceRequest{Class: class.Class, Way: ways[r.IntN(len(ways))], Count: 1 + r.IntN(2), Remote: r.IntN(3) > 0}
	if !asks || !w.cfg.Kinds.Has(Devices) {
		return nil
	}
	return []api.DeviceRequest{request}
}

// asksOwnNode reports whether members of a group ask for devices of their own nodes.
func asksOwnNode(g api.Group) bool {
	return slices.ContainsFunc(g.Devices, func(r api.DeviceRequest) bool { return !r.Remote })
}

// addTakes adds what so many parts take of devices of a class that are handed out in a way.
func addTakes(sum map[string]int64, class, way string, parts int64) {
	for _, d := range append(slices.Clone(classes), hca(0)) {
		if d.Class == class {
			for counter, amount := range d.Ways[way].Takes {
				sum[class+"/"+counter] += parts * amount
			}
		}
	}
}

// deviceUse adds up what is held of the site's devices.
type deviceUse struct {
	// parts are those that have names.
	parts map[devicePart]string
	taken map[deviceCounter]int64
	modes map[deviceOf]string
}

type devicePart struct {
	deviceOf
	part string
}

type deviceOf struct{ node, device string }

type deviceCounter struct {
	deviceOf
	counter string
}

func newDeviceUse() *deviceUse {
	return &deviceUse{parts: map[devicePart]string{}, taken: map[deviceCounter]int64{}, modes: map[deviceOf]string{}}
}

// take adds what an assignment holds, and checks that the device has it.
func (u *deviceUse) take(w *world, a *api.Assignment) {
	for _, c := range a.Devices {
		at := deviceOf{a.Node, c.Device}
		d, way := w.device(at, c)
		if d == nil {
			w.fail("devices", "%s holds %+v of node %s, which has no such device", a.ID, c, a.Node)
			return
		}
		if mode, held := u.modes[at]; held && mode != way.Mode {
			w.fail("double allocation", "device %s of %s is handed out in mode %q and, to %s, in mode %q", c.Device, a.Node, mode, a.ID, way.Mode)
		}
		if !maps.Equal(c.Takes, way.Takes) {
			w.fail("devices", "%s holds %+v, which takes %v of its device", a.ID, c, way.Takes)
		}
		if part := (devicePart{at, c.Part}); c.Part != "" {
			if other, taken := u.parts[part]; taken {
				w.fail("double allocation", "%s of device %s of %s is allocated twice: to %s and %s", c.Part, c.Device, a.Node, other, a.ID)
			}
			u.parts[part] = a.ID
		}
		u.modes[at] = way.Mode
		for counter, amount := range way.Takes {
			key := deviceCounter{at, counter}
			if u.taken[key] += amount; u.taken[key] > d.Counters[counter] {
				w.fail("double allocation", "%d of counter %q of device %s of %s are allocated, last to %s; it has %d", u.taken[key], counter,
					c.Device, a.Node, a.ID, d.Counters[counter])
			}
		}
	}
}

// device is the device of a claim, and how it is handed out; nil if there is none.
func (w *world) device(at deviceOf, c api.DeviceClaim) (*api.Device, api.DeviceWay) {
	n := w.node(at.node)
	if n == nil {
		return nil, api.DeviceWay{}
	}
	for i := range n.record.Capacity.Devices {
		if d := &n.record.Capacity.Devices[i]; d.ID == at.device && d.Class == c.Class {
			if way, ok := d.Ways[c.Way]; ok {
				return d, way
			}
		}
	}
	return nil, api.DeviceWay{}
}

// claimed counts the parts of devices that a member has, and those of its own node among them.
type claimed struct{ all, own int }

// claimKey is how a member asked for a device.
type claimKey struct{ class, way string }

// checkDevices checks that parts come and go with their members, and that each member has just the devices that it was asked for with.
func (m *mirror) checkDevices() {
	for _, name := range m.names() {
		e := m.clusters[name]
		if e.record == nil || e.intent == nil {
			continue
		}
		all := m.assignments(e.record)
		members, claims := map[string]*api.Assignment{}, map[string]map[claimKey]claimed{}
		for _, a := range all {
			if a.releasedAt == nil && (a.IsMember() || a.IsSuccessor()) {
				members[a.ID], claims[a.ID] = a.Assignment, map[claimKey]claimed{}
			}
		}
		for _, a := range all {
			of, own := a.ID, 1
			if a.IsPart() {
				m.checkPart(&a, members[a.Of])
			}
			if a.IsPart() && !a.IsSuccessor() { // one that goes on elsewhere has devices of its own
				of, own = a.Of, 0
			}
			for _, c := range a.Devices {
				if members[of] != nil {
					key := claimKey{c.Class, c.Way}
					sum := claims[of][key]
					claims[of][key] = claimed{sum.all + 1, sum.own + own}
				}
			}
		}
		for id, a := range members {
			m.checkClaims(e.intent, a, claims[id])
		}
	}
}

// checkPart checks that a part is held exactly as long as its member is, which is nil when it is not.
func (m *mirror) checkPart(a *held, of *api.Assignment) {
	switch {
	case a.releasedAt == nil && of == nil:
		m.w.fail("parts", "%s is held, and its member %s is not", a.ID, a.Of)
	case a.releasedAt != nil && of != nil && a.IsSuccessor(): // it was withdrawn
	case of != nil && a.IsSuccessor():
		m.checkSuccessor(a.Assignment, of)
	case a.releasedAt != nil && of != nil:
		m.w.fail("parts", "%s is released, and its member %s is still held", a.ID, a.Of)
	case of != nil && (a.Node == of.Node || a.Member != of.Member || len(a.Slots)+len(a.Ports) > 0):
		m.w.fail("parts", "%+v is no part of %+v", a.Assignment, of)
	}
}

// checkSuccessor checks that a member goes on as itself: under its name, at its addresses, and if it runs, on another node. A saved one may go on
// anywhere, and so may one that is to be saved first in order to leave its node.
func (m *mirror) checkSuccessor(next, of *api.Assignment) {
	samePort := func(a, b api.PortClaim) bool {
		return a.Network == b.Network && a.Kind == b.Kind && a.Address == b.Address && a.MAC == b.MAC && a.Standby == b.Standby
	}
	same := next.Member == of.Member && next.Group == of.Group && slices.EqualFunc(next.Ports, of.Ports, samePort)
	if !same || next.Live && of.Saved || next.Node == of.Node && !of.Saved {
		m.w.fail("parts", "%+v is not where the member %+v can go on", next, of)
	}
}

// checkClaims checks what a member holds of devices against what its group asks for.
func (m *mirror) checkClaims(in *api.ClusterIntent, a *api.Assignment, claims map[claimKey]claimed) {
	if a.Saved {
		if len(claims) > 0 {
			m.w.fail("devices", "%s is saved, and has devices: %v", a.ID, claims)
		}
		return
	}
	for _, g := range in.Spec.Groups {
		if g.Name != a.Group {
			continue
		}
		m.checkChoices(&g, a)
		asked := map[claimKey]claimed{}
		for _, r := range slices.Concat(g.Devices, functionsOf(&g)) {
			key := claimKey{r.Class, r.Way}
			sum := asked[key]
			sum.all += r.Count
			if !r.Remote {
				sum.own += r.Count
			}
			asked[key] = sum
		}
		for key, want := range asked {
			if got := claims[key]; got.all != want.all || got.own < want.own {
				m.w.fail("devices", "%s asked for %d of %v, %d of its own node, and has %d, %d of its own node", a.ID, want.all, key, want.own, got.all, got.own)
			}
			delete(claims, key)
		}
		if len(claims) > 0 {
			m.w.fail("devices", "%s has devices that it did not ask for: %v", a.ID, claims)
		}
	}
}
