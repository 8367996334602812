package placement

import (
	"fmt"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// BenchmarkFitDevices plans nodes and chooses functions for a gang on nodes with 8 adapters of 8 functions each, some of which are held.
func BenchmarkFitDevices(b *testing.B) {
	flat, onRails := withFunctions(b, false), withFunctions(b, true)
	one := api.DeviceRequest{Class: "nic", Way: "vf", Count: 1}
	for _, bb := range []struct {
		name  string
		v     *View
		group api.Group
	}{
		{"8-members", flat, onFunctions(8, one)[0]},
		{"100-members", flat, onFunctions(100, one)[0]},
		{"100-members-2-ports", flat, onFunctions(100, one, one)[0]},
		{"100-members-8-rails", onRails, onFunctions(100, one)[0]},
		{"100-members-chosen-rail", onRails, onFunctions(100, nicVF(byRail(3)))[0]},
	} {
		bb.group.Cores = 8
		groups := []api.Group{bb.group}
		b.Run(bb.name, func(b *testing.B) {
			measure(b, func() {
				s := bb.v.Sketch()
				fit, _, ok := s.Fit(groups)
				if !ok {
					b.Fatal("no room")
				}
				if _, missing := s.FitDevices(groups, fit); missing != "" {
					b.Fatal(missing)
				}
			})
		})
	}
}

// withFunctions is a view of 500 nodes with 8 adapters each, on one rail or on one each.
func withFunctions(b *testing.B, rails bool) *View {
	const nodes = 500
	v := NewView()
	for i := range nodes {
		rec := testNode(fmt.Sprintf("n%03d", i), 64, 2, 256)
		for k := range 8 {
			d := adapter("nic", fmt.Sprintf("0000:%02x:00.0", 0x10+k), "lan", 8)
			if d.NUMANode = k / 4; rails {
				d.Rail = k
			}
			rec.Capacity.Devices = append(rec.Capacity.Devices, d)
		}
		v.SetNode(rec, Schedulable)
		for k := range i % 8 {
			held := api.Assignment{ID: fmt.Sprint(i, ".", k), Node: rec.Name, Devices: []api.DeviceClaim{{
				Class: "nic", Device: rec.Capacity.Devices[k].ID, Way: "vf", Part: "vf0", Takes: map[string]int64{"vf": 1},
			}}}
			if err := v.Take(held); err != nil {
				b.Fatal(err)
			}
		}
	}
	return v
}
