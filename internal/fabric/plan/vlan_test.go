package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

func TestPlansOfVLANsAreAsWritten(t *testing.T) {
	n := testNetwork(3, 2)
	n.Technology, n.VLAN = api.TechnologyVLAN, 120
	spanning := n
	spanning.Remotes = append(behind(n, "198.18.0.2", 3), behind(n, "198.18.0.3", 4)...)
	fewer := spanning
	fewer.Remotes = spanning.Remotes[:1]
	gateway := testNetwork(4, 2)
	gateway.Remotes = behind(gateway, "198.18.0.2", 3)
	gateway.Side = fabric.VLANSide{VID: 121, Machines: []fabric.VLANMember{{Address: testPort(gateway, 9).Address, MAC: "02:00:00:04:00:99"}}}
	standby := n
	standby.Ports = slices.Clone(n.Ports)
	standby.Ports[0].Function, standby.Ports[0].Standby = fabric.Function{Kind: api.PortVF, Device: "0000:3b:00.0", Part: "vf0"}, true
	small := spanning
	small.MTU = 9001
	m := newMachine()
	m.TrunkMTU = 1500
	cfg := planConfig
	cfg.Trunk = "trunk0"
	var b strings.Builder
	step := func(why string, before func(), networks ...fabric.Network) {
		if before != nil {
			before()
		}
		ops, err := Compute(cfg, networks, m.Observed)
		fmt.Fprintf(&b, "=== %s\n", why)
		if err != nil {
			fmt.Fprintf(&b, "error: %v\n", err)
		}
		for _, op := range ops {
			if _, rules := op.(LoadRules); !rules || len(m.Rules) > 0 {
				fmt.Fprintln(&b, op)
			}
			m.execute(op)
		}
	}
	step("with all members here, a network on a VLAN has the trunk's MTU and does not touch the trunk", nil, n)
	step("members on other nodes: the VLAN takes the place of a tunnel, and no shortcut leads there", nil, spanning)
	step("nothing to do", nil, spanning)
	step("a member elsewhere ends", nil, fewer)
	step("somebody changed the VLAN's link", func() {
		m.change("nmvl3", func(l *Link) { l.Master, l.MTU, l.Up, l.MulticastRouter = "", 1400, false, false })
	}, fewer)
	step("somebody replaced the VLAN", func() { m.change("nmvl3", func(l *Link) { l.VID = 121 }) }, fewer)
	step("somebody moved the VLAN to another link", func() { m.change("nmvl3", func(l *Link) { l.Trunk = "trunk1" }) }, fewer)
	step("a member with a function and a standby is pinned on the bridge and beyond the VLAN", nil, standby)
	step("the trunk may take the member's frames by its address, and those of nobody else", func() {
		m.change("nmvl3", func(l *Link) { l.Filters = []string{"02:00:00:03:00:99", standby.Ports[0].MAC} })
	}, standby)
	step("a gateway has a tunnel and a VLAN on one bridge", func() { m.TrunkMTU = 9000 }, gateway)
	step("a trunk that is too small for the network", nil, small)
	step("a trunk that is gone", func() { m.TrunkMTU = 0 }, spanning)
	cfg.Trunk = ""
	step("a node without a trunk", nil, spanning)
	step("nothing is left", nil)
	golden(t, "vlan", b.String())
}

func TestVLANsThatCannotBeEnforcedAreRefused(t *testing.T) {
	good := testNetwork(3, 2)
	good.Technology, good.VLAN = api.TechnologyVLAN, 120
	side := func(address, mac string) fabric.Network {
		n := testNetwork(4, 2)
		n.Remotes = behind(n, "198.18.0.2", 3)
		n.Side = fabric.VLANSide{VID: 121, Machines: []fabric.VLANMember{{Address: netip.MustParseAddr(address), MAC: mac}}}
		return n
	}
	with := func(change func(n *fabric.Network)) fabric.Network { n := good; change(&n); return n }
	const mac = "02:00:00:04:00:99"
	for want, n := range map[string]fabric.Network{
		"VLAN 4095 is out of range":                            with(func(n *fabric.Network) { n.VLAN = 4095 }),
		"VLAN 0 is out of range":                               with(func(n *fabric.Network) { n.VLAN = 0 }),
		"can't be routed":                                      with(func(n *fabric.Network) { n.Routed = true }),
		"can't be encrypted":                                   with(func(n *fabric.Network) { n.Encrypted = true }),
		"can't have VLAN 7 at its side":                        with(func(n *fabric.Network) { n.Side.VID = 7 }),
		`has VLAN 120, but its technology is "vxlan"`:          with(func(n *fabric.Network) { n.Technology = api.TechnologyVXLAN }),
		"10.64.80.9 of a machine on VLAN 121 is not in subnet": side("10.64.80.9", mac),
		"10.64.64.2 of a machine on VLAN 121 is also that":     side("10.64.64.2", mac),
		"10.64.64.3 of a machine on VLAN 121 is also that":     side("10.64.64.3", mac),
		"10.64.64.1 of a machine on VLAN 121 is also that":     side("10.64.64.1", mac),
		"02:00:00:04:00:03 of a machine on VLAN 121 is also":   side("10.64.64.9", "02:00:00:04:00:03"),
		"is not a unicast Ethernet address":                    side("10.64.64.9", "03:00:00:04:00:99"),
	} {
		if err := fabric.Validate([]fabric.Network{n}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	again := testNetwork(5, 2)
	again.Technology, again.VLAN = api.TechnologyVLAN, 120
	if err := fabric.Validate([]fabric.Network{good, again}); err == nil || !strings.Contains(err.Error(), "VLAN 120 is also that of network 3") {
		t.Errorf("got %v, want that network 3 has the VLAN", err)
	}
	if err := fabric.Validate([]fabric.Network{good, side("10.64.64.9", mac)}); err != nil {
		t.Error(err)
	}
}
