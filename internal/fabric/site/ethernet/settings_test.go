package ethernet

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nearmetal/nearmetal/internal/fabric/site"
)

const good = `
backend: openvswitch
vlans: 100-199
provisioning_vlan: 10
switches:
- name: leaf1
  address: ssl:10.0.0.5:6640
  ca: /etc/ca.pem
  certificate: /etc/own.pem
  key: /etc/own.key
  bridge: br0
  ports: [swp1, swp2]
  provisioning_ports: [Ethernet1/3]
  isolated_vlan: 11
- name: leaf2
  address: unix:/run/openvswitch/db.sock
  bridge: br0
  ports: [swp1]
`

func TestSettingsAreRead(t *testing.T) {
	got, err := Parse([]byte(good), "/d")
	want := Settings{Backend: BackendOpenVSwitch, Directory: "/d", VLANs: "100-199", ProvisioningVLAN: 10, Switches: []SwitchSettings{
		{
			Name: "leaf1", Address: "ssl:10.0.0.5:6640", CA: "/etc/ca.pem", Certificate: "/etc/own.pem", Key: "/etc/own.key", Bridge: "br0", Ports: []string{"swp1", "swp2"},
			ProvisioningPorts: []string{"Ethernet1/3"}, IsolatedVLAN: 11,
		},
		{Name: "leaf2", Address: "unix:/run/openvswitch/db.sock", Bridge: "br0", Ports: []string{"swp1"}},
	}}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(SwitchSettings{})); err != nil || diff != "" {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	if a, b := got.Switches[0].Parking(), got.Switches[1].Parking(); a == b {
		t.Errorf("unused ports of both switches are in VLAN %d: they would hear each other through the link between the switches", a)
	}
	places := map[string]bool{"leaf1/swp1": false, "leaf1/swp2": false, "leaf1/Ethernet1/3": true, "leaf2/swp1": false}
	if diff := cmp.Diff(places, got.Places()); diff != "" {
		t.Errorf("places (-want +got):\n%s", diff)
	}
	got, err = Parse([]byte("backend: linuxbridge\nvlans: 2-9\nswitches: [{name: lab, bridge: nmvb, ports: [a]}]\n"), "/d")
	if err != nil || got.Pool().First != 2 || got.Pool().Last != 9 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestBadSettingsAreRefusedWithTheReason(t *testing.T) {
	for _, tt := range []struct{ replace, by, want string }{
		{"backend: openvswitch", "backend: cisco", `backend "cisco" is unknown; write openvswitch or linuxbridge`},
		{"vlans: 100-199", "vlan: 100-199", `unknown field "vlan"`},
		{"vlans: 100-199", "vlans: 100-5000", "vlans: \"100-5000\" is not a range of VLAN IDs"},
		{"vlans: 100-199", "directory: d", `directory: "d" is not an absolute path`},
		{"provisioning_vlan: 10", "provisioning_vlan: 4095", "provisioning_vlan: 4095 is no VLAN ID"},
		{"provisioning_vlan: 10", "provisioning_vlan: 150", "provisioning_vlan: 150 is in vlans (100-199), which are the tenants'"},
		{"provisioning_vlan: 10", "", "switch leaf1: provisioning_ports need provisioning_vlan"},
		{"isolated_vlan: 11", "isolated_vlan: 10", "isolated_vlan of switch leaf1: 10 is provisioning_vlan, too"},
		{"isolated_vlan: 11", "isolated_vlan: 4094", "the VLAN of unused ports of switch leaf2: 4094 is isolated_vlan of switch leaf1, too"},
		{"isolated_vlan: 11", "isolated_vlan: 5000", "switch leaf1: isolated_vlan: 5000 is no VLAN ID"},
		{"isolated_vlan: 11", "", "and the switch's isolated_vlan, for those that a tenant has"},
		{"name: leaf2", "name: leaf1", `name "leaf1" appears twice`},
		{"name: leaf2", "name: leaf/2", `name "leaf/2" appears twice, or is not made of`},
		{"unix:/run/openvswitch/db.sock", "unix:db.sock", `switch leaf2: address: "unix:db.sock" is none of unix:/PATH`},
		{"unix:/run/openvswitch/db.sock", "ssl:h:1", "an address of kind ssl needs ca, certificate and key"},
		{"ssl:10.0.0.5:6640", "tcp:10.0.0.5:6640", "ca, certificate and key are for an address of kind ssl"},
		{"ca: /etc/ca.pem", "ca: ca.pem", `switch leaf1: ca: "ca.pem" is not an absolute path`},
		{"ports: [swp1, swp2]", "ports: [swp1, swp1]", "port swp1 is named twice"},
		{"[Ethernet1/3]", "[swp1]", "port swp1 is named twice; a port is for networks or for provisioning"},
		{"ports: [swp1]\n", "\n", "switch leaf2: it has neither ports nor provisioning_ports"},
		{"ports: [swp1]\n", "ports: [\"a b\"]\n", `switch leaf2: "a b" is no name of a port`},
		{"ports: [swp1]\n", "ports: [swp1]\n  isolated_vlan: 12\n", "switch leaf2: isolated_vlan is for a switch with provisioning_ports"},
		{"unix:/run/openvswitch/db.sock\n  bridge: br0", "unix:/run/openvswitch/db.sock\n  bridge: \"\"", `switch leaf2: bridge: "" is no name of a bridge`},
		{"backend: openvswitch", "backend: linuxbridge", "switch leaf1: address, ca, certificate and key are for backend openvswitch"},
	} {
		if !strings.Contains(good, tt.replace) {
			t.Fatalf("%q is not in the settings", tt.replace)
		}
		_, err := Parse([]byte(strings.Replace(good, tt.replace, tt.by, 1)), "/d")
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s in place of %s: got %v, want %q", tt.by, tt.replace, err, tt.want)
		}
	}
	for text, want := range map[string]string{
		"backend: openvswitch\nvlans: 2-9\n": "switches: none is named",
		"backend: linuxbridge\nvlans: 2-9\nswitches: [{name: lab, bridge: toolongbridge, ports: [a]}]\n":                     "is longer than 11 characters",
		"backend: linuxbridge\nvlans: 2-9\nswitches: [{name: a, bridge: b, ports: [a]}, {name: b, bridge: b, ports: [b]}]\n": "is that of another switch",
	} {
		if _, err := Parse([]byte(text), "/d"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func TestNetworksThatTheSwitchesCanNotHaveAreRefused(t *testing.T) {
	s, err := Parse([]byte(good), "/d")
	if err != nil {
		t.Fatal(err)
	}
	at := func(number int, limited bool, places ...string) site.Network {
		n := site.Network{Number: number}
		for _, p := range places {
			n.Ports = append(n.Ports, site.Port{At: p, Limited: limited})
		}
		return n
	}
	for want, networks := range map[string][]site.Network{
		"":                                  {at(100, false, "leaf1/swp1", "leaf2/swp1"), at(Isolated, true, "leaf1/Ethernet1/3")},
		"VLAN 99 is not in the fabric's":    {at(99, false)},
		"VLAN 10 is not in the fabric's":    {at(10, false)},
		"none of the ports in the fabric's": {at(100, false, "leaf1/swp9")},
		"can be in one network, and is to":  {at(100, false, "leaf1/swp1"), at(101, false, "leaf1/swp1")},
		"which no network can have":         {at(100, false, "leaf1/Ethernet1/3")},
		"is none of provisioning_ports":     {at(Isolated, true, "leaf1/swp1")},
		"would be a full member":            {at(Isolated, false, "leaf1/Ethernet1/3")},
		"can't be limited to full members":  {at(100, true, "leaf1/swp1")},
		"network number -1 is not positive": {at(-1, false)},
		"or appears twice":                  {at(100, false, "leaf1/swp1", "leaf1/swp1")},
	} {
		err := s.Check(networks)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", networks, err, want)
		}
	}
}
