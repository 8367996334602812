package situation

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/state"
)

// nic is what an inspection found of a NIC and of the switch that it heard.
func nic(number int, system, port string) api.NIC {
	n := api.NIC{MAC: macOf(number)}
	if system != "" {
		n.LLDP = &api.Neighbor{Chassis: "c", System: system, Port: port}
	}
	return n
}

func macOf(number int) string { return fmt.Sprintf("52:54:00:00:00:%02x", number) }

// machineWith is a machine that is off, with what its operators say and what was inspected.
func machineWith(name string, said []api.SwitchPort, nics ...api.NIC) *state.Node {
	return &state.Node{Name: name, Machine: &state.Machine{
		Intent: api.MachineIntent{Name: name, Spec: api.MachineSpec{SwitchPorts: said}}, Hardware: &api.Hardware{CPU: api.CPU{Cores: 1}, NICs: nics},
		Record: &api.MachineRecord{Phase: api.MachineOff, Power: api.PowerOff},
	}}
}

func said(number int, port string) []api.SwitchPort {
	return []api.SwitchPort{{MAC: macOf(number), Cell: "lan", Port: port}}
}

func TestTheSwitchPortsOfAMachineAreItsOperatorsWordOrItsSwitches(t *testing.T) {
	carried := offer.Site{Metal: true, Switches: map[string]map[string]bool{"lan": {"sw/a": false, "sw/b": false, "sw/m": true}}}
	port := func(number int, at string) api.NodePort {
		return api.NodePort{Name: macOf(number), Fabric: "lan", At: at, Technology: api.FabricEthernet, MAC: macOf(number)}
	}
	for _, tt := range []struct {
		name       string
		node       *state.Node
		others     []*state.Node
		data, boot []api.NodePort
	}{
		{name: "a node that joined by itself", node: &state.Node{Name: "n1", Agent: &api.NodeRecord{Name: "n1"}}},
		{name: "nobody said anything", node: machineWith("n1", nil, nic(1, "", ""))},
		{name: "its switches told it, and it is off", node: machineWith("n1", nil, nic(1, "sw", "m"), nic(2, "sw", "a")), data: []api.NodePort{port(2, "sw/a")}, boot: []api.NodePort{port(1, "sw/m")}},
		{name: "a switch that is not managed told it", node: machineWith("n1", nil, nic(1, "other", "a"), nic(2, "sw", "z"))},
		{name: "its operators said it", node: machineWith("n1", said(2, "sw/b")), data: []api.NodePort{port(2, "sw/b")}},
		{name: "its operators said otherwise than its switch", node: machineWith("n1", said(2, "sw/b"), nic(2, "sw", "a")), data: []api.NodePort{port(2, "sw/b")}},
		{name: "its operators said it of a switch that is not managed", node: machineWith("n1", said(2, "sw/z"), nic(2, "sw", "a"))},
		{name: "the switch told two NICs of one port", node: machineWith("n1", nil, nic(1, "sw", "a"), nic(2, "sw", "a")), data: []api.NodePort{port(1, "sw/a")}},
		{
			name: "two machines heard the same", node: machineWith("n1", nil, nic(1, "sw", "a"), nic(2, "sw", "b")),
			others: []*state.Node{machineWith("n2", nil, nic(3, "sw", "a"))}, data: []api.NodePort{port(2, "sw/b")},
		},
		{
			name: "two machines heard the same to boot from", node: machineWith("n1", nil, nic(1, "sw", "m")),
			others: []*state.Node{machineWith("n2", nil, nic(3, "sw", "m"))}, boot: []api.NodePort{port(1, "sw/m")},
		},
		{
			name: "operators gave another machine what it heard to boot from", node: machineWith("n1", nil, nic(1, "sw", "m")),
			others: []*state.Node{machineWith("n2", said(3, "sw/m"))},
		},
		{
			name: "operators gave another machine what it heard", node: machineWith("n1", nil, nic(1, "sw", "a")),
			others: []*state.Node{machineWith("n2", said(3, "sw/a"))},
		},
		{
			name: "operators gave it what another one heard", node: machineWith("n1", said(1, "sw/a")),
			others: []*state.Node{machineWith("n2", nil, nic(3, "sw", "a"))}, data: []api.NodePort{port(1, "sw/a")},
		},
		{
			name: "operators gave it to both", node: machineWith("n1", said(1, "sw/a")), others: []*state.Node{machineWith("n2", said(3, "sw/a"))},
		},
		{
			name: "another node's agent calls it its own", node: machineWith("n1", nil, nic(1, "sw", "a")),
			others: []*state.Node{{Name: "n2", Agent: &api.NodeRecord{Name: "n2", Capacity: api.NodeCapacity{Ports: []api.NodePort{{Name: "p", Fabric: "lan", At: "sw/a"}}}}}},
		},
	} {
		view := &state.View{Nodes: append([]*state.Node{tt.node}, tt.others...)}
		if diff := cmp.Diff(tt.data, Offer(view, tt.node, carried).Capacity.Ports); diff != "" {
			t.Errorf("%s: offered (-want +got):\n%s", tt.name, diff)
		}
		boot := ProvisioningPorts(view, tt.node, carried)
		if len(boot) == 0 {
			boot = nil
		}
		if diff := cmp.Diff(tt.boot, boot); diff != "" {
			t.Errorf("%s: it boots from (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestAnAgentsPortOnASwitchIsOfferedWhereItIsManaged(t *testing.T) {
	carried := offer.Site{Fabrics: []string{"ib0"}, Switches: map[string]map[string]bool{"lan": {"sw/a": false, "sw/m": true}}}
	n := &state.Node{Name: "n1", Agent: &api.NodeRecord{Name: "n1", Capacity: api.NodeCapacity{Ports: []api.NodePort{
		{Name: "p0", Fabric: "lan", At: "sw/a"}, {Name: "p1", Fabric: "lan", At: "sw/m"}, {Name: "p2", Fabric: "lan", At: "sw/z"}, {Name: "p3", Fabric: "ib0", At: "1", Technology: api.FabricEthernet},
	}}}}
	want := []api.NodePort{{Name: "p0", Fabric: "lan", At: "sw/a", Technology: api.FabricEthernet}, {Name: "p3", Fabric: "ib0", At: "1"}}
	if diff := cmp.Diff(want, Offer(&state.View{Nodes: []*state.Node{n}}, n, carried).Capacity.Ports); diff != "" {
		t.Errorf("offered (-want +got):\n%s", diff)
	}
	// Operators gave its port to a machine.
	view := &state.View{Nodes: []*state.Node{n, machineWith("n2", said(3, "sw/a"))}}
	if diff := cmp.Diff(want[1:], Offer(view, n, carried).Capacity.Ports); diff != "" {
		t.Errorf("offered, though a machine has the port (-want +got):\n%s", diff)
	}
	if ports := Offer(view, view.Nodes[1], carried).Capacity.Ports; len(ports) != 1 || ports[0].At != "sw/a" {
		t.Errorf("the machine offers %+v", ports)
	}
}

func TestARoomFollowsTheSwitchPortsOfAMachine(t *testing.T) {
	before, after := machineWith("n1", nil), machineWith("n1", said(1, "sw/a"))
	after.Machine.Hardware = before.Machine.Hardware
	if sameOffer(before, after) || !sameOffer(after, after) {
		t.Error("a node whose ports are others offers the same")
	}
}
