package node

import (
	"context"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

// machine is a virtual machine's end of a port: the device, opened as a hypervisor does.
type machine struct {
	*os.File
	port fabric.Port
}

// vnetHeader is before each frame (virtio_net_hdr of linux/virtio_net.h); zeroes ask for nothing.
var vnetHeader = make([]byte, 10)

func attachMachine(t *testing.T, n node, network fabric.Network, i int) machine {
	t.Helper()
	port := network.Ports[i]
	m := machine{port: port}
	if err := n.fabric.Attach(context.Background(), port, fabric.TAP(port)); err != nil {
		t.Fatal(err)
	}
	err := n.Do(func() (err error) {
		if m.File, err = os.OpenFile("/dev/net/tun", os.O_RDWR, 0); err != nil {
			return err
		}
		request, err := unix.NewIfreq(plan.PortName(port.ID))
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		if err := unix.IoctlIfreq(int(m.Fd()), unix.TUNSETIFF, request); err != nil {
			return err
		}
		return awaitForwarding(t.Context(), plan.PortName(port.ID))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func (m machine) send(t *testing.T, frame []byte) {
	t.Helper()
	if _, err := m.Write(append(vnetHeader[:len(vnetHeader):len(vnetHeader)], frame...)); err != nil {
		t.Fatal(err)
	}
}

func TestAVirtualMachineSendsUnderItsOwnIdentityOnly(t *testing.T) {
	needRoot(t)
	n := newNode(t, Config{})
	network := testNetwork(1, 2, 3, 4)
	apply(t, n.fabric, network)
	vm, b := attachMachine(t, n, network, 0), attach(t, n.fabric, network, 1)
	own, _ := net.ParseMAC(vm.port.MAC)
	other, _ := net.ParseMAC(network.Ports[2].MAC)
	frame := func(mac net.HardwareAddr, from netip.Addr) ([]byte, string) {
		text := token()
		return ethernetFrame(b.mac(), mac, etherIPv4, udpPacket(netip.AddrPortFrom(from, 9), netip.AddrPortFrom(b.port.Address, 9), []byte(text))), text
	}
	l := b.listen(t, memberLink)
	var forbidden []string
	wrong := func(frame []byte, text string) {
		vm.send(t, frame)
		forbidden = append(forbidden, text)
	}
	wrong(frame(other, vm.port.Address))
	wrong(frame(own, network.Ports[2].Address))
	wrong(frame(other, network.Ports[2].Address))
	inside, text := frame(own, vm.port.Address)
	wrong(tagged(unix.ETH_P_8021Q, inside), text)
	permitted, end := frame(own, vm.port.Address)
	vm.send(t, permitted)
	frames, ok := l.until(end, markerTimeout)
	if !ok {
		t.Fatal("a permitted frame of a virtual machine did not arrive")
	}
	for i, text := range forbidden {
		if contains(frames, text) {
			t.Errorf("forbidden frame %d arrived", i)
		}
	}
}

func TestAPortsDeviceIsTheOneThatItsRulesKnow(t *testing.T) {
	needRoot(t)
	n := newNode(t, Config{})
	network := testNetwork(1, 2)
	apply(t, n.fabric, network)
	p := network.Ports[0]
	place := fabric.TAP(p)
	place.At = "tap0"
	if err := n.fabric.Attach(context.Background(), p, place); err == nil || !strings.Contains(err.Error(), "is named "+plan.PortName(p.ID)) {
		t.Errorf("a device of another name: %v", err)
	}
	// What a container of this ID had is no device of a virtual machine, and the other way round.
	attach(t, n.fabric, network, 0)
	for range 2 {
		if err := n.fabric.Attach(context.Background(), p, fabric.TAP(p)); err != nil {
			t.Fatal(err)
		}
	}
	if got := n.run(t, "ip -d -o link show "+plan.PortName(p.ID)); !strings.Contains(got, "tun type tap") || !strings.Contains(got, "persist on") || !strings.Contains(got, "master nmbr1") {
		t.Errorf("after a container the machine's device is: %s", got)
	}
	attach(t, n.fabric, network, 0)
	if got := n.run(t, "ip -d -o link show "+plan.PortName(p.ID)); !strings.Contains(got, " veth ") {
		t.Errorf("after a machine the container's port is: %s", got)
	}
}
