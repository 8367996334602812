package placement

import (
	"fmt"
	"sort"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource/device"
)

// ownDevices are the requests of a group for devices of each member's own node.
func ownDevices(g *api.Group) []api.DeviceRequest {
	var own []api.DeviceRequest
	for _, r := range g.Devices {
		if !r.Remote {
			own = append(own, r)
		}
	}
	return own
}

// wantOwnDevices reports whether members of any of the groups need devices of their own nodes.
func wantOwnDevices(groups []api.Group) bool {
	for i := range groups {
		if len(ownDevices(&groups[i])) > 0 {
			return true
		}
	}
	return false
}

// roomDevices is how many members of a group, at most so many, a node has devices for, beside what other groups were given there.
func (f *finder) roomDevices(id, most int32) int32 {
	free := f.v.freeParts(id)
	if free == nil || len(f.v.nodes[id].record.Capacity.Devices) == 0 {
		return 0
	}
	var others []device.Request
	if f.used != nil {
		others = asParts(f.v.nodes[id], f.used.devices[id], 1)
	}
	fits := func(members int) bool {
		_, ok := free.Fit(append(asParts(f.v.nodes[id], f.devices, members), others...))
		return ok
	}
	if fits(int(most)) {
		return most
	}
	return int32(sort.Search(int(most)-1, func(n int) bool { return !fits(n + 1) }))
}

// asParts are the parts of a node's devices that so many members ask for.
func asParts(n *node, requests []api.DeviceRequest, members int) []device.Request {
	parts := make([]device.Request, 0, len(requests))
	for _, r := range requests {
		parts = append(parts, device.Request{Way: r.Way, Count: r.Count * members, Suits: serving(n, r)})
	}
	return parts
}

// onFunction reports whether a request is for a function of an adapter, for a port of the member.
func onFunction(r api.DeviceRequest) bool {
	return !r.Remote && (r.Class == api.ClassNIC || r.Class == api.ClassHCA) && api.Interface(r.Way).OnFunction()
}

// counterPort counts an adapter's port, which has one owner or none.
const counterPort = "port"

// functionText says for people what a port is on.
func functionText(r api.DeviceRequest) string {
	what := "a virtual function of an adapter"
	if r.Way == string(api.InterfacePF) {
		what = "a whole port of an adapter"
	}
	if r.Class == api.ClassHCA {
		what = strings.Replace(what, "an adapter", "an InfiniBand adapter", 1)
	}
	if r.Cell != "" {
		what += " in cell " + r.Cell
	}
	return what + choiceText(r.DeviceChoice, "adapter")
}

// whyNoFunction tells of each node why it can't give a function of an adapter. It names the adapters' ports by their PCI addresses.
func (s *Sketch) whyNoFunction(r api.DeviceRequest) string {
	if why := s.onEachNode(r, s.functionProblem); why != "" {
		return why
	}
	if why := s.onEachNode(r, s.functionsLeft); why != "" {
		return "no node has as many as its ports need together: " + why
	}
	return "no node offers one"
}

// onEachNode tells of some nodes what say has to say of them, and how many more there are; "" where it says nothing of any.
func (s *Sketch) onEachNode(r api.DeviceRequest, say func(id int32, r api.DeviceRequest) string) string {
	var texts []string
	more := 0
	for _, id := range s.view.order {
		n := s.view.nodes[id]
		if n.availability == Absent {
			continue
		}
		why := say(id, r)
		switch {
		case why == "":
		case len(texts) == named:
			more++
		default:
			texts = append(texts, fmt.Sprintf("node %s: %s", n.record.Name, why))
		}
	}
	if more > 0 {
		texts = append(texts, fmt.Sprintf("and %s", plural(more, "more node")))
	}
	return strings.Join(texts, "; ")
}

// functionsLeft is how many functions each adapter of a node has left for such a request; "" for a node that has none.
func (s *Sketch) functionsLeft(id int32, r api.DeviceRequest) string {
	n, free := s.view.nodes[id], s.view.freeParts(id)
	var texts []string
	for i := range n.record.Capacity.Devices {
		d := &n.record.Capacity.Devices[i]
		if free == nil || !offers(d, r) || whyNot(n, d, r.DeviceChoice) != "" {
			continue
		}
		if left, _ := free.Free(d.ID, api.CounterVF); left > 0 {
			texts = append(texts, fmt.Sprintf("%s has %d of %d virtual functions left", d.ID, left, d.Counters[api.CounterVF]))
		}
	}
	return strings.Join(texts, ", ")
}

// functionProblem is why a node has no free function; "" for one without such adapters, of which there may be many, and for one that has some left.
func (s *Sketch) functionProblem(id int32, r api.DeviceRequest) string {
	n, free := s.view.nodes[id], s.view.freeParts(id)
	var texts, others []string
	suit := 0
	for i := range n.record.Capacity.Devices {
		d := &n.record.Capacity.Devices[i]
		if !offers(d, r) {
			continue
		}
		way := d.Ways[r.Way]
		if why := whyNot(n, d, r.DeviceChoice); why != "" {
			others = append(others, why)
			continue
		}
		suit++
		if free == nil {
			return "what is held of its devices is contradictory"
		}
		vfs, left := d.Counters[api.CounterVF], int64(0)
		left, _ = free.Free(d.ID, api.CounterVF)
		keys, counted := free.Free(d.ID, counterPKeys)
		ports, _ := free.Free(d.ID, counterPort)
		switch {
		case wholeHCA(r) && d.GUID == "":
			texts = append(texts, fmt.Sprintf("the GUID of %s is not known", d.ID))
		case ports < way.Takes[counterPort] && vfs == left:
			texts = append(texts, fmt.Sprintf("the whole port of %s is taken", d.ID))
		case r.Way == string(api.InterfacePF) && left < vfs:
			texts = append(texts, fmt.Sprintf("%d of %d virtual functions of %s are taken, so the whole port can't be", vfs-left, vfs, d.ID))
		case counted && keys < 1 && left > 0:
			texts = append(texts, fmt.Sprintf("%s holds as many partition keys as a port can", d.ID))
		case left < way.Takes[api.CounterVF] && vfs == left:
			texts = append(texts, fmt.Sprintf("%s has no virtual functions", d.ID))
		case left < way.Takes[api.CounterVF]:
			texts = append(texts, fmt.Sprintf("all %d virtual functions of %s are taken", vfs, d.ID))
		}
	}
	if suit == 0 {
		return strings.Join(others, ", ")
	}
	return strings.Join(texts, ", ")
}

// functionsOf returns the parts of adapters that a member's ports are on, by the networks' names. Its last claims on its own node are for these ports,
// in the order in which its group names the networks, the cluster's own first.
func functionsOf(p *Placed, group *api.Group) (map[string]api.DeviceClaim, error) {
	networks := group.Functions()
	if len(networks) == 0 {
		return nil, nil
	}
	var own []api.DeviceClaim
	for _, on := range p.Devices {
		if on.Node == p.Node {
			own = on.Claims
		}
	}
	if len(own) < len(networks) {
		return nil, fmt.Errorf("%d ports are to be on functions of adapters, and %d were chosen on node %s", len(networks), len(own), p.Node)
	}
	claims := map[string]api.DeviceClaim{}
	for i, claim := range own[len(own)-len(networks):] {
		if claim.Way != string(networks[i].Interface) {
			return nil, fmt.Errorf("the port on %s is to be of kind %s, and device %s is handed out as %q", networks[i].Title(), networks[i].Interface, claim.Device, claim.Way)
		}
		claims[networks[i].Name] = claim
	}
	return claims, nil
}

// setFunction lets a port be on a part of an adapter. On InfiniBand, the fabric knows the port by its GUID, and has to prove it clean too.
func setFunction(port *api.PortClaim, n *api.Network, on api.GroupNetwork, claim api.DeviceClaim, host int) error {
	port.Kind, port.Device, port.Part = on.Interface.PortKind(), claim.Device, claim.Part
	port.Standby = on.Standby
	switch n.Technology {
	case api.TechnologyVLAN:
		return nil
	case api.TechnologyInfiniBand:
		guid := GUID(n.Index, host)
		if on.Interface == api.InterfacePF {
			if guid = claim.GUID; guid == "" {
				return fmt.Errorf("the GUID of %s, whose whole port is to be in network %s, is not known", claim.Device, n.Name)
			}
		}
		port.GUID, port.At, port.Fabric, port.Limited = guid, guid, n.Cell, on.Limited
		return nil
	default:
		return fmt.Errorf("network %s is of technology %q, on which no port can be on a function of an adapter", n.Name, n.Technology)
	}
}
