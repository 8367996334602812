package controller

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// withRails is newPartitioned with two Ethernet adapters on a node of 4 cores: on rail 0 and NUMA node 0, and on rail 1 and NUMA node 1.
func withRails(t *testing.T) *wired {
	t.Helper()
	w := newPartitioned(t)
	record := *w.cache.View().Agent("n1")
	record.Capacity.Cores, record.Capacity.Devices = nil, nil
	for i := range 4 {
		record.Capacity.Cores = append(record.Capacity.Cores, api.Core{Slot: i, CPU: i, NUMANode: i / 2})
	}
	for i, id := range []string{"0000:3b:00.0", "0000:af:00.0"} {
		record.Capacity.Devices = append(record.Capacity.Devices, api.Device{
			ID: id, Class: api.ClassNIC, NUMANode: i, Rail: i, Cell: "lan1", Counters: map[string]int64{"vf": 4, "port": 1},
			Ways: map[string]api.DeviceWay{"vf": {Mode: "sriov", Takes: map[string]int64{"vf": 1}}},
		})
	}
	w.view(w.repo.PutNode(t.Context(), record))
	return w
}

// askOnAdapter asks for a cluster of one member whose own network is a VLAN, with a virtual function of adapters that are chosen.
func (w *wired) askOnAdapter(name string, c api.DeviceChoice) {
	w.t.Helper()
	w.askFor(name, api.ClusterSpec{Technology: api.TechnologyVLAN}, func(g *api.Group) { g.Interface, g.Adapter = api.InterfaceVF, c })
}

func TestAPortIsOnAnAdapterThatItsGroupChose(t *testing.T) {
	w := withRails(t)
	rail := 1
	w.askOnAdapter("c", api.DeviceChoice{Rail: &rail})
	view := w.passes("placed", func(v *state.View) bool { r := v.Cluster("c").Record; return r != nil && r.PlacedAt != nil })
	if p := only(t, view.Cluster("c")).Ports[0]; p.Device != "0000:af:00.0" || p.Part != "vf0" {
		t.Errorf("its port is %+v, want vf0 of the adapter on rail 1", p)
	}
}

func TestAChoiceThatNoNodeCanServeIsRefusedWithTheAdapters(t *testing.T) {
	w := withRails(t)
	w.askOnAdapter("c", api.DeviceChoice{Device: "0000:01:00.0"})
	view := w.passes("refused", func(v *state.View) bool { r := v.Cluster("c").Record; return r != nil && r.Phase == api.ClusterRefused })
	const want = "a virtual function of an adapter (adapter 0000:01:00.0): node n1: 0000:3b:00.0 is another one, 0000:af:00.0 is another one"
	if why := view.Cluster("c").Record.Message; !strings.Contains(why, want) {
		t.Errorf("refused with %q, want %q in it", why, want)
	}
}

func TestAMemberThatIsAddedKeepsToTheRailOfItsGroup(t *testing.T) {
	w := withRails(t)
	rail := 1
	w.askOnAdapter("c", api.DeviceChoice{Rail: &rail})
	w.passes("placed", func(v *state.View) bool { r := v.Cluster("c").Record; return r != nil && r.PlacedAt != nil })
	_, revision, err := w.repo.UpdateIntent(t.Context(), "c", "", func(in *api.ClusterIntent) error {
		in.Spec.Groups[0].Size, in.Spec.Groups[0].Adapter, in.ScaledAt = 2, api.DeviceChoice{}, &w.now
		return nil
	})
	w.view(revision, err)
	var ports []string
	w.passes("grown", func(v *state.View) bool {
		ports = nil
		for a := range v.Cluster("c").Held() {
			ports = append(ports, fmt.Sprintf("%v %s", a.NUMANodes, a.Ports[0].Device))
		}
		return len(ports) == 2
	})
	if want := "[[0] 0000:af:00.0 [0] 0000:af:00.0]"; fmt.Sprint(ports) != want {
		t.Errorf("members are on %v, want %s: their CPUs are nearer to rail 0", ports, want)
	}
}

func TestAProjectsQuotaCountsFunctions(t *testing.T) {
	w := withRails(t)
	w.view(w.repo.CreateProject(t.Context(), api.Project{Name: "lab", CreatedAt: w.now, Quota: api.Quota{Devices: map[string]int64{"nic/vf": 2}}}))
	name := tenancy.FullName("lab", "c")
	w.view(w.repo.CreateCluster(t.Context(), api.ClusterIntent{Name: name, UID: "u", Project: "lab", CreatedAt: w.now, Spec: api.ClusterSpec{
		Technology: api.TechnologyVLAN, Groups: []api.Group{{
			Name: "c", Size: 3, Shape: api.Shape{Cores: 1, Memory: 64 << 20}, Stack: api.StackContainer, Environment: "local", Interface: api.InterfaceVF,
		}},
	}}))
	view := w.passes("refused", func(v *state.View) bool {
		r := v.Cluster(name).Record
		return r != nil && r.Phase == api.ClusterRefused
	})
	if why := view.Cluster(name).Record.Message; !strings.Contains(why, "nic/vf") || !strings.Contains(why, "quota") {
		t.Errorf("refused with %q, want the quota of nic/vf named", why)
	}
}
