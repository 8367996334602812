package bootagent

import (
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

func TestANICHasItsIPv6AddressAndTheLinkLocalOneAtOnce(t *testing.T) {
	needs.Root(t, "makes a network namespace")
	space, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { space.Close() })
	const mac = "02:6e:00:01:00:02"
	nic := guestlink.Interface{MAC: mac, Name: "eth1"}
	look := func(script string) string {
		t.Helper()
		var out []byte
		if err := space.Do(func() (err error) {
			out, err = exec.CommandContext(t.Context(), "sh", "-ec", script).CombinedOutput()
			return err
		}); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	configure := func() {
		t.Helper()
		// What configureInterface does, but for the carrier: /sys shows the links of another namespace.
		if err := space.Do(func() error { return writeSettings(settings6(nic)) }); err != nil {
			t.Fatal(err)
		}
		look("ip link set eth1 up")
		if !nic.Address6.IsValid() {
			return
		}
		if err := space.Do(func() error {
			link, err := net.InterfaceByName(nic.Name)
			if err != nil {
				return err
			}
			return addAddress6(link.Index, nic.Address6)
		}); err != nil {
			t.Fatal(err)
		}
	}
	look("ip link add eth1 type veth peer name other; ip link set other up; ip link set eth1 address " + mac)
	configure()
	if out := look("ip -6 -o address show dev eth1"); out != "" {
		t.Errorf("without IPv6: got %s", out)
	}
	look("ip link set eth1 down")
	nic.Address6 = netip.MustParsePrefix("fd12:3456:789a:1::2/64")
	configure()
	configure() // again: nothing is wrong with what is there
	// The kernel settles addresses by a worker of its own. Had it asked whether others have them, it would have sent solicitations.
	out := look("timeout 20 sh -c 'while ip -6 -o address show dev eth1 | grep -q tentative; do :; done' || true; ip -6 -o address show dev eth1")
	if !strings.Contains(out, "fd12:3456:789a:1::2/64") || !strings.Contains(out, "fe80::6e:ff:fe01:2/64") || strings.Contains(out, "tentative") || strings.Count(out, "inet6") != 2 {
		t.Errorf("got %s", out)
	}
	if asked := strings.Fields(look("grep Icmp6OutNeighborSolicits /proc/net/dev_snmp6/eth1")); len(asked) != 2 || asked[1] != "0" {
		t.Errorf("the kernel asked whether others have the addresses: %s", asked)
	}
}
