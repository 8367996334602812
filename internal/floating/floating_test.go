package floating

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestAPoolIsRefusedThatNoHostCouldHaveOrThatSomethingElseHas(t *testing.T) {
	tenants := netip.MustParsePrefix("10.64.0.0/10")
	for _, tt := range []struct {
		prefixes []string
		want     string // part of the error, "" for none
	}{
		{nil, ""},
		{[]string{"192.0.2.0/28", "198.51.100.7/32"}, ""},
		{[]string{"192.0.2.0"}, "is not an IPv4 prefix"},
		{[]string{"2001:db8::/64"}, "is not an IPv4 prefix"},
		{[]string{"192.0.2.1/28"}, "did you mean 192.0.2.0/28?"},
		{[]string{"11.0.0.0/8"}, "too large"},
		{[]string{"127.0.0.0/24"}, "no host may have"},
		{[]string{"224.0.0.0/24"}, "no host may have"},
		{[]string{"10.65.0.0/24"}, "overlaps 10.64.0.0/10"},
		{[]string{"192.0.2.0/28", "192.0.2.8/29"}, "overlaps 192.0.2.0/28"},
	} {
		_, err := NewPool(tt.prefixes, tenants)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%v: got %v, want %q", tt.prefixes, err, tt.want)
		}
	}
}

func TestThePoolLeavesOutAddressesThatMayBeTheNetworksOwn(t *testing.T) {
	p, err := NewPool([]string{"192.0.2.0/30", "198.51.100.7/32"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for a := range p.All() {
		got = append(got, a.String())
	}
	if want := []string{"192.0.2.1", "192.0.2.2", "198.51.100.7"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for address, want := range map[string]bool{"192.0.2.0": false, "192.0.2.3": false, "192.0.2.2": true, "192.0.2.4": false, "198.51.100.7": true} {
		if got := p.Has(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: got %v, want %v", address, got, want)
		}
	}
}

func TestForwardedPortsAreWrittenInOneForm(t *testing.T) {
	got, err := NormalPorts([]string{"udp/53", "tcp/2222=22", "tcp/80=8080", "tcp/53"})
	if want := []string{"tcp/53=53", "tcp/80=8080", "tcp/2222=22", "udp/53=53"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, tt := range []struct{ ports, want string }{
		{"22", "is not a forwarded port"},
		{"sctp/22=22", "is not a forwarded port"},
		{"tcp/0=22", "ports are 1 to 65535"},
		{"tcp/22=65536", "ports are 1 to 65535"},
		{"tcp/22=22,tcp/22=23", "tcp/22 is forwarded twice"},
		{strings.Repeat("tcp/1,", 64) + "tcp/1", "at most 64"},
	} {
		if _, err := NormalPorts(strings.Split(tt.ports, ",")); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.ports, err, tt.want)
		}
	}
}

func TestAnAddressLeadsToThePortWithTheDefaultRoute(t *testing.T) {
	networks := map[string]*api.Network{
		"own":     {UID: "own", Egress: true},
		"closed":  {UID: "closed"},
		"project": {UID: "project", Name: api.ProjectNetwork("out"), Egress: true},
		"routed":  {UID: "routed", Name: api.ProjectNetwork("in"), Routed: true},
	}
	for _, c := range []struct {
		ports []string
		want  int
	}{
		{nil, -1},
		{[]string{"closed", "routed"}, -1},
		{[]string{"own"}, 0},
		{[]string{"own", "routed"}, 0},
		{[]string{"closed", "project"}, 1},
		{[]string{"own", "project"}, 1},
		{[]string{"project", "own"}, 0},
		{[]string{"unknown", "own"}, 1},
	} {
		var a api.Assignment
		for _, uid := range c.ports {
			a.Ports = append(a.Ports, api.PortClaim{Network: uid})
		}
		if got := WayOut(&a, func(uid string) *api.Network { return networks[uid] }); got != c.want {
			t.Errorf("with ports on %v: want port %d, got %d", c.ports, c.want, got)
		}
	}
}
