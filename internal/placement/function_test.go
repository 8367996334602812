package placement

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// adapter is an adapter's port as an agent offers it.
func adapter(class, id, cell string, vfs int64) api.Device {
	return api.Device{ID: id, Class: class, Cell: cell, Counters: map[string]int64{"vf": vfs, "port": 1}, Ways: map[string]api.DeviceWay{
		"vf": {Mode: "sriov", Takes: map[string]int64{"vf": 1}}, "macvtap": {Mode: "sriov", Takes: map[string]int64{"vf": 1}},
		"pf": {Mode: "whole", Takes: map[string]int64{"vf": vfs, "port": 1}},
	}}
}

// withAdapters is a view of n1 without adapters, and n2 and n3 with one for each technology.
func withAdapters(cores int, vfs int64) *View {
	v := NewView()
	for _, name := range []string{"n1", "n2", "n3"} {
		rec := testNode(name, cores, 1, 1)
		if name != "n1" {
			rec.Capacity.Devices = []api.Device{adapter("nic", "0000:3b:00.0", "", vfs), adapter("hca", "0000:5e:00.0", "ib0", vfs)}
		}
		v.SetNode(rec, Schedulable)
	}
	return v
}

func onFunctions(size int, requests ...api.DeviceRequest) []api.Group {
	return []api.Group{{Name: "c", Size: size, Shape: api.Shape{Cores: 1, Memory: 1 << 20}, Stack: api.StackContainer, Environment: "local", Devices: requests}}
}

func hcaVF(cell string) api.DeviceRequest {
	return api.FunctionRequest(api.GroupNetwork{Interface: api.InterfaceVF}, api.TechnologyInfiniBand, cell)
}

// parts are the parts that members get, and what is missing.
func parts(t *testing.T, s *Sketch, groups []api.Group) (all []string, missing string) {
	t.Helper()
	fit, _, ok := s.Fit(groups)
	if !ok {
		t.Fatal("the members have no room")
	}
	chosen, missing := s.FitDevices(groups, fit)
	s.TakeDevices(chosen)
	s.Take(fit.Shares)
	for _, member := range chosen {
		for _, on := range member {
			for _, c := range on.Claims {
				all = append(all, on.Node+"/"+c.Device+"/"+c.Part)
			}
		}
	}
	return all, missing
}

func TestMembersAreWhereTheirFunctionsAre(t *testing.T) {
	t.Parallel()
	s := withAdapters(8, 2).Sketch()
	got, missing := parts(t, s, onFunctions(3, hcaVF("ib0")))
	if want := "[n2/0000:5e:00.0/vf0 n2/0000:5e:00.0/vf1 n3/0000:5e:00.0/vf0]"; fmt.Sprint(got) != want {
		t.Errorf("three members got %v (%s), want %s", got, missing, want)
	}
	if got, missing = parts(t, s, onFunctions(1, hcaVF("ib0"))); fmt.Sprint(got) != "[n3/0000:5e:00.0/vf1]" {
		t.Errorf("a fourth got %v (%s), want the last function", got, missing)
	}
	_, missing = parts(t, s, onFunctions(1, hcaVF("ib0")))
	for _, want := range []string{
		`each member of group "c" needs a virtual function of an InfiniBand adapter in cell ib0`,
		"node n2: all 2 virtual functions of 0000:5e:00.0 are taken", "node n3: all 2 virtual functions of 0000:5e:00.0 are taken",
	} {
		if !strings.Contains(missing, want) {
			t.Errorf("a fifth is refused with %q, want %q in it", missing, want)
		}
	}
	_, missing = parts(t, withAdapters(8, 2).Sketch(), onFunctions(1, hcaVF("ib0"), hcaVF("ib0"), hcaVF("ib0")))
	if want := "no node has as many as its ports need together: node n2: 0000:5e:00.0 has 2 of 2 virtual functions left"; !strings.Contains(missing, want) {
		t.Errorf("a member of three ports is refused with %q, want %q in it", missing, want)
	}
	if _, missing = parts(t, withAdapters(8, 2).Sketch(), onFunctions(1, hcaVF("ib7"))); !strings.Contains(missing, "in cell ib7: no node offers one") {
		t.Errorf("a cell without adapters: %q", missing)
	}
}

func TestTwoGroupsShareTheFunctionsOfANode(t *testing.T) {
	t.Parallel()
	groups := append(onFunctions(2, hcaVF("ib0")), onFunctions(2, hcaVF("ib0"))...)
	groups[1].Name, groups[1].Cores = "d", 2
	got, missing := parts(t, withAdapters(8, 2).Sketch(), groups)
	if len(got) != 4 {
		t.Errorf("four members of two groups got %v (%s), want a function each", got, missing)
	}
}

func TestAPartIsHeldUntilItsHolderIsClean(t *testing.T) {
	t.Parallel()
	v := withAdapters(8, 2)
	claim := api.DeviceClaim{Class: "hca", Device: "0000:5e:00.0", Way: "vf", Part: "vf0", Takes: map[string]int64{"vf": 1}}
	holder := api.Assignment{ID: "old", Node: "n2", Devices: []api.DeviceClaim{claim}}
	if err := v.Take(holder); err != nil {
		t.Fatal(err)
	}
	if err := v.Take(api.Assignment{ID: "twice", Node: "n2", Devices: []api.DeviceClaim{claim}}); err == nil || !strings.Contains(err.Error(), "vf0 of device 0000:5e:00.0 is held by old") {
		t.Errorf("the same function was given twice: %v", err)
	}
	ask := func() string {
		got, missing := parts(t, v.Sketch(), onFunctions(1, hcaVF("ib0")))
		return strings.Join(got, " ") + missing
	}
	for _, step := range []struct {
		what string
		do   func(string) error
		want string
	}{
		{"released", v.Release, "n2/0000:5e:00.0/vf1"}, {"quarantined", v.Quarantine, "n2/0000:5e:00.0/vf1"}, {"clean", v.Free, "n2/0000:5e:00.0/vf0"},
	} {
		if err := step.do("old"); err != nil {
			t.Fatal(err)
		}
		if got := ask(); got != step.want {
			t.Errorf("once the holder is %s, a member got %s, want %s", step.what, got, step.want)
		}
	}
}

func TestAWholePortIsSharedWithNoFunction(t *testing.T) {
	t.Parallel()
	nic := func(i api.Interface) api.DeviceRequest {
		return api.FunctionRequest(api.GroupNetwork{Interface: i}, api.TechnologyVLAN, "")
	}
	s := withAdapters(8, 2).Sketch()
	got, missing := parts(t, s, onFunctions(2, nic(api.InterfacePF)))
	if fmt.Sprint(got) != "[n2/0000:3b:00.0/ n3/0000:3b:00.0/]" {
		t.Errorf("two whole ports: got %v (%s)", got, missing)
	}
	if _, missing = parts(t, s, onFunctions(1, nic(api.InterfaceMACVTAP))); !strings.Contains(missing, "all 2 virtual functions of 0000:3b:00.0 are taken") {
		t.Errorf("a function of a port that is given away: %q", missing)
	}
	s = withAdapters(8, 2).Sketch()
	if got, missing = parts(t, s, onFunctions(2, nic(api.InterfaceVF))); len(got) != 2 {
		t.Fatal(missing)
	}
	if got, missing = parts(t, s, onFunctions(1, nic(api.InterfacePF))); fmt.Sprint(got) != "[n3/0000:3b:00.0/]" {
		t.Errorf("a whole port beside one in use: got %v (%s)", got, missing)
	}
	if _, missing = parts(t, s, onFunctions(1, nic(api.InterfacePF))); !strings.Contains(missing, "2 of 2 virtual functions of 0000:3b:00.0 are taken, so the whole port can't be") {
		t.Errorf("a whole port in use: %q", missing)
	}
}

func TestAWholePortOnInfiniBandHasTheGUIDOfItsAdapter(t *testing.T) {
	t.Parallel()
	v := withAdapters(8, 2)
	rec := testNode("n3", 8, 1, 1)
	one := map[string]int64{"port": 1}
	rec.Capacity.Devices = []api.Device{{
		ID: "0000:5e:00.0", Class: "hca", Cell: "ib0", GUID: "0002c90000200011", Counters: one, Ways: map[string]api.DeviceWay{"pf": {Mode: "whole", Takes: one}},
	}}
	v.SetNode(rec, Schedulable)
	groups := onFunctions(1, api.FunctionRequest(api.GroupNetwork{Interface: api.InterfacePF}, api.TechnologyInfiniBand, "ib0"))
	s := v.Sketch()
	fit, _, _ := s.Fit(groups)
	chosen, missing := s.FitDevices(groups, fit)
	if missing != "" || chosen[0][0].Node != "n3" || chosen[0][0].Claims[0].GUID != "0002c90000200011" {
		t.Fatalf("a member got %+v (%s), want the port of n3, whose GUID is known", chosen, missing)
	}
	s.TakeDevices(chosen)
	s.Take(fit.Shares)
	_, missing = parts(t, s, groups)
	for _, want := range []string{"node n2: the GUID of 0000:5e:00.0 is not known", "node n3: the whole port of 0000:5e:00.0 is taken"} {
		if !strings.Contains(missing, want) {
			t.Errorf("another is refused with %q, want %q in it", missing, want)
		}
	}
	ib := api.Network{UID: "ib", Name: "project/ib", Index: 4, Prefix: netip.MustParsePrefix("10.64.16.0/20"), Technology: api.TechnologyInfiniBand, Cell: "ib0", PKey: 0x12}
	on := api.GroupNetwork{Name: "project/ib", Interface: api.InterfacePF}
	var port api.PortClaim
	if err := setFunction(&port, &ib, on, chosen[0][0].Claims[0], 2); err != nil || port.GUID != "0002c90000200011" || port.At != port.GUID || port.Fabric != "ib0" {
		t.Errorf("its port is %+v, %v", port, err)
	}
	if err := setFunction(&port, &ib, on, api.DeviceClaim{Device: "0000:5e:00.0"}, 2); err == nil {
		t.Error("a port without a GUID was put into a partition")
	}
}

func TestAPortHoldsNoMorePartitionKeysThanItsTable(t *testing.T) {
	t.Parallel()
	s := withAdapters(400, 200).Sketch()
	got, missing := parts(t, s, onFunctions(2*pkeysPerPort, hcaVF("ib0")))
	if len(got) != 2*pkeysPerPort {
		t.Fatalf("%d functions were given: %s", len(got), missing)
	}
	if _, missing = parts(t, s, onFunctions(1, hcaVF("ib0"))); !strings.Contains(missing, "0000:5e:00.0 holds as many partition keys as a port can") {
		t.Errorf("another one is refused with %q", missing)
	}
}

func TestPortsAreOnThePartsThatWereChosen(t *testing.T) {
	t.Parallel()
	own := api.Network{UID: "u", Index: 3, Prefix: netip.MustParsePrefix("10.64.0.0/20"), Technology: api.TechnologyVXLAN}
	ib := api.Network{UID: "ib", Name: "project/ib", Index: 4, Prefix: netip.MustParsePrefix("10.64.16.0/20"), Technology: api.TechnologyInfiniBand, Cell: "ib0", PKey: 0x12}
	wire := api.Network{UID: "wire", Name: "project/wire", Index: 5, Prefix: netip.MustParsePrefix("10.64.32.0/20"), Technology: api.TechnologyVLAN, VLAN: 100}
	further := map[string][]api.GroupNetwork{"c": {{Name: "project/wire", Interface: api.InterfaceMACVTAP}, {Name: "project/ib", Interface: api.InterfaceVF, Limited: true}}}
	claims := []api.DeviceClaim{
		{Class: "gpu", Device: "gpu0", Way: "vf", Takes: map[string]int64{"slices": 1}},
		{Class: "nic", Device: "0000:3b:00.0", Way: "macvtap", Part: "vf4", Takes: map[string]int64{"vf": 1}},
		{Class: "hca", Device: "0000:5e:00.0", Way: "vf", Part: "vf2", Takes: map[string]int64{"vf": 1}},
	}
	placed := Placed{Group: "c", Member: "c-0", Node: "n2", Stack: api.StackVM, Devices: []DevicesOn{{Node: "n2", Claims: claims}}}
	d := Decision{ClusterUID: "u", Cluster: "c", Generation: 1, Networks: []api.Network{own, ib, wire}, Further: further}
	assigned, err := Assign([]Placed{placed}, d)
	if err != nil {
		t.Fatal(err)
	}
	got := assigned[0].Ports
	if p := got[0]; p.Kind != api.PortTAP || p.Device != "" {
		t.Errorf("the port on the cluster's own network is %+v", p)
	}
	if p := got[1]; p.Kind != api.PortVF || p.Device != "0000:5e:00.0" || p.Part != "vf2" || p.GUID != "0e6d000000040002" || p.At != p.GUID || p.Fabric != "ib0" || !p.Limited {
		t.Errorf("the port on InfiniBand is %+v", p)
	}
	if p := got[2]; p.Kind != api.PortMACVTAP || p.Device != "0000:3b:00.0" || p.Part != "vf4" || p.GUID != "" || p.Fabric != "" || p.Limited {
		t.Errorf("the port on the VLAN is %+v", p)
	}
	if by := fmt.Sprint(assigned[0].CleanBy); by != "[agent of n2 fabric of ib0]" {
		t.Errorf("it is proved clean by %s", by)
	}
	placed.Devices[0].Claims = claims[:1]
	if _, err := Assign([]Placed{placed}, d); err == nil || !strings.Contains(err.Error(), "2 ports are to be on functions of adapters, and 1 were chosen on node n2") {
		t.Errorf("without parts: %v", err)
	}
}

func TestTheOwnNetworksPortIsOnTheFirstPartThatWasChosen(t *testing.T) {
	t.Parallel()
	own := api.Network{UID: "u", Name: "c", Index: 3, Prefix: netip.MustParsePrefix("10.64.0.0/20"), Technology: api.TechnologyVLAN, VLAN: 100}
	wire := api.Network{UID: "wire", Name: "project/wire", Index: 5, Prefix: netip.MustParsePrefix("10.64.32.0/20"), Technology: api.TechnologyVLAN, VLAN: 101}
	claims := []api.DeviceClaim{
		{Class: "nic", Device: "0000:3b:00.0", Way: "vf", Part: "vf4", Takes: map[string]int64{"vf": 1}},
		{Class: "nic", Device: "0000:5e:00.0", Way: "macvtap", Part: "vf2", Takes: map[string]int64{"vf": 1}},
	}
	placed := Placed{Group: "c", Member: "c-0", Node: "n2", Stack: api.StackVM, Devices: []DevicesOn{{Node: "n2", Claims: claims}}}
	d := Decision{
		ClusterUID: "u", Cluster: "c", Generation: 1, Networks: []api.Network{own, wire}, Own: map[string]api.GroupNetwork{"c": {Interface: api.InterfaceVF, Standby: true}},
		Further: map[string][]api.GroupNetwork{"c": {{Name: "project/wire", Interface: api.InterfaceMACVTAP}}},
	}
	assigned, err := Assign([]Placed{placed}, d)
	if err != nil {
		t.Fatal(err)
	}
	if p := assigned[0].Ports[0]; p.Network != "u" || p.Kind != api.PortVF || p.Device != "0000:3b:00.0" || p.Part != "vf4" || p.GUID != "" || !p.Standby {
		t.Errorf("the port on the cluster's own network is %+v", p)
	}
	if p := assigned[0].Ports[1]; p.Network != "wire" || p.Kind != api.PortMACVTAP || p.Device != "0000:5e:00.0" || p.Part != "vf2" || p.Standby {
		t.Errorf("the port on project/wire is %+v", p)
	}
	goesOn := placed
	goesOn.Keeps, _ = assigned[0].LetGo()
	next, err := Assign([]Placed{goesOn}, d)
	if err != nil {
		t.Fatalf("after a save: %v", err)
	}
	if p := next[0].Ports[0]; p.Kind != api.PortVF || p.Device != "0000:3b:00.0" || p.Part != "vf4" || p.MAC != assigned[0].Ports[0].MAC || !p.Standby {
		t.Errorf("after a save, the port on the cluster's own network is %+v", p)
	}
	d.Networks[0].Technology = api.TechnologyVXLAN
	if _, err := Assign([]Placed{placed}, d); err == nil || !strings.Contains(err.Error(), "network c is of technology \"vxlan\", on which no port can be on a function of an adapter") {
		t.Errorf("on tunnels: %v", err)
	}
}

func TestAMemberGoesOnOnTheFunctionsOfItsNewNode(t *testing.T) {
	t.Parallel()
	own := api.Network{UID: "u", Index: 3, Prefix: netip.MustParsePrefix("10.64.0.0/20"), Technology: api.TechnologyVXLAN}
	ib := api.Network{UID: "ib", Name: "project/ib", Index: 4, Prefix: netip.MustParsePrefix("10.64.16.0/20"), Technology: api.TechnologyInfiniBand, Cell: "ib0", PKey: 0x12}
	whole := api.Network{UID: "whole", Name: "project/whole", Index: 5, Prefix: netip.MustParsePrefix("10.64.32.0/20"), Technology: api.TechnologyInfiniBand, Cell: "ib0", PKey: 0x13}
	further := map[string][]api.GroupNetwork{"c": {{Name: "project/ib", Interface: api.InterfaceVF}, {Name: "project/whole", Interface: api.InterfacePF}}}
	claims := func(vf, pf, guid string) []api.DeviceClaim {
		return []api.DeviceClaim{
			{Class: "hca", Device: vf, Way: "vf", Part: "vf2", Takes: map[string]int64{"vf": 1}}, {Class: "hca", Device: pf, Way: "pf", GUID: guid, Takes: map[string]int64{"port": 1}},
		}
	}
	d := Decision{ClusterUID: "u", Cluster: "c", Generation: 1, Networks: []api.Network{own, ib, whole}, Further: further}
	place := func(node string, claims []api.DeviceClaim, keeps []api.PortClaim) (api.Assignment, error) {
		all, err := Assign([]Placed{{Group: "c", Member: "c-0", Node: node, Stack: api.StackVM, Devices: []DevicesOn{{Node: node, Claims: claims}}, Keeps: keeps}}, d)
		if err != nil {
			return api.Assignment{}, err
		}
		return all[0], nil
	}
	was, err := place("n2", claims("hca0", "hca1", "aa"), nil)
	if err != nil {
		t.Fatal(err)
	}
	was.Devices = claims("hca0", "hca1", "aa")
	keeps, _ := was.LetGo()
	next, err := place("n3", claims("hca7", "hca8", "bb"), keeps)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range next.Ports {
		if !p.SameAs(&was.Ports[i]) || p.Kind != was.Ports[i].Kind {
			t.Errorf("port %d was %+v and is %+v", i, was.Ports[i], p)
		}
	}
	if p := next.Ports[1]; p.Device != "hca7" || p.Part != "vf2" || p.GUID != was.Ports[1].GUID || p.At != p.GUID || p.Fabric != "ib0" {
		t.Errorf("the port on a virtual function is %+v, want the same GUID on hca7", p)
	}
	if p := next.Ports[2]; p.Device != "hca8" || p.GUID != "bb" || p.At != "bb" || p.Fabric != "ib0" {
		t.Errorf("the whole port is %+v, want the GUID of hca8", p)
	}
	if by := fmt.Sprint(next.CleanBy); by != "[agent of n3 fabric of ib0]" {
		t.Errorf("it is proved clean by %s", by)
	}
	if _, err := place("n3", nil, keeps); err == nil {
		t.Error("a member went on without functions")
	}
}

func TestATrialTakesNoDevicesOfItsSketch(t *testing.T) {
	t.Parallel()
	s := withAdapters(8, 2).Sketch()
	parts(t, s, onFunctions(1, hcaVF("ib0")))
	trial := s.Trial()
	parts(t, trial, onFunctions(1, hcaVF("ib0")))
	if got, _ := parts(t, s, onFunctions(1, hcaVF("ib0"))); fmt.Sprint(got) != "[n2/0000:5e:00.0/vf1]" {
		t.Errorf("after a trial a member gets %v, want the function that was tried", got)
	}
}
