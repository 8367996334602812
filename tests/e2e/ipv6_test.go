package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// wantIPv6 checks that members of one cluster, which are not restricted, reach each other by IPv6 and by name, and those of the other cluster as
// its security group says.
func (s *site) wantIPv6(one, two api.Cluster) {
	s.t.Helper()
	var lab api.NetworkStatus
	s.mustJSON(&lab, "network", "show", "project/lab")
	for i := range lab.Ports {
		if p := &lab.Ports[i]; !lab.Prefix6.Contains(p.Address6) || p.Address6 != lab.Address6(p.Address) {
			s.t.Errorf("port %+v has no IPv6 address in %v", p, lab.Prefix6)
		}
	}
	six := func(c api.Cluster, member int) string { return c.Status.Members[member].Networks[0].Address6 }
	name := one.Status.Members[1].Name + "." + one.Name
	answer := s.must("run", one.Name, "--", "bash", "-c", "getent ahostsv6 "+name+" && exec 3<>/dev/tcp/"+six(one, 1)+"/22 && head -c4 <&3")
	if !strings.Contains(answer, six(one, 1)) || !strings.Contains(answer, "SSH-") {
		s.t.Errorf("%s does not reach %s by IPv6 (%s):\n%s", one.Name, name, six(one, 1), answer)
	}
	greets := func() bool {
		return s.cli("run", one.Name, "--", "timeout", "2", "bash", "-c", "exec 3<>/dev/tcp/"+six(two, 1)+"/22 && head -c4 <&3").code == 0
	}
	if greets() {
		s.t.Error("a rule for IPv4 lets IPv6 in")
	}
	if a := s.cli("network", "check", "project/lab", "--from", six(one, 0), "--to", six(two, 1), "--protocol", "tcp", "--port", "22"); a.code != 1 ||
		!strings.Contains(a.out, "no rule of its security groups (web) allows tcp 22 from "+six(one, 0)) {
		s.t.Errorf("the trace: exit code %d, %s%s", a.code, a.out, a.err)
	}
	s.must("security-group", "set", "web", "--add", "in tcp 22 from fd12:3456:789a::/48")
	s.eventually(20*time.Second, "IPv6 passes by a rule for it", greets)
	s.must("security-group", "set", "web", "--remove", "in tcp 22 from fd12:3456:789a::/48")
}

func TestARequestForAnIPv6SubnetIsRefusedWithTheReason(t *testing.T) {
	program(t, ordinary)
	s := startSite(t, 1, "--network-pool6", "2001:db8:1000::/40")
	for _, tt := range []struct {
		code int
		want string
		args []string
	}{
		{0, "2001:db8:1000:1::/64", []string{"one", "--ipv6"}},
		{exitUsage, "length /56: give one of length /64", []string{"x", "--prefix6", "fd12::/56"}},
		{exitUsage, "has bits beyond its length: give fd12::/64", []string{"x", "--prefix6", "fd12::1/64"}},
		{exitUsage, "neither in fd00::/8 (unique local addresses) nor in this site's IPv6 pool, 2001:db8:1000::/40", []string{"x", "--prefix6", "2001:db8:2000::/64"}},
		{exitUsage, "is not an IPv6 prefix", []string{"x", "--prefix6", "10.64.128.0/24"}},
		{exitConflict, `overlaps subnet 2001:db8:1000:1::/64 of network "project/one"`, []string{"x", "--prefix6", "2001:db8:1000:1::/64"}},
	} {
		a := s.cli(append([]string{"network", "create"}, tt.args...)...)
		if a.code != tt.code || !strings.Contains(a.out+a.err, tt.want) {
			t.Errorf("%v: exit code %d, %s%s; want %d with %q", tt.args, a.code, a.out, a.err, tt.code, tt.want)
		}
	}
	s.must("network", "delete", "project/one")
}
