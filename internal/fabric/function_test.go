package fabric

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// network is one with ports on host numbers 2, 3 and so on, of which the functions given are under the first.
func network(index int, technology api.Technology, ports int, functions ...Function) Network {
	n := Network{Network: api.Network{Index: index, Technology: technology, Prefix: netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/24", index)), Gateway: netip.MustParseAddr(fmt.Sprintf("10.0.%d.1", index))}}
	if technology == api.TechnologyVLAN {
		n.VLAN = 100 + index
	}
	for i := range ports {
		p := Port{ID: fmt.Sprintf("m%d.%d", index, i), Address: netip.MustParseAddr(fmt.Sprintf("10.0.%d.%d", index, i+2)), MAC: fmt.Sprintf("02:6e:00:%02x:00:%02x", index, i+2)}
		if i < len(functions) {
			p.Function = functions[i]
		}
		n.Ports = append(n.Ports, p)
	}
	return n
}

func TestFunctionsAreOnNoBridge(t *testing.T) {
	vf := Function{Kind: api.PortVF, Device: "0000:3b:00.0", Part: "vf0"}
	ib := Function{Kind: api.PortVF, Device: "0000:5e:00.0", Part: "vf0", GUID: "0e6d000000010002"}
	tunnels, mixed := network(1, api.TechnologyVXLAN, 2), network(2, api.TechnologyVLAN, 2, vf)
	alone := network(3, api.TechnologyVLAN, 1, Function{Kind: api.PortPF, Device: "0000:3b:00.1"})
	partition := network(4, api.TechnologyInfiniBand, 1, ib)
	all := []Network{tunnels, mixed, alone, partition}
	if err := Validate(all); err != nil {
		t.Fatal(err)
	}
	got := OnBridges(all)
	if len(got) != 2 || got[0].Index != 1 || got[1].Index != 2 {
		t.Fatalf("bridges are made for %d networks, want those with ports on them: 1 and 2", len(got))
	}
	if n := got[1]; len(n.Ports) != 1 || n.Ports[0].ID != "m2.1" || n.VID() != 102 || len(n.VLANMembers()) != 1 || n.VLANMembers()[0].MAC != "02:6e:00:02:00:02" {
		t.Errorf("the bridge of the VLAN has ports %+v and members %+v on VLAN %d; want the member on the function reached over the VLAN", n.Ports, n.VLANMembers(), n.VID())
	}
	if len(all[1].Ports) != 2 || len(all[1].Remotes) != 0 {
		t.Error("the networks given were changed")
	}
}

func TestAMemberWithAStandbyIsHereAndBeyondTheVLAN(t *testing.T) {
	vf := Function{Kind: api.PortVF, Device: "0000:3b:00.0", Part: "vf0"}
	n := network(2, api.TechnologyVLAN, 2, vf)
	n.Ports[0].Standby = true
	if err := Validate([]Network{n}); err != nil {
		t.Fatal(err)
	}
	got := OnBridges([]Network{n})
	if len(got) != 1 || len(got[0].Ports) != 2 || len(got[0].VLANMembers()) != 1 || got[0].VLANMembers()[0].MAC != n.Ports[0].MAC {
		t.Fatalf("got %+v", got)
	}
	if p := got[0].Ports[0]; p.ID != n.Ports[0].ID || p.OnFunction() || !got[0].Bridged(p) || got[0].Bridged(got[0].Ports[1]) {
		t.Errorf("to the bridge the port is %+v; want one whose frames all pass the bridge", p)
	}
	if again := OnBridges(got); len(again[0].Ports) != 2 || len(again[0].Remotes) != 1 {
		t.Errorf("what is on bridges changes when it is asked for again: %+v", again)
	}
}

// withStandby gives the first port of a network a standby.
func withStandby(n Network) Network {
	n.Ports[0].Standby = true
	return n
}

func TestAFunctionOutOfPlaceIsRefused(t *testing.T) {
	vf := Function{Kind: api.PortVF, Device: "0000:3b:00.0", Part: "vf0"}
	ib := vf
	ib.GUID = "0e6d000000010002"
	for want, networks := range map[string][]Network{
		`can't be on a network of technology "vxlan"`:                       {network(1, api.TechnologyVXLAN, 1, vf)},
		"is on InfiniBand, which can't be bridged":                          {network(1, api.TechnologyInfiniBand, 1)},
		"is on InfiniBand and has no GUID":                                  {network(1, api.TechnologyInfiniBand, 1, vf)},
		"has a standby, and is of kind \"vf\" on technology \"infiniband\"": {withStandby(network(1, api.TechnologyInfiniBand, 1, ib))},
		"has a standby, and is of kind \"\" on technology \"vlan\"":         {withStandby(network(1, api.TechnologyVLAN, 1))},
		"has a standby, and is of kind \"pf\" on technology \"vlan\"":       {withStandby(network(1, api.TechnologyVLAN, 1, Function{Kind: api.PortPF, Device: "0000:3b:00.0"}))},
		"is on a function of no adapter":                                    {network(1, api.TechnologyVLAN, 1, Function{Kind: api.PortVF, Part: "vf0"})},
		`of kind vf has part ""`:                                            {network(1, api.TechnologyVLAN, 1, Function{Kind: api.PortVF, Device: "0000:3b:00.0"})},
		`of kind pf has part "vf0"`:                                         {network(1, api.TechnologyVLAN, 1, Function{Kind: api.PortPF, Device: "0000:3b:00.0", Part: "vf0"})},
		"is on 0000:3b:00.0 vf0, as is port m1.0":                           {network(1, api.TechnologyVLAN, 1, vf), network(2, api.TechnologyInfiniBand, 1, ib)},
	} {
		if err := Validate(networks); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestTheMTUOfAFunctionFollowsItsNetwork(t *testing.T) {
	infiniband := func(p api.Partition) api.Network {
		return api.Network{Technology: api.TechnologyInfiniBand, Partition: p}
	}
	for name, c := range map[string]struct {
		network api.Network
		want    int
	}{
		"Ethernet":                            {api.Network{Technology: api.TechnologyVLAN}, 1500},
		"Ethernet with a chosen MTU":          {api.Network{Technology: api.TechnologyVLAN, MTU: 9000}, 9000},
		"datagrams":                           {infiniband(api.Partition{IPoIB: true}), 2044},
		"datagrams of 4,096 bytes":            {infiniband(api.Partition{IPoIB: true, IPoIBMode: api.IPoIBDatagram, MTUBytes: 4096}), 4092},
		"connected":                           {infiniband(api.Partition{IPoIB: true, IPoIBMode: api.IPoIBConnected}), 65520},
		"connected, beside 4,096-byte groups": {infiniband(api.Partition{IPoIB: true, IPoIBMode: api.IPoIBConnected, MTUBytes: 4096}), 65520},
	} {
		if got := FunctionMTU(c.network); got != c.want {
			t.Errorf("%s: MTU %d, want %d", name, got, c.want)
		}
	}
}
