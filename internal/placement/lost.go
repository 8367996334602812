package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource/device"
)

// Members may hold what their node does not offer any more: a GPU that has fallen off its bus, or a slice that the operator destroyed to divide the GPU anew.
// Such a claim is no contradiction, and stands in the way of nothing but that device. Of a slice that is gone, its member can still open the GPU and
// instances whose numbers new slices may have. So nobody gets anything of that GPU before the member has ended.

// takeHeld takes what an assignment holds already, and notes what of that the node does not offer.
func (f *partsFree) takeHeld(n *node, a *api.Assignment) error {
	for i := range a.Devices {
		c := &a.Devices[i]
		d := recordOf(n, c.Device)
		if d != nil {
			if _, offered := d.Ways[c.Way]; !offered {
				d = nil
			}
		}
		if d == nil {
			f.lost[c.Device] = fmt.Sprintf("nothing of %s is handed out while a member holds it as %q, which its node does not offer any more", c.Device, c.Way)
			if c.Parent != "" {
				f.lost[c.Parent] = fmt.Sprintf("nothing more of GPU %s is handed out while a member holds its slice %s, which is gone", c.Parent, c.Device)
			}
			continue
		}
		if err := f.take(*c, a.ID); err != nil {
			return fmt.Errorf("assignment %s: node %s: %w", a.ID, a.Node, err)
		}
	}
	return nil
}

// withhold takes all that is left of devices that somebody may still reach by a claim of what is gone.
func (f *partsFree) withhold(n *node) {
	if len(f.lost) == 0 {
		return
	}
	for i := range n.record.Capacity.Devices {
		d := &n.record.Capacity.Devices[i]
		if f.withheld(d) == "" {
			continue
		}
		for _, way := range slices.Sorted(maps.Keys(d.Ways)) {
			part := device.Part{Device: d.ID, Way: way}
			if part.Times = int64(f.Room(part)); part.Times > 0 {
				_ = f.Tree.Take(part) // there is room for it
			}
		}
	}
}

// withheld tells why nobody gets a device while somebody holds what is gone of it, or of its GPU; "" for all others.
func (f *partsFree) withheld(d *api.Device) string { return cmp.Or(f.lost[d.ID], f.lost[d.Parent]) }
