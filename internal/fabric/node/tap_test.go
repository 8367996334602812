package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

// machine is a virtual machine's end of a port: the device's queues, opened as a hypervisor does.
type machine struct {
	queues []*os.File
	port   fabric.Port
}

// vnetHeader is before each frame (virtio_net_hdr of linux/virtio_net.h); zeroes ask for nothing.
var vnetHeader = make([]byte, 10)

func attachMachine(t testing.TB, n node, network fabric.Network, i, queues int) machine {
	t.Helper()
	port := network.Ports[i]
	m := machine{port: port}
	place := fabric.TAP(port)
	place.Queues = queues
	if err := n.fabric.Attach(context.Background(), port, place); err != nil {
		t.Fatal(err)
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if queues > 1 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	err := n.Do(func() error {
		for range queues {
			file, err := openTAP(plan.PortName(port.ID), flags)
			if err != nil {
				return err
			}
			m.queues = append(m.queues, file)
		}
		return awaitForwarding(t.Context(), plan.PortName(port.ID))
	})
	t.Cleanup(func() {
		for _, file := range m.queues {
			file.Close()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// openTAP opens a queue of a device in the network namespace of the thread.
func openTAP(name string, flags uint16) (*os.File, error) {
	file, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(flags)
		err = unix.IoctlIfreq(int(file.Fd()), unix.TUNSETIFF, request)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// send sends a frame by a queue.
func (m machine) send(t *testing.T, queue int, frame []byte) {
	t.Helper()
	if _, err := m.queues[queue].Write(append(vnetHeader[:len(vnetHeader):len(vnetHeader)], frame...)); err != nil {
		t.Fatal(err)
	}
}

func TestAVirtualMachineSendsUnderItsOwnIdentityOnly(t *testing.T) {
	needRoot(t)
	for _, queues := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d queues", queues), func(t *testing.T) { sendsUnderItsOwnIdentityOnly(t, queues) })
	}
}

// sendsUnderItsOwnIdentityOnly sends everything by every queue.
func sendsUnderItsOwnIdentityOnly(t *testing.T, queues int) {
	n := newNode(t, Config{})
	network := testNetwork(1, 2, 3, 4)
	apply(t, n.fabric, network)
	vm, b := attachMachine(t, n, network, 0, queues), attach(t, n.fabric, network, 1)
	own, _ := net.ParseMAC(vm.port.MAC)
	other, _ := net.ParseMAC(network.Ports[2].MAC)
	frame := func(mac net.HardwareAddr, from netip.Addr) ([]byte, string) {
		text := token()
		return ethernetFrame(b.mac(), mac, etherIPv4, udpPacket(netip.AddrPortFrom(from, 9), netip.AddrPortFrom(b.port.Address, 9), []byte(text))), text
	}
	l := b.listen(t, memberLink)
	var forbidden []string
	wrong := func(frame []byte, text string) {
		for queue := range vm.queues {
			vm.send(t, queue, frame)
		}
		forbidden = append(forbidden, text)
	}
	wrong(frame(other, vm.port.Address))
	wrong(frame(own, network.Ports[2].Address))
	wrong(frame(other, network.Ports[2].Address))
	inside, text := frame(own, vm.port.Address)
	wrong(tagged(unix.ETH_P_8021Q, inside), text)
	permitted, end := frame(own, vm.port.Address)
	vm.send(t, queues-1, permitted)
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
	several := fabric.TAP(p)
	several.Queues = 4
	for range 2 {
		if err := n.fabric.Attach(context.Background(), p, several); err != nil {
			t.Fatal(err)
		}
	}
	if got := n.run(t, "ip -d -o link show "+plan.PortName(p.ID)); !strings.Contains(got, " multi_queue ") || !strings.Contains(got, "qdisc noqueue") || !strings.Contains(got, "master nmbr1") {
		t.Errorf("when it shall have several queues the machine's device is: %s", got)
	}
	attach(t, n.fabric, network, 0)
	if got := n.run(t, "ip -d -o link show "+plan.PortName(p.ID)); !strings.Contains(got, " veth ") {
		t.Errorf("after a machine the container's port is: %s", got)
	}
}
