// Package netnstest is what tests on the network need: a namespace around the whole test process, and a cable to another one. Start with Run.
package netnstest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/netns"
)

// inside marks the test process that runs in a network namespace of its own.
const inside = "NEARMETAL_TEST_INSIDE"

// Run is for TestMain: it runs the tests in a network namespace of their own, so that sockets open there wherever goroutines run, and returns
// what to exit with. It needs root; without it, or when they need not be apart, the tests run where they are.
func Run(m *testing.M, apart bool) int {
	if !apart || os.Geteuid() != 0 || os.Getenv(inside) != "" {
		return m.Run()
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "in a network namespace:", err)
		return 1
	}
	return 0
}

// Cable joins this namespace with a new one, and returns that: link is here and has the address, far is there and has none. Both are up until
// the test ends.
func Cable(t *testing.T, link, far string, address netip.Prefix) netns.Handle {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	there, err := netns.New()
	must(err)
	t.Cleanup(func() { _ = there.Close() })
	attrs := netlink.NewLinkAttrs()
	attrs.Name = link
	must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: far, PeerNamespace: netlink.NsFd(there.FD())}))
	here, err := netlink.LinkByName(link)
	must(err)
	t.Cleanup(func() { _ = netlink.LinkDel(here) })
	must(netlink.AddrAdd(here, &netlink.Addr{IPNet: &net.IPNet{
		IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), address.Addr().BitLen()),
	}}))
	for _, name := range []string{"lo", link} {
		l, err := netlink.LinkByName(name)
		must(err)
		must(netlink.LinkSetUp(l))
	}
	must(there.Do(func() error {
		nic, err := netlink.LinkByName(far)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(nic)
	}))
	return there
}
