package resource

import (
	"maps"
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// Which way a request for any GPU is met is decided after its quota was checked, so it must be within that of each.
func TestAnyGPUTakesOfBothQuotas(t *testing.T) {
	d := &api.Device{Class: api.ClassGPU, Ways: map[string]api.DeviceWay{
		api.WayWhole:  {Takes: map[string]int64{api.CounterGPUs: 1, api.CounterSlices: 7}},
		api.WayRemote: {Takes: map[string]int64{api.CounterRemoteMiB: 1}},
	}}
	g := &api.Group{Devices: []api.DeviceRequest{{Class: api.ClassGPU, Way: api.WayAny, Count: 2, Remote: true, Memory: 1 << 30}}}
	got := OfMember(g, PartsOf(slices.Values([]*api.Device{d}))).Devices
	if want := (Devices{"gpu/gpus": 2, "gpu/slices": 14, "gpu/remote-mib": 2048}); !maps.Equal(got, want) {
		t.Errorf("two of any GPU take %v, want %v", got, want)
	}
	// A virtual machine gets a whole one in another way.
	g.Stack = api.StackVM
	d.Ways[api.WayPassthrough] = d.Ways[api.WayWhole]
	delete(d.Ways, api.WayWhole)
	if machine := OfMember(g, PartsOf(slices.Values([]*api.Device{d}))).Devices; !maps.Equal(machine, got) {
		t.Errorf("of GPUs that machines get, two of any take %v, want %v", machine, got)
	}
}

func TestTheMemoryOfAServerIsNoneOfItsProjects(t *testing.T) {
	a := &api.Assignment{ID: "a-d0", Of: "a", Memory: []api.MemoryClaim{{Bytes: 2 << 30}}, Devices: []api.DeviceClaim{{Class: api.ClassGPU, Way: api.WayRemote, Takes: map[string]int64{api.CounterRemoteMiB: 512}}}}
	if got := OfAssignment(a); got.Vector[Memory] != 0 || got.Devices["gpu/remote-mib"] != 512 {
		t.Errorf("a server takes %+v of its project's quota, want the GPU's memory alone", got)
	}
}

// Quotas are checked before a slice is chosen: by its profile where the request names one, and else by the largest slice of the site.
func TestSlicesTakeOfTheQuotaWhatTheirProfileSays(t *testing.T) {
	slice := func(profile string, n int64) *api.Device {
		return &api.Device{Class: api.ClassGPU, Profile: profile, Ways: map[string]api.DeviceWay{api.WayMIG: {Takes: map[string]int64{api.CounterSlices: n}}}}
	}
	parts := PartsOf(slices.Values([]*api.Device{slice("1g.10gb", 1), slice("3g.40gb", 3), slice("1g.10gb", 1)}))
	for profile, want := range map[string]int64{"1g.10gb": 2, "3g.40gb": 6, "": 6, "7g.80gb": 0} {
		g := &api.Group{Devices: []api.DeviceRequest{{Class: api.ClassGPU, Way: api.WayMIG, Count: 2, Profile: profile}}}
		if got := OfMember(g, parts).Devices; got["gpu/slices"] != want || len(got) > 1 {
			t.Errorf("two slices of profile %q take %v, want %d gpu/slices", profile, got, want)
		}
	}
}
