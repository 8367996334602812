package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/node/sriov"
	"github.com/nearmetal/nearmetal/internal/kerneltree"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// adapterRig is this machine with an adapter that has virtual functions. The tests have the machine to themselves.
type adapterRig struct {
	pf, netdev string
	manager    *sriov.Manager
	fabric     *Fabric
	networks   []fabric.Network
}

func newAdapterRig(t *testing.T, functions int) *adapterRig {
	t.Helper()
	needs.Request(t, "NEARMETAL_ADAPTER", "make test-sriov-guest, whose guest has an adapter with virtual functions")
	needRoot(t)
	found, err := filepath.Glob("/sys/bus/pci/drivers/igb/*/sriov_totalvfs")
	if err != nil || len(found) == 0 {
		t.Fatalf("no adapter with virtual functions was found (%v)", err)
	}
	r := &adapterRig{pf: filepath.Base(filepath.Dir(found[0]))}
	interfaces, err := os.ReadDir(filepath.Join(filepath.Dir(found[0]), "net"))
	if err != nil || len(interfaces) != 1 {
		t.Fatalf("adapter %s has the network interfaces %v (%v)", r.pf, interfaces, err)
	}
	r.netdev = interfaces[0].Name()
	link, err := netlink.LinkByName(r.netdev)
	if err == nil {
		err = netlink.LinkSetUp(link) // functions talk to their adapter's driver, which listens while its interface is up
	}
	if err != nil {
		t.Fatal(err)
	}
	if r.manager, err = sriov.Open(sriov.Config{Host: sriov.Kernel{Tree: kerneltree.Tree{Root: "/"}}, Dir: t.TempDir(), Settle: 30 * time.Second, Answer: 30 * time.Second}); err != nil {
		t.Fatal(err)
	}
	if err := r.manager.SetCount(t.Context(), r.pf, functions); err != nil {
		t.Fatal(err)
	}
	if r.fabric, err = New(Config{Functions: r.manager}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.fabric.Close() })
	return r
}

// tenant adds a network on a VLAN with so many ports on functions, from the first index on.
func (r *adapterRig) tenant(vlan, first, ports int) []fabric.Port {
	index := len(r.networks) + 1
	base := netip.AddrFrom4([4]byte{10, byte(64 + index), 0, 0})
	n := fabric.Network{Network: api.Network{Index: index, Technology: api.TechnologyVLAN, VLAN: vlan, Prefix: netip.PrefixFrom(base, 20), Gateway: base.Next()}}
	address := n.Gateway
	for i := range ports {
		address = address.Next()
		n.Ports = append(n.Ports, fabric.Port{
			ID: fmt.Sprintf("uid%d.m-%d.1", index, i), Address: address, MAC: fmt.Sprintf("02:6e:00:%02x:00:%02x", index, i+2), Interface: "eth0",
			Function: fabric.Function{Kind: api.PortVF, Device: r.pf, Part: fabric.Part(first + i)},
		})
	}
	r.networks = append(r.networks, n)
	return n.Ports
}

// pci is the address of a function.
func (r *adapterRig) pci(t *testing.T, f fabric.Function) string {
	t.Helper()
	index, err := f.Index()
	if err != nil {
		t.Fatal(err)
	}
	target, err := os.Readlink(fmt.Sprintf("/sys/bus/pci/devices/%s/virtfn%d", r.pf, index))
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Base(target)
}

// move gives a function to a new network namespace, which plays a container's.
func (r *adapterRig) move(t *testing.T, p fabric.Port) namespace {
	t.Helper()
	space := newSpace(t)
	place := fabric.Place{Kind: api.PortVF, At: r.pci(t, p.Function), Namespace: space.Path()}
	for range 2 { // repeating it is harmless
		if err := r.fabric.Attach(t.Context(), p, place); err != nil {
			t.Fatal(err)
		}
	}
	return space
}

// auditClean reads of every function that nothing of an owner is left on it: driver, MAC, VLAN, owner.
func (r *adapterRig) auditClean(t *testing.T) {
	t.Helper()
	if held := r.manager.Holdings(); len(held) > 0 {
		t.Errorf("functions still have owners: %+v", held)
	}
	link, err := netlink.LinkByName(r.netdev)
	if err != nil {
		t.Fatal(err)
	}
	for _, vf := range link.Attrs().Vfs {
		f := fabric.Function{Device: r.pf, Part: fabric.Part(vf.ID)}
		at, _ := os.Readlink("/sys/bus/pci/devices/" + r.pci(t, f) + "/driver")
		driver := strings.TrimPrefix(at, filepath.Dir(at)+"/")
		if driver != "" || strings.Trim(vf.Mac.String(), "0:") != "" || vf.Vlan != 0 || !vf.Spoofchk {
			t.Errorf("%s is not clean: driver %q, MAC %s, VLAN %d, spoof check %v", f, driver, vf.Mac, vf.Vlan, vf.Spoofchk)
		}
		t.Logf("%s: driver %q, MAC %s, VLAN %d, spoof check %v", f, driver, vf.Mac, vf.Vlan, vf.Spoofchk)
	}
}

func TestAnAdaptersFunctionsGoToMachinesAndComeBackClean(t *testing.T) {
	r := newAdapterRig(t, 7)
	ports := r.tenant(101, 0, 7)
	if err := r.fabric.Apply(t.Context(), r.networks); err != nil {
		t.Fatal(err)
	}
	for _, p := range ports {
		state, err := r.fabric.AttachFunction(t.Context(), p, fabric.DriverVFIO)
		if err != nil {
			t.Fatal(err)
		}
		if state.Driver != fabric.DriverVFIO || state.PCI != r.pci(t, p.Function) {
			t.Errorf("%s: %+v", p.Function, state)
		}
		if _, err := os.Stat("/dev/vfio/" + state.IOMMUGroup); err != nil {
			t.Errorf("%s: %v", p.Function, err)
		}
	}
	link, err := netlink.LinkByName(r.netdev)
	if err != nil {
		t.Fatal(err)
	}
	for i, vf := range link.Attrs().Vfs {
		if vf.Mac.String() != ports[i].MAC || vf.Vlan != 101 || !vf.Spoofchk {
			t.Errorf("function %d: MAC %s, VLAN %d, spoof check %v", i, vf.Mac, vf.Vlan, vf.Spoofchk)
		}
	}
	if wrong, err := r.fabric.Probe(t.Context()); err != nil || len(wrong) > 0 {
		t.Errorf("probe: %v, %v", wrong, err)
	}
	other := ports[0]
	other.ID = "uid9.m-0.1"
	r.networks[0].Ports[0] = other
	if err := r.fabric.Apply(t.Context(), r.networks); err != nil {
		t.Fatal(err)
	}
	if _, err := r.fabric.AttachFunction(t.Context(), other, fabric.DriverVFIO); !errors.Is(err, fabric.ErrFunctionHeld) {
		t.Errorf("a second owner got %v", err)
	}
	for _, p := range ports {
		id := fabric.AssignmentOf(p.ID)
		if id == other.ID {
			id = "uid1.m-0.1"
		}
		if err := r.fabric.Detach(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	r.auditClean(t)
}

func TestTenantsOnOneAdapterReachTheirOwnMembersOnly(t *testing.T) {
	r := newAdapterRig(t, 7)
	red, blue := r.tenant(101, 0, 2), r.tenant(102, 2, 2)
	if err := r.fabric.Apply(t.Context(), r.networks); err != nil {
		t.Fatal(err)
	}
	spaces := map[string]namespace{}
	for _, p := range append(append([]fabric.Port{}, red...), blue...) {
		spaces[p.ID] = r.move(t, p)
	}
	ping := func(from, to fabric.Port, source netip.Addr) string {
		s := spaces[from.ID]
		_, _ = s.try(fmt.Sprintf("ip route replace %v dev eth0", to.Address)) // a direct route each way, so that only the adapter separates them
		out, err := s.try(fmt.Sprintf("busybox ping -c 3 -W 3 -I %v %v", source, to.Address))
		if err != nil {
			return out + err.Error()
		}
		return ""
	}
	if why := ping(red[0], red[1], red[0].Address); why != "" {
		t.Errorf("two members of one tenant can't reach each other: %s", why)
	}
	if why := ping(blue[0], blue[1], blue[0].Address); why != "" {
		t.Errorf("two members of the other tenant can't reach each other: %s", why)
	}
	_, _ = spaces[blue[0].ID].try(fmt.Sprintf("ip route replace %v dev eth0", red[0].Address))
	if why := ping(red[0], blue[0], red[0].Address); why == "" {
		t.Error("members of two tenants reach each other")
	}
	r.spoof(t, spaces, red)
	r.machine(t, spaces, red, blue[0])
	for _, p := range append(append([]fabric.Port{}, red...), blue...) {
		if space, left := spaces[p.ID]; left { // as when a container ends
			if err := space.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.fabric.Detach(t.Context(), p.ID); err != nil {
			t.Fatal(err)
		}
	}
	r.auditClean(t)
}

// spoof sends frames of another address, with the adapter's check and without.
func (r *adapterRig) spoof(t *testing.T, spaces map[string]namespace, ports []fabric.Port) {
	t.Helper()
	for _, check := range []bool{true, false} {
		owner, err := fabric.OwnerOf(ports[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		settings, err := fabric.SettingsOf(r.networks[0], ports[0])
		if err != nil {
			t.Fatal(err)
		}
		settings.SpoofCheck = check
		if _, err := r.manager.Assign(t.Context(), owner, ports[0].Function, settings); err != nil {
			t.Fatal(err)
		}
		link, err := netlink.LinkByName(r.netdev)
		if err != nil || link.Attrs().Vfs[0].Spoofchk != check {
			t.Fatalf("the adapter does not report the spoof check %v (%v)", check, err)
		}
		// QEMU's igb takes the setting and does not act on it (10.0), so that only the side without the check can be shown.
		if got := arrives(t, spaces[ports[0].ID].Handle, spaces[ports[1].ID].Handle, "02:aa:bb:cc:dd:ee", ports[1].MAC); !check && !got {
			t.Error("without the spoof check, a frame of another's address did not arrive")
		} else {
			t.Logf("with the spoof check %v, a frame of another's address arrived: %v", check, got)
		}
	}
}

// arrives reports whether a frame from an address arrives in another namespace.
func arrives(t *testing.T, from, to netns.Handle, source, destination string) (got bool) {
	t.Helper()
	const local = 0x88b5 // for experiments (IEEE 802, 9.2.3)
	open := func() (fd int, err error) {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return 0, err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(local<<8&0xff00|local>>8)); err != nil {
			return 0, err
		}
		return fd, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(local<<8&0xff00 | local>>8), Ifindex: link.Attrs().Index})
	}
	var out, in int
	err := errors.Join(from.Do(func() (err error) { out, err = open(); return err }), to.Do(func() (err error) { in, err = open(); return err }))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(unix.Close(out), unix.Close(in)) }()
	src, _ := net.ParseMAC(source)
	dst, _ := net.ParseMAC(destination)
	frame := append(append(append([]byte{}, dst...), src...), 0x88, 0xb5)
	frame = append(frame, make([]byte, 50)...)
	if err := unix.SetsockoptTimeval(in, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 3}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := unix.Write(out, frame); err != nil {
			t.Fatal(err)
		}
	}
	_, err = unix.Read(in, make([]byte, 2000))
	return err == nil
}
