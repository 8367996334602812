package placement

import (
	"fmt"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource/device"
)

// serves reports whether a device of a node is one that a request takes, handed out as it asks. Nobody could put a whole port into a partition, nor
// prove it clean, whose GUID is not known.
func serves(n *node, d *api.Device, r api.DeviceRequest) bool {
	return offers(d, r) && takes(n, d, r.DeviceChoice) && isKind(d, r) && (!wholeHCA(r) || d.GUID != "")
}

// offers reports whether a device is of the class and cell of a request, and can be handed out as it asks.
func offers(d *api.Device, r api.DeviceRequest) bool {
	_, has := d.Ways[r.Way]
	return has && d.Class == r.Class && (r.Cell == "" || d.Cell == r.Cell)
}

// serving is serves for the devices of a node's tree.
func serving(n *node, r api.DeviceRequest) func(*device.Device) bool {
	return func(d *device.Device) bool {
		rec := recordOf(n, d.ID)
		return rec != nil && serves(n, rec, r)
	}
}

// recordOf returns what a node says of one of its devices; nil where it has none of that ID.
func recordOf(n *node, id string) *api.Device {
	for i := range n.record.Capacity.Devices {
		if d := &n.record.Capacity.Devices[i]; d.ID == id {
			return d
		}
	}
	return nil
}

// takes reports whether a choice takes a device of a node.
func takes(n *node, d *api.Device, c api.DeviceChoice) bool { return whyNot(n, d, c) == "" }

// whyNot says for people why a choice does not take a device, "" where it does.
func whyNot(n *node, d *api.Device, c api.DeviceChoice) string {
	numa := numaNodeOf(n, d)
	switch {
	case c.Device != "" && c.Device != d.ID && c.Device != d.GUID:
		return d.ID + " is another one"
	case c.NUMANode != nil && numa < 0:
		return "the NUMA node of " + d.ID + " is not known"
	case c.NUMANode != nil && numa != *c.NUMANode:
		return fmt.Sprintf("%s is on NUMA node %d", d.ID, numa)
	case c.Rail != nil && d.Rail != *c.Rail:
		return fmt.Sprintf("%s is on rail %d", d.ID, d.Rail)
	default:
		return ""
	}
}

// isKind reports whether a device is of the model and the profile, and has the memory, that a request asks for.
func isKind(d *api.Device, r api.DeviceRequest) bool {
	return d.MemoryBytes >= int64(r.Memory) && (r.Model == "" || d.IsModel(r.Model)) && (r.Profile == "" || d.Profile == r.Profile)
}

// numaNodeOf returns the NUMA node that a device is attached to, less than 0 where it is not known. Kernels of machines with one do not tell.
func numaNodeOf(n *node, d *api.Device) int {
	if all := n.record.Capacity.NUMANodes; d.NUMANode < 0 && len(all) == 1 {
		return all[0].ID
	}
	return d.NUMANode
}

// choiceText writes a choice for people, behind the devices that it narrows; "" for one that takes any. noun is what the devices are.
func choiceText(c api.DeviceChoice, noun string) string {
	var parts []string
	if c.Device != "" {
		parts = append(parts, noun+" "+c.Device)
	}
	if c.NUMANode != nil {
		parts = append(parts, fmt.Sprintf("NUMA node %d", *c.NUMANode))
	}
	if c.Rail != nil {
		parts = append(parts, fmt.Sprintf("rail %d", *c.Rail))
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}
