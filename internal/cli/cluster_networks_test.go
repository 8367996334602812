package cli_test

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
)

func TestRatesAndDSCPOfPortsAreGivenByNetwork(t *testing.T) {
	f := newFake(t)
	for want, args := range map[string][]string{
		`--rate "1Gbit" is not NETWORK=MIN-MAX`:                              {"--rate", "1Gbit"},
		"--rate fast=1Gbit: its network is not given: --network fast":        {"--rate", "fast=1Gbit"},
		`--rate storage=fast: "fast" is not a rate in bits per second`:       {"--rate", "storage=fast"},
		`--rate storage=0Mbit: "0Mbit" is out of range`:                      {"--rate", "storage=0Mbit"},
		"minimum rate 2Gbit is above maximum rate 1Gbit":                     {"--rate", "storage=2Gbit-1Gbit"},
		"--rate storage=2Gbit: the network has rates already":                {"--rate", "storage=1Gbit", "--rate", "storage=2Gbit"},
		`--dscp "10" is not NETWORK=DSCP`:                                    {"--dscp", "10"},
		`--dscp storage=64: "64" is not a DSCP; write a number from 0 to 63`: {"--dscp", "storage=64"},
		"--dscp storage=10: the network has a DSCP already":                  {"--dscp", "storage=EF", "--dscp", "storage=10"},
		"--rate can't be given together with a file":                         {"--rate", "storage=1Gbit", "-f", "c1.yaml"},
	} {
		all := append([]string{"cluster", "create"}, args...)
		if args[len(args)-1] != "c1.yaml" {
			all = append(all, "c1", "--network", "storage")
		}
		has(t, f.shell().run(t, all...), cli.ExitUsage, want)
	}
	f.on("POST /v1/clusters", func(_ *http.Request, body string) any {
		var req api.ClusterRequest
		if err := json.Unmarshal([]byte(body), &req); err != nil || len(req.Networks) != 2 || req.Networks[0].Quality != (api.Quality{MinRate: 2e8, MaxRate: 1e9, DSCP: "46"}) ||
			req.Networks[1].Quality != (api.Quality{MinRate: 5e6}) {
			t.Errorf("sent was %s, %v", body, err)
		}
		return api.Cluster{Name: "c1", Spec: api.ClusterSpec{Groups: []api.Group{{Name: "c1", Networks: req.Networks}}}}
	})
	has(t, f.shell().run(t, "cluster", "create", "c1", "--no-wait", "--network", "project/lab", "--network", "storage", "--rate", "project/lab=200Mbit-1Gbit",
		"--rate", "storage=5Mbit-", "--dscp", "project/lab=EF"), 0, "project/lab(200Mbit-1Gbit dscp 46),storage(5Mbit-)")
}

func TestANetworkIsShownWithTheRatesOfItsPorts(t *testing.T) {
	f := newFake(t)
	port := func(member string, q api.Quality) api.NetworkPort {
		return api.NetworkPort{Cluster: "c1", Member: member, Node: "n1", Address: netip.MustParseAddr("10.64.128.2"), Quality: q}
	}
	network := api.NetworkStatus{Network: api.Network{Name: "project/lab"}, Ports: []api.NetworkPort{port("c1-0", api.Quality{MaxRate: 1e9, DSCP: "0"}), port("c1-1", api.Quality{})}}
	f.fixed("GET /v1/networks/{name}", network)
	has(t, f.shell().run(t, "network", "show", "project/lab"), 0, "MAC  RATES  DSCP  STATE\n", "-    1Gbit  0     in use\n", "-    -      -     in use\n")
}

func TestTheOwnNetworksInterfaceAndTechnologyAreGivenWithoutAName(t *testing.T) {
	f := newFake(t)
	for want, args := range map[string][]string{
		"--interface pf: the cluster's own network has interface vf already; give it once":                                                   {"--interface", "vf", "--interface", "pf"},
		`--interface: "vff" is no kind of port; did you mean "vf"?`:                                                                          {"--interface", "vff"},
		"--interface :vf\" is not KIND, such as vf, nor NETWORK:KIND":                                                                        {"--interface", ":vf"},
		"--interface project/ib:vf: its network is not given: --network project/ib":                                                          {"--interface", "project/ib:vf"},
		`--technology: "vlna" is no technology of networks; did you mean "vlan"?`:                                                            {"--technology", "vlna"},
		`--technology: "" is no technology of networks`:                                                                                      {"--technology", ""},
		"--cell: is for clusters with a partition only":                                                                                      {"--cell", "ib0"},
		"--interface vf,numa=x: numa=x is not a number, such as numa=0":                                                                      {"--interface", "vf,numa=x"},
		"--interface vf,nuna=0: \"nuna=0\" says nothing of a port; write standby, pf=ADAPTER, numa=NODE or rail=NUMBER; did you mean numa?":  {"--interface", "vf,nuna=0"},
		"--interface vf,: \"\" says nothing of a port":                                                                                       {"--interface", "vf,"},
		"--interface vf,rail=0,rail=1: rail is given twice; a port is on one adapter":                                                        {"--interface", "vf,rail=0,rail=1"},
		"--interface vf,pf=: pf has no adapter; write its PCI address, such as pf=0000:3b:00.0, or its GUID":                                 {"--interface", "vf,pf="},
		"--interface: \"3b:00.0\" has no PCI domain":                                                                                         {"--interface", "vf,pf=3b:00.0"},
		"--interface: a choice of the adapter is for ports on adapters":                                                                      {"--interface", "veth,rail=0"},
		"--interface: 300 is no rail":                                                                                                        {"--network", "project/ib", "--interface", "project/ib:vf,rail=300"},
		"--interface project/ib:vf,rail=1: its network is not given":                                                                         {"--interface", "project/ib:vf,rail=1"},
		"--egress: is not possible with interface vf":                                                                                        {"--interface", "vf", "--egress"},
		"--technology can't be given together with a file":                                                                                   {"--technology", "vlan", "-f", "c1.yaml"},
		"--cell can't be given together with a file":                                                                                         {"--cell", "ib0", "-f", "c1.yaml"},
		`--interface vf,stanby: "stanby" says nothing of a port; write standby, pf=ADAPTER, numa=NODE or rail=NUMBER; did you mean standby?`: {"--interface", "vf,stanby"},
		"--interface: a standby is for virtual machines":                                                                                     {"--interface", "vf,standby"},
	} {
		all := append([]string{"cluster", "create"}, args...)
		if args[len(args)-1] != "c1.yaml" {
			all = append(all, "c1")
		}
		has(t, f.shell().run(t, all...), cli.ExitUsage, strings.Replace(want, "--interface :vf", `--interface ":vf`, 1))
	}
	var sent api.ClusterRequest
	f.on("POST /v1/clusters", func(_ *http.Request, body string) any {
		sent = api.ClusterRequest{}
		if err := json.Unmarshal([]byte(body), &sent); err != nil {
			t.Error(err)
		}
		return api.Cluster{Name: "c1", Spec: api.ClusterSpec{Technology: api.TechnologyVLAN, Groups: []api.Group{{Name: "c1", Interface: api.InterfaceVF, Networks: sent.Networks}}}}
	})
	has(t, f.shell().run(t, "cluster", "create", "c1", "--no-wait", "--interface", "vf", "--network", "project/ib", "--interface", "project/ib:pf"), 0,
		"Technology:  vlan\n", "vf,project/ib:pf")
	if sent.Interface != api.InterfaceVF || sent.Technology != "" || len(sent.Networks) != 1 || sent.Networks[0].Interface != api.InterfacePF {
		t.Errorf("sent was %+v", sent)
	}
	has(t, f.shell().run(t, "cluster", "create", "c1", "--no-wait", "--interface", "vf,pf=0000:3b:00.0", "--network", "project/ib", "--interface", "project/ib:pf,numa=1,rail=2"), 0,
		"vf,project/ib:pf,numa=1,rail=2")
	if c := sent.Networks[0].Adapter; sent.Adapter.Device != "0000:3b:00.0" || c.NUMANode == nil || *c.NUMANode != 1 || c.Rail == nil || *c.Rail != 2 {
		t.Errorf("sent was %+v", sent)
	}
	has(t, f.shell().run(t, "cluster", "create", "c1", "--no-wait", "--stack", "vm", "--interface", "vf,standby", "--network", "project/wire", "--interface", "project/wire:vf,standby"), 0,
		"vf,project/wire:vf,standby")
	if sent.Interface != api.InterfaceVF || !sent.Standby || len(sent.Networks) != 1 || sent.Networks[0].Interface != api.InterfaceVF || !sent.Networks[0].Standby {
		t.Errorf("sent was %+v", sent)
	}
	has(t, f.shell().run(t, "cluster", "create", "c1", "--no-wait", "--interface", "pf", "--technology", "infiniband", "--cell", "ib0"), 0)
	if sent.Interface != api.InterfacePF || sent.Technology != api.TechnologyInfiniBand || sent.Cell != "ib0" {
		t.Errorf("sent was %+v", sent)
	}
}
