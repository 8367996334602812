package cli_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
)

func TestSwitchPortsOfAMachineAreNamedAndShown(t *testing.T) {
	f := newFake(t)
	n := machineNode("n1", api.MachineOff)
	n.Offer.Stacks = []api.StackCheck{{Stack: api.StackMetal, OK: true}}
	f.fixed("GET /v1/nodes/n1", n)
	f.fixed("PATCH /v1/nodes/n1", n)
	has(t, squeezed(f.shell().run(t, "node", "show", "n1")), 0, "Data network: shared: none of its ports is on a switch that the site manages",
		"Boot network: shared: it boots from no port of a switch that the site manages")

	has(t, f.shell().run(t, "node", "set", "n1", "--switch-port", "52-54-00-00-00-0A=lan:leaf1/swp1", "--switch-port", "52:54:00:00:00:0b=lan:leaf1/Ethernet1/2"), 0, "node n1 is changed")
	requests := f.requests()
	want := `{"spec":{"switch_ports":[{"mac":"52-54-00-00-00-0A","cell":"lan","port":"leaf1/swp1"},{"mac":"52:54:00:00:00:0b","cell":"lan","port":"leaf1/Ethernet1/2"}]}}`
	if got := requests[len(requests)-1]; !strings.Contains(got, want) {
		t.Errorf("asked %s, want %s", got, want)
	}
	has(t, f.shell().run(t, "node", "set", "n1", "--switch-port", ""), 0)
	requests = f.requests()
	if got := requests[len(requests)-1]; !strings.Contains(got, `{"spec":{"switch_ports":[]}}`) {
		t.Errorf("asked %s, want no ports", got)
	}
	for _, bad := range []string{"leaf1/swp1", "52:54:00:00:00:0a=leaf1/swp1", "52:54:00:00:00:0a=lan:swp1", "=lan:leaf1/swp1"} {
		has(t, f.shell().run(t, "node", "set", "n1", "--switch-port", bad), cli.ExitUsage, "write MAC=CELL:SWITCH/PORT")
	}
	has(t, f.shell().run(t, "node", "set", "n1", "--switch-port", "x=lan:leaf1/swp1"), cli.ExitUsage, "--switch-port[0].mac", "is not a MAC address")

	n.Offer.Capacity.Ports = []api.NodePort{{Name: "52:54:00:00:00:0a", Fabric: "lan", At: "leaf1/swp1", Technology: api.FabricEthernet}, {Name: "p0", Fabric: "ib0", At: "1"}}
	n.Machine.ProvisioningPorts = []api.NodePort{{Name: "52:54:00:00:00:01", Fabric: "lan", At: "leaf1/swp11", Technology: api.FabricEthernet}}
	g := newFake(t)
	g.fixed("GET /v1/nodes/n1", n)
	has(t, squeezed(g.shell().run(t, "node", "show", "n1")), 0, "Data network: lan:leaf1/swp1 (52:54:00:00:00:0a)", "Boot network: lan:leaf1/swp11 (52:54:00:00:00:01)")
}

func TestAClusterOfWholeMachinesSaysWhereItsNetworkIsShared(t *testing.T) {
	for _, tt := range []struct {
		technology api.Technology
		stack      api.Stack
		shared     bool
	}{{"", api.StackMetal, true}, {api.TechnologyVXLAN, api.StackMetal, true}, {api.TechnologyVLAN, api.StackMetal, false}, {"", api.StackContainer, false}} {
		f := newFake(t)
		f.fixed("GET /v1/clusters/c", api.Cluster{Name: "c", Spec: api.ClusterSpec{Technology: tt.technology, Groups: []api.Group{{Name: "c", Size: 1, Stack: tt.stack}}}})
		text := squeezed(f.shell().run(t, "cluster", "show", "c")).out
		if got := strings.Contains(text, "Data network: shared: no switch keeps the Ethernet ports of its whole machines apart from others"); got != tt.shared {
			t.Errorf("technology %q, stack %s: it says that its network is shared: %v\n%s", tt.technology, tt.stack, got, text)
		}
	}
}
