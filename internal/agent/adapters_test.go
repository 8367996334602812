package agent

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/node/sriov/modelhost"
)

const (
	nicPCI = "0000:3b:00.0"
	hcaPCI = "0000:5e:00.0"
)

func openedAdapters(t *testing.T, opts config.Agent, h *modelhost.Host) *adapters {
	t.Helper()
	x, err := openAdapters(t.Context(), opts, t.TempDir(), h, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func readAdapters(t *testing.T, x *adapters) (map[string]api.Device, map[string]string) {
	t.Helper()
	devices, all, err := x.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	byID, problems := map[string]api.Device{}, map[string]string{}
	for _, d := range devices {
		byID[d.ID] = d
	}
	for _, a := range all {
		problems[a.ID] = strings.Join(a.Problems, "\n")
	}
	return byID, problems
}

func TestAdaptersAreOfferedAsDevicesOfTheirCells(t *testing.T) {
	h := modelhost.New(modelhost.Config{PCI: nicPCI, Kind: modelhost.IGB, TotalVFs: 7, NUMANode: 1}, modelhost.Config{PCI: hcaPCI, Kind: modelhost.MLX5, TotalVFs: 63})
	x := openedAdapters(t, config.Agent{
		Fabrics:          []config.FabricPort{{Cell: "lan", Adapter: nicPCI}, {Cell: "ib1", Adapter: hcaPCI}},
		VirtualFunctions: map[string]int{nicPCI: 7, hcaPCI: 4}, VirtualPorts: []string{"ib1"},
	}, h)
	devices, problems := readAdapters(t, x)
	part := map[string]int64{"vf": 1}
	want := map[string]api.Device{
		nicPCI: {
			ID: nicPCI, Class: "nic", Cell: "lan", NUMANode: 1, Counters: map[string]int64{"vf": 7, "port": 1},
			Ways: map[string]api.DeviceWay{
				"vf": {Mode: "sriov", Takes: part}, "macvtap": {Mode: "sriov", Takes: part}, "pf": {Mode: "whole", Takes: map[string]int64{"vf": 7, "port": 1}},
			},
		},
		hcaPCI: {
			ID: hcaPCI, Class: "hca", Cell: "ib1", GUID: "000255000000005e", Counters: map[string]int64{"vf": 4, "port": 1},
			Ways: map[string]api.DeviceWay{"vf": {Mode: "sriov", Takes: part}, "pf": {Mode: "whole", Takes: map[string]int64{"vf": 4, "port": 1}}},
		},
	}
	if diff := cmp.Diff(want, devices); diff != "" {
		t.Errorf("offered (-want +got):\n%s", diff)
	}
	if problems[nicPCI]+problems[hcaPCI] != "" {
		t.Errorf("got problems %q", problems)
	}
}

func TestAdaptersOfACellAreItsRailsInTheirOrder(t *testing.T) {
	const other = "0000:af:00.0"
	h := modelhost.New(modelhost.Config{PCI: nicPCI, Kind: modelhost.IGB, TotalVFs: 7}, modelhost.Config{PCI: other, Kind: modelhost.IGB, TotalVFs: 7, NUMANode: -1},
		modelhost.Config{PCI: hcaPCI, Kind: modelhost.MLX5, TotalVFs: 63})
	x := openedAdapters(t, config.Agent{Fabrics: []config.FabricPort{
		{Cell: "lan", Adapter: "0000:01:00.0"}, {Cell: "lan", Adapter: other}, {Cell: "ib1", Adapter: hcaPCI}, {Cell: "lan", Adapter: nicPCI},
	}}, h)
	h.Unplug(nicPCI, true)
	devices, all, err := x.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, a := range all {
		got[a.ID] = fmt.Sprintf("rail %d, NUMA node %d", a.Rail, a.NUMANode)
	}
	want := map[string]string{"0000:01:00.0": "rail 0, NUMA node -1", other: "rail 1, NUMA node -1", hcaPCI: "rail 0, NUMA node 0", nicPCI: "rail 2, NUMA node 0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("adapters, one missing and one without a link (-want +got):\n%s", diff)
	}
	for _, d := range devices {
		if text := fmt.Sprintf("rail %d, NUMA node %d", d.Rail, d.NUMANode); text != want[d.ID] {
			t.Errorf("device %s is offered on %s, want %s", d.ID, text, want[d.ID])
		}
	}
}

func TestWhatCannotBeUsedIsNotOfferedAndNamed(t *testing.T) {
	type options = config.Agent
	lan := options{Fabrics: []config.FabricPort{{Cell: "lan", Adapter: nicPCI}}, VirtualFunctions: map[string]int{nicPCI: 7}}
	for _, c := range []struct {
		name   string
		opts   options
		config modelhost.Config
		change func(t *testing.T, h *modelhost.Host, x *adapters)
		vf     int64
		ways   string
		says   string
	}{
		{name: "an adapter that is not there", opts: options{Fabrics: []config.FabricPort{{Cell: "lan", Adapter: "0000:ff:00.0"}}}, config: modelhost.Config{Kind: modelhost.IGB, TotalVFs: 7}, says: "no PCI device 0000:ff:00.0"},
		{name: "an interface that is not there", opts: options{Fabrics: []config.FabricPort{{Cell: "lan", Adapter: "enp9"}}}, config: modelhost.Config{Kind: modelhost.IGB, TotalVFs: 7}, says: "no network interface enp9"},
		{name: "more functions than the firmware allows", opts: options{Fabrics: lan.Fabrics, VirtualFunctions: map[string]int{nicPCI: 8}}, config: modelhost.Config{Kind: modelhost.IGB, TotalVFs: 7}, ways: "pf", says: "at most 7"},
		{name: "the node's own interface", opts: lan, config: modelhost.Config{Kind: modelhost.IGB, TotalVFs: 7, Addressed: true}, vf: 7, ways: "macvtap vf", says: "the node itself uses"},
		{name: "no cable", opts: lan, config: modelhost.Config{Kind: modelhost.IGB, TotalVFs: 7}, change: func(_ *testing.T, h *modelhost.Host, _ *adapters) { h.Unplug(nicPCI, true) }, says: "its link is down"},
		{name: "switchdev", opts: lan, config: modelhost.Config{Kind: modelhost.MLX5Ethernet, TotalVFs: 7, Switchdev: true}, ways: "pf", says: "switchdev"},
		{name: "no virtualization in the subnet manager", opts: lan, config: modelhost.Config{Kind: modelhost.MLX5, TotalVFs: 7}, ways: "pf", says: "subnet manager with virtualization"},
		{name: "company in the IOMMU groups", opts: lan, config: modelhost.Config{Kind: modelhost.IGB, TotalVFs: 7, Company: "0000:3c:00.0"}, vf: 7, ways: "macvtap pf vf", says: "also holds 0000:3c:00.0"},
		{name: "functions that the node uses", opts: lan, config: modelhost.Config{Kind: modelhost.IGB, TotalVFs: 7}, change: func(t *testing.T, h *modelhost.Host, _ *adapters) {
			if err := h.WriteFile("/sys/bus/pci/devices/"+nicPCI+"/sriov_drivers_autoprobe", "1"); err != nil {
				t.Fatal(err)
			}
			h.CountByHand(nicPCI, 7)
			h.Up(nicPCI, 2)
		}, vf: 2, ways: "macvtap pf vf", says: "vf2 and those after it are not offered"},
	} {
		c.config.PCI = nicPCI
		h := modelhost.New(c.config)
		x := openedAdapters(t, c.opts, h)
		if c.change != nil {
			c.change(t, h, x)
		}
		devices, problems := readAdapters(t, x)
		var ways []string
		for _, way := range []string{"macvtap", "pf", "vf"} {
			if _, there := devices[nicPCI].Ways[way]; there {
				ways = append(ways, way)
			}
		}
		if got := strings.Join(ways, " "); got != c.ways || devices[nicPCI].Counters["vf"] != c.vf {
			t.Errorf("%s: offered %q with %d functions, want %q with %d", c.name, got, devices[nicPCI].Counters["vf"], c.ways, c.vf)
		}
		if text := problems[c.opts.Fabrics[0].Adapter]; !strings.Contains(text, c.says) {
			t.Errorf("%s: said %q, want %q", c.name, text, c.says)
		}
	}
}

func TestFunctionsThatMembersHaveStayOffered(t *testing.T) {
	h := modelhost.New(modelhost.Config{PCI: nicPCI, Kind: modelhost.IGB, TotalVFs: 7})
	x := openedAdapters(t, config.Agent{Fabrics: []config.FabricPort{{Cell: "lan", Adapter: nicPCI}}, VirtualFunctions: map[string]int{nicPCI: 7}}, h)
	f := fabric.Function{Kind: api.PortVF, Device: nicPCI, Part: "vf0"}
	owner := fabric.FunctionOwner{Assignment: "a", Generation: 1}
	if _, err := x.functions.Assign(t.Context(), owner, f, fabric.FunctionSettings{MAC: "02:00:00:00:00:01"}); err != nil {
		t.Fatal(err)
	}
	if _, err := x.functions.Bind(t.Context(), owner, f, fabric.DriverVFIO); err != nil {
		t.Fatal(err)
	}
	h.Use(nicPCI, 0, "", true)
	if devices, problems := readAdapters(t, x); devices[nicPCI].Counters["vf"] != 7 || problems[nicPCI] != "" {
		t.Errorf("with one function in use, got %+v and problems %q", devices, problems)
	}
}
