package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
)

// onRail is an adapter on a NUMA node and a rail, as an agent offers it.
func onRail(id string, numa, rail int, vfs int64) api.Device {
	d := adapter("nic", id, "lan", vfs)
	d.NUMANode, d.Rail = numa, rail
	return d
}

// withRails is a view of nodes n1, n2 and so on with 8 cores on two NUMA nodes, and with these adapters.
func withRails(nodes ...[]api.Device) *View {
	v := NewView()
	for i, devices := range nodes {
		rec := testNode(fmt.Sprint("n", i+1), 8, 2, 8)
		rec.Capacity.Devices = devices
		v.SetNode(rec, Schedulable)
	}
	return v
}

func nicVF(c api.DeviceChoice) api.DeviceRequest {
	return api.FunctionRequest(api.GroupNetwork{Interface: api.InterfaceVF, Adapter: c}, api.TechnologyVLAN, "")
}

func byRail(rail int) api.DeviceChoice { return api.DeviceChoice{Rail: &rail} }

func byNUMA(node int) api.DeviceChoice { return api.DeviceChoice{NUMANode: &node} }

func TestAChoiceNarrowsTheAdapters(t *testing.T) {
	t.Parallel()
	zero := 0
	ib := adapter("hca", "0000:5e:00.0", "ib0", 2)
	ib.GUID, ib.NUMANode = "0002c90000200011", -1
	node := []api.Device{onRail("0000:3b:00.0", 0, 0, 2), onRail("0000:af:00.0", 1, 1, 2), ib}
	hca := func(c api.DeviceChoice) api.DeviceRequest {
		return api.FunctionRequest(api.GroupNetwork{Interface: api.InterfaceVF, Adapter: c}, api.TechnologyInfiniBand, "ib0")
	}
	const vf = `each member of group "c" needs a virtual function of an adapter`
	for _, tt := range []struct {
		name string
		r    api.DeviceRequest
		want string
	}{
		{"an adapter by its PCI address", nicVF(api.DeviceChoice{Device: "0000:af:00.0"}), "n1/0000:af:00.0/vf0"},
		{"an adapter by the GUID of its port", hca(api.DeviceChoice{Device: "0002c90000200011"}), "n1/0000:5e:00.0/vf0"},
		{"a NUMA node", nicVF(byNUMA(1)), "n1/0000:af:00.0/vf0"},
		{"a rail", nicVF(byRail(1)), "n1/0000:af:00.0/vf0"},
		{
			"an adapter that no node has", nicVF(api.DeviceChoice{Device: "0000:01:00.0"}),
			vf + " (adapter 0000:01:00.0): node n1: 0000:3b:00.0 is another one, 0000:af:00.0 is another one",
		},
		{
			"a NUMA node that no adapter is on", nicVF(byNUMA(3)),
			vf + " (NUMA node 3): node n1: 0000:3b:00.0 is on NUMA node 0, 0000:af:00.0 is on NUMA node 1",
		},
		{"a rail that no adapter is on", nicVF(byRail(2)), vf + " (rail 2): node n1: 0000:3b:00.0 is on rail 0, 0000:af:00.0 is on rail 1"},
		{
			"what no adapter is at once", nicVF(api.DeviceChoice{Device: "0000:af:00.0", Rail: &zero}),
			vf + " (adapter 0000:af:00.0, rail 0): node n1: 0000:3b:00.0 is another one, 0000:af:00.0 is on rail 1",
		},
		{
			"a NUMA node that is not known", hca(byNUMA(0)),
			`each member of group "c" needs a virtual function of an InfiniBand adapter in cell ib0 (NUMA node 0): node n1: the NUMA node of 0000:5e:00.0 is not known`,
		},
	} {
		got, missing := parts(t, withRails(node).Sketch(), onFunctions(1, tt.r))
		if text := strings.Join(got, " ") + missing; text != tt.want {
			t.Errorf("%s:\n got %q\nwant %q", tt.name, text, tt.want)
		}
	}
}

func TestMembersArePlannedWhereTheirChoiceHasRoom(t *testing.T) {
	t.Parallel()
	s := withRails([]api.Device{onRail("r0", 0, 0, 8)}, []api.Device{onRail("r0", 0, 0, 8), onRail("r1", 1, 1, 1)}, []api.Device{onRail("r1", 1, 1, 8)}).Sketch()
	if got, missing := parts(t, s, onFunctions(3, nicVF(byRail(1)))); fmt.Sprint(got) != "[n3/r1/vf0 n3/r1/vf1 n3/r1/vf2]" {
		t.Errorf("three members on rail 1 got %v (%s)", got, missing)
	}
}

func TestAFullChoiceNamesItsAdapterAlone(t *testing.T) {
	t.Parallel()
	s := withRails([]api.Device{onRail("0000:3b:00.0", 0, 0, 2), onRail("0000:af:00.0", 1, 1, 2)}).Sketch()
	if got, missing := parts(t, s, onFunctions(2, nicVF(byRail(1)))); len(got) != 2 {
		t.Fatal(missing)
	}
	_, missing := parts(t, s, onFunctions(1, nicVF(byRail(1))))
	if want := "(rail 1): node n1: all 2 virtual functions of 0000:af:00.0 are taken"; !strings.HasSuffix(missing, want) {
		t.Errorf("got %q, want %q at its end", missing, want)
	}
	if got, missing := parts(t, s, onFunctions(2, nicVF(api.DeviceChoice{}))); len(got) != 2 {
		t.Errorf("members that take any adapter got %v (%s), want the other one's functions", got, missing)
	}
}

func TestTheOnlyNUMANodeIsThatOfAllDevices(t *testing.T) {
	t.Parallel()
	v := NewView()
	rec := testNode("n1", 2, 1, 1)
	rec.Capacity.Devices, rec.Capacity.NUMANodes = []api.Device{onRail("0000:3b:00.0", -1, 0, 1)}, []api.NUMANode{{MemoryBytes: gib}}
	v.SetNode(rec, Schedulable)
	if got, missing := parts(t, v.Sketch(), onFunctions(1, nicVF(byNUMA(0)))); len(got) != 1 {
		t.Errorf("got %q, want the adapter whose NUMA node the kernel does not tell", missing)
	}
}

func TestFunctionsAreNearTheCPUsOfTheirMembers(t *testing.T) {
	t.Parallel()
	// On one rail, so that it does not matter.
	far, near := onRail("0000:3b:00.0", 0, 0, 2), onRail("0000:af:00.0", 1, 0, 1)
	v := withRails([]api.Device{far, near})
	if err := v.Take(api.Assignment{ID: "x", Node: "n1", Slots: []int{0, 1, 2, 3}, Memory: []api.MemoryClaim{{Bytes: gib}}}); err != nil {
		t.Fatal(err)
	}
	got, missing := parts(t, v.Sketch(), onFunctions(2, nicVF(api.DeviceChoice{})))
	if want := "[n1/0000:af:00.0/vf0 n1/0000:3b:00.0/vf0]"; fmt.Sprint(got) != want {
		t.Errorf("two members with CPUs on NUMA node 1 got %v (%s), want %s", got, missing, want)
	}
	s := withRails([]api.Device{far, near}).Sketch()
	groups := onFunctions(1, nicVF(api.DeviceChoice{}))
	groups[0].Cores = 4
	for i, want := range []string{"[n1/0000:3b:00.0/vf0]", "[n1/0000:af:00.0/vf0]"} {
		fit, _, _ := s.Fit(groups)
		chosen, missing := s.FitDevices(groups, fit)
		s.LayOut(groups, fit)
		s.Take(fit.Shares)
		s.TakeDevices(chosen)
		if got := fmt.Sprint(textsOf(chosen)); got != want {
			t.Errorf("request %d of one round got %s (%s), want %s", i, got, missing, want)
		}
	}
}

func textsOf(chosen [][]DevicesOn) (all []string) {
	for _, member := range chosen {
		for _, on := range member {
			for _, c := range on.Claims {
				all = append(all, on.Node+"/"+c.Device+"/"+c.Part)
			}
		}
	}
	return all
}

func TestMembersOfAGroupAreOnOneRailWhereTheyCan(t *testing.T) {
	t.Parallel()
	rails := func(first, second int64) []api.Device {
		return []api.Device{onRail("r0", 0, 0, first), onRail("r1", 1, 1, second)}
	}
	claims := func(devices ...string) (all []api.DeviceClaim) {
		for _, d := range devices {
			all = append(all, api.DeviceClaim{Class: "nic", Device: d, Way: "vf"})
		}
		return all
	}
	any := nicVF(api.DeviceChoice{})
	for _, tt := range []struct {
		name   string
		nodes  [][]api.Device
		groups []api.Group
		mates  []Mate
		want   string
	}{
		{"one rail for CPUs of both NUMA nodes", [][]api.Device{rails(8, 8)}, cores(4, onFunctions(2, any)), nil, "n1/r0/vf0 n1/r0/vf1"},
		{"the rail that has room for more of them", [][]api.Device{rails(1, 3)}, onFunctions(3, any), nil, "n1/r1/vf0 n1/r1/vf1 n1/r1/vf2"},
		{"the rail with room on both nodes", [][]api.Device{rails(4, 4), rails(1, 4)[1:]}, cores(8, onFunctions(2, any)), nil, "n1/r1/vf0 n2/r1/vf0"},
		{"the rest elsewhere where no rail has room for all", [][]api.Device{rails(2, 1)}, onFunctions(3, any), nil, "n1/r0/vf0 n1/r0/vf1 n1/r1/vf0"},
		{"the rail of members that are there already", [][]api.Device{rails(4, 4), rails(4, 4)}, onFunctions(1, any), []Mate{{"c", "n2", claims("r1")}}, "n1/r1/vf0"},
		{"members of other groups do not count", [][]api.Device{rails(4, 4), rails(4, 4)}, onFunctions(1, any), []Mate{{"d", "n2", claims("r1")}}, "n1/r0/vf0"},
		{"each network has a rail of its own", [][]api.Device{rails(4, 4), rails(4, 4)}, onFunctions(1, any, any), []Mate{{"c", "n2", claims("r1", "r0")}}, "n1/r1/vf0 n1/r0/vf0"},
		{"a rail that is chosen", [][]api.Device{rails(4, 4)}, onFunctions(2, nicVF(byRail(1))), []Mate{{"c", "n1", claims("r0")}}, "n1/r1/vf0 n1/r1/vf1"},
		{"a mate of a node that is gone", [][]api.Device{rails(4, 4)}, onFunctions(1, any), []Mate{{"c", "n9", claims("r1")}, {"c", "n1", nil}}, "n1/r0/vf0"},
	} {
		s := withRails(tt.nodes...).Sketch()
		fit, _, ok := s.Fit(tt.groups)
		if !ok {
			t.Fatalf("%s: the members have no room", tt.name)
		}
		chosen, missing := s.FitDevices(tt.groups, fit, tt.mates...)
		if got := strings.Join(textsOf(chosen), " "); got != tt.want {
			t.Errorf("%s: got %q (%s), want %q", tt.name, got, missing, tt.want)
		}
	}
}

func cores(n int, groups []api.Group) []api.Group {
	groups[0].Cores = n
	return groups
}

func TestMatesAreMembersWithWhatTheyGot(t *testing.T) {
	t.Parallel()
	s := withRails([]api.Device{onRail("r0", 0, 0, 1), onRail("r1", 1, 1, 1)}).Sketch()
	groups := onFunctions(2, nicVF(api.DeviceChoice{}))
	fit, _, _ := s.Fit(groups)
	chosen, _ := s.FitDevices(groups, fit)
	mates := s.Mates("c", fit, chosen)
	if len(mates) != 2 || mates[1].Node != "n1" || len(mates[1].Claims) != 1 || mates[1].Claims[0].Device != chosen[1][0].Claims[0].Device {
		t.Errorf("got %+v, want the two members with a function each", mates)
	}
	a := api.Assignment{Group: "c", Node: "n1", Devices: mates[0].Claims}
	if m := MateOf(&a); m.Group != "c" || m.Node != "n1" || len(m.Claims) != 1 {
		t.Errorf("an assignment is mate %+v", m)
	}
}

func TestWhoTakesAnyAdapterLeavesTheOneThatAnotherNames(t *testing.T) {
	t.Parallel()
	node := []api.Device{onRail("r0", 0, 0, 1), onRail("r1", 1, 1, 1)}
	any, named := nicVF(api.DeviceChoice{}), nicVF(api.DeviceChoice{Device: "r0"})
	if got, missing := parts(t, withRails(node).Sketch(), onFunctions(1, any, named)); fmt.Sprint(got) != "[n1/r1/vf0 n1/r0/vf0]" {
		t.Errorf("two ports of a member are on %v (%s)", got, missing)
	}
	groups := append(onFunctions(1, any), onFunctions(1, named)...)
	groups[1].Name = "d"
	if got, missing := parts(t, withRails(node).Sketch(), groups); fmt.Sprint(got) != "[n1/r1/vf0 n1/r0/vf0]" {
		t.Errorf("the ports of two groups are on %v (%s)", got, missing)
	}
	groups = append(groups, onFunctions(1, nicVF(byNUMA(0)))...)
	groups[2].Name = "e"
	_, missing := parts(t, withRails(node).Sketch(), groups)
	if missing == "" {
		t.Error("three members got two functions")
	}
}

// TestDevicesAreChosenWheneverTheyCanBe compares with every choice there is, on one node.
func TestDevicesAreChosenWheneverTheyCanBe(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var node []api.Device
		for i := range rapid.IntRange(1, 3).Draw(t, "adapters") {
			node = append(node, onRail(fmt.Sprint("a", i), rapid.IntRange(-1, 1).Draw(t, "numa"), i, int64(rapid.IntRange(1, 3).Draw(t, "functions"))))
		}
		choices := []api.DeviceChoice{{}, {Device: "a0"}, {Device: "a1"}, byNUMA(0), byNUMA(1), byRail(0), byRail(2)}
		var groups []api.Group
		var all []api.DeviceRequest
		for g := range rapid.IntRange(1, 3).Draw(t, "groups") {
			var requests []api.DeviceRequest
			for range rapid.IntRange(1, 2).Draw(t, "ports") {
				requests = append(requests, nicVF(rapid.SampledFrom(choices).Draw(t, "choice")))
			}
			group := onFunctions(rapid.IntRange(1, 2).Draw(t, "size"), requests...)
			group[0].Name = fmt.Sprint("g", g)
			groups = append(groups, group...)
			for range group[0].Size {
				all = append(all, requests...)
			}
		}
		v := withRails(node)
		n := v.nodes[0]
		s := v.Sketch()
		fit, _, ok := s.Fit(groups)
		if !ok {
			t.Fatal("the members have no room")
		}
		chosen, missing := s.FitDevices(groups, fit)
		if possible := canServe(n, all, map[string]int64{}); possible != (missing == "") {
			t.Fatalf("possible: %t, got %v (%s)", possible, textsOf(chosen), missing)
		}
		left := slices.Clone(all)
		for _, member := range chosen {
			for _, c := range member[0].Claims {
				if !takes(n, recordOf(n, c.Device), left[0].DeviceChoice) {
					t.Fatalf("%+v got %s", left[0].DeviceChoice, c.Device)
				}
				left = left[1:]
			}
		}
	})
}

// canServe tries every device for every request.
func canServe(n *node, requests []api.DeviceRequest, used map[string]int64) bool {
	if len(requests) == 0 {
		return true
	}
	for i := range n.record.Capacity.Devices {
		d := &n.record.Capacity.Devices[i]
		if !takes(n, d, requests[0].DeviceChoice) || used[d.ID] == d.Counters["vf"] {
			continue
		}
		used[d.ID]++
		ok := canServe(n, requests[1:], used)
		used[d.ID]--
		if ok {
			return true
		}
	}
	return false
}
