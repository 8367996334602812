package netboot_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/machine/netboot"
)

func between(from, to string) netboot.Range {
	return netboot.Range{From: netip.MustParseAddr(from), To: netip.MustParseAddr(to)}
}

func TestAWrongNetworkIsRefusedWithWhatIsWrong(t *testing.T) {
	good := func() netboot.Network {
		return netboot.Network{
			Interface: "eth1", Address: netip.MustParsePrefix("10.77.0.1/16"), HTTPPort: 8069, Router: netip.MustParseAddr("10.77.0.254"),
			Machines: between("10.77.1.1", "10.77.1.99"), Strangers: between("10.77.2.1", "10.77.2.99"),
		}
	}
	if err := good().Check(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*netboot.Network){
		"has no interface":                       func(n *netboot.Network) { n.Interface = "" },
		"must be IPv4":                           func(n *netboot.Network) { n.Address = netip.MustParsePrefix("fd00::1/64") },
		"at most 30 bits":                        func(n *netboot.Network) { n.Address = netip.MustParsePrefix("10.77.0.1/31") },
		"HTTP port 0":                            func(n *netboot.Network) { n.HTTPPort = 0 },
		"overlap":                                func(n *netboot.Network) { n.Strangers = between("10.77.1.50", "10.77.2.99") },
		"contains no address":                    func(n *netboot.Network) { n.Machines = between("10.77.1.9", "10.77.1.1") },
		"not within the provisioning network":    func(n *netboot.Network) { n.Machines = between("10.78.1.1", "10.78.1.9") },
		"contains the server's own address":      func(n *netboot.Network) { n.Machines = between("10.77.0.1", "10.77.0.9") },
		"contains the router's address":          func(n *netboot.Network) { n.Machines = between("10.77.0.200", "10.77.0.255") },
		"network's own address or its broadcast": func(n *netboot.Network) { n.Strangers = between("10.77.255.1", "10.77.255.255") },
		"the range for strangers (invalid IP-i":  func(n *netboot.Network) { n.Strangers = netboot.Range{} },
	} {
		n := good()
		change(&n)
		if err := n.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	proxy := good()
	proxy.Proxy, proxy.Machines, proxy.Strangers = true, netboot.Range{}, netboot.Range{}
	if err := proxy.Check(); err != nil {
		t.Errorf("beside another server ranges are not needed: %v", err)
	}
}

func TestAddressesFollowFromTheirPlace(t *testing.T) {
	r := between("10.77.0.250", "10.77.1.5")
	if r.Size() != 12 || r.At(0) != r.From || r.At(11) != r.To || r.At(6) != netip.MustParseAddr("10.77.1.0") || r.At(12).IsValid() || r.At(-1).IsValid() {
		t.Errorf("%d addresses: %s, %s, %s", r.Size(), r.At(0), r.At(6), r.At(11))
	}
}
