package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource/device"
)

// gpuText says for people which GPUs of its own node a member needs.
func gpuText(r api.DeviceRequest) string {
	switch {
	case r.Way == api.WayAny:
		return gpuText(r.By(api.WayWhole)) + " of its own node, or " + remoteText(r)
	case remoteGPU(r):
		return remoteText(r)
	}
	what, several := "a whole GPU", "whole GPUs"
	if r.Way == api.WayMIG {
		what, several = "a slice of a GPU", "slices of GPUs"
	}
	if r.Count > 1 {
		what = fmt.Sprintf("%d %s", r.Count, several)
	}
	if r.Way == api.WayPassthrough {
		what += " for virtual machines"
	}
	if r.Model != "" {
		what += " " + r.Model
	}
	if r.Profile != "" {
		what += " of profile " + r.Profile
	}
	if r.Memory > 0 {
		what += fmt.Sprintf(" with at least %s of memory", r.Memory)
	}
	return what + choiceText(r.DeviceChoice, "device")
}

// remoteText says for people which remote GPUs a member needs.
func remoteText(r api.DeviceRequest) string {
	what := fmt.Sprintf("%s of the memory of a remote GPU", r.Memory)
	if r.Count > 1 {
		what = fmt.Sprintf("%s of the memory of each of %d remote GPUs of one node", r.Memory, r.Count)
	}
	if r.Model != "" {
		what += " " + r.Model
	}
	return what + choiceText(r.DeviceChoice, "device")
}

// whyNoGPU tells of each node with GPUs why it can't give a member of a group those that it needs.
func (s *Sketch) whyNoGPU(r api.DeviceRequest, g *api.Group) string {
	if r.Way == api.WayAny {
		return "whole ones: " + s.whyNoGPU(r.By(api.WholeWay(g.Stack)), g) + "; by servers: " + s.whyNoGPU(r.By(api.WayRemote), g)
	}
	why := s.onEachNode(r, func(id int32, r api.DeviceRequest) string {
		if remoteGPU(r) && s.view.rows[id].reachesWindow(g.Ends) && s.gpusOf(id, r).suit > 0 {
			return "it " + unavailable(Maintenance, 1)
		}
		return s.gpuProblem(id, r)
	})
	switch {
	case why == "" && remoteGPU(r):
		return "no node hands out GPUs to others (nearmetal agent --remote-gpus)"
	case why == "" && r.Way == api.WayPassthrough:
		return "no node gives GPUs to virtual machines (nearmetal agent --passthrough-gpus)"
	case why == "" && r.Way == api.WayMIG:
		return "no node has slices of GPUs (nearmetal node show tells the MIG mode of GPUs, and what their slices lack)"
	case why == "":
		return "no node has a GPU"
	case remoteGPU(r):
		return why
	case s.onEachNode(r, s.gpusLeft) != "":
		return "too few are free on nodes with room for its members: " + why
	default:
		return why
	}
}

// nounOf is what a request gets one or several of.
func nounOf(r api.DeviceRequest) string {
	if r.Way == api.WayMIG {
		return "slice"
	}
	return "GPU"
}

// gpusLeft is how many GPUs of a node are free for such a request; "" for none.
func (s *Sketch) gpusLeft(id int32, r api.DeviceRequest) string {
	if found := s.gpusOf(id, r); found.left > 0 {
		return fmt.Sprintf("%d of %s of that kind free", found.left, plural(found.suit, nounOf(r)))
	}
	return ""
}

// gpuProblem is what keeps a member from a node's GPUs, or how many are free; "" for a node that has none.
func (s *Sketch) gpuProblem(id int32, r api.DeviceRequest) string {
	found := s.gpusOf(id, r)
	switch {
	case found.has == 0:
		return ""
	case found.contradictory:
		return "what is held of its devices is contradictory"
	case found.suit == 0:
		return "it has " + strings.Join(found.others, ", ")
	case remoteGPU(r) && s.view.nodes[id].availability != Schedulable:
		return "it " + unavailable(s.view.nodes[id].availability, 1)
	case remoteGPU(r):
		return s.remoteLeft(id, r)
	case found.left == 0 && found.withheld != "":
		return found.withheld
	case found.left == 0 && found.suit == 1:
		return "its only " + nounOf(r) + " of that kind is taken"
	case found.left == 0:
		return fmt.Sprintf("all %s of that kind are taken", plural(found.suit, nounOf(r)))
	default:
		return s.gpusLeft(id, r)
	}
}

// remoteLeft is how much memory is free of each GPU of a node that it hands out to others.
func (s *Sketch) remoteLeft(id int32, r api.DeviceRequest) string {
	n, free := s.view.nodes[id], s.view.freeParts(id)
	var texts []string
	for i := range n.record.Capacity.Devices {
		d := &n.record.Capacity.Devices[i]
		if free == nil || !serves(n, d, r) {
			continue
		}
		left := free.Room(device.Part{Device: d.ID, Way: r.Way})
		text := fmt.Sprintf("%s of %s free of GPU %s", api.Bytes(left)<<20, api.Bytes(d.Counters[api.CounterRemoteMiB])<<20, d.ID)
		if left == 0 && free.Room(device.Part{Device: d.ID, Way: api.WayWhole}) == 0 {
			text = fmt.Sprintf("GPU %s is taken", d.ID)
		}
		takes := []api.DeviceClaim{{Class: r.Class, Device: d.ID, Way: r.Way, Takes: taken(d.Ways[r.Way].Takes, r.Times())}}
		if memory := s.view.rows[id].freeMemory; memory < api.ServerMemoryBytes(takes) {
			text += fmt.Sprintf(", and its node has %s of memory for its server, which needs %s", api.Bytes(max(memory, 0)), api.Bytes(api.ServerMemoryBytes(takes)))
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

// gpusOn counts the GPUs of a node: all, those that suit a request, and those of them that are free. others are what does not suit.
type gpusOn struct {
	has, suit, left int
	others          []string
	contradictory   bool
	// withheld tells why some that suit are not handed out.
	withheld string
}

func (s *Sketch) gpusOf(id int32, r api.DeviceRequest) (found gpusOn) {
	n, free := s.view.nodes[id], s.view.freeParts(id)
	found.contradictory = free == nil
	for i := range n.record.Capacity.Devices {
		d := &n.record.Capacity.Devices[i]
		if !offers(d, r) {
			continue
		}
		found.has++
		why := whyNot(n, d, r.DeviceChoice)
		switch {
		case why != "":
			found.others = append(found.others, why)
		case !isKind(d, r):
			if text := kindText(d); r.Way != api.WayMIG || !slices.Contains(found.others, text) { // equal slices are many
				found.others = append(found.others, text)
			}
		default:
			found.suit++
			if free != nil {
				found.left += free.Room(device.Part{Device: d.ID, Way: r.Way, Times: r.Times()})
				found.withheld = cmp.Or(found.withheld, free.withheld(d))
			}
		}
	}
	return found
}

// kindText is what a GPU is, for people.
func kindText(d *api.Device) string {
	text := d.Model
	if text == "" {
		text = d.ID + " of an unknown model"
	}
	if d.Profile != "" {
		text = "slices " + d.Profile + " of " + cmp.Or(d.Model, d.Parent)
	}
	if d.MemoryBytes > 0 {
		text += fmt.Sprintf(" with %s", api.Bytes(d.MemoryBytes))
	}
	return text
}
