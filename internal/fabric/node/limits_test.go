package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

// limitLab is a node with a network on which the first port has a quality of service and the second has none.
type limitLab struct {
	node    node
	network fabric.Network
	members []member
}

func newLimitLab(t *testing.T, q api.Quality) *limitLab {
	t.Helper()
	needRoot(t)
	lab := &limitLab{node: newNode(t, Config{}), network: testNetwork(1, 2, 3)}
	lab.network.Ports[0].Quality = q
	apply(t, lab.node.fabric, lab.network)
	for i := range lab.network.Ports {
		lab.members = append(lab.members, attach(t, lab.node.fabric, lab.network, i))
	}
	return lab
}

// flood sends more than a megabyte from a member to another at once.
func (lab *limitLab) flood(t *testing.T, from, to member) {
	t.Helper()
	packet := udpPacket(netip.AddrPortFrom(from.port.Address, 9), netip.AddrPortFrom(to.port.Address, 9), make([]byte, floodBytes-42))
	frame := ethernetFrame(to.mac(), from.mac(), etherIPv4, packet)
	if err := from.Do(func() error {
		fd, index, err := packetSocket(memberLink, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		// What waits counts as the socket's; it must not wait for that.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4*floodPackets*floodBytes); err != nil {
			return err
		}
		for range floodPackets {
			if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: index}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A flood takes 16 s at 1 Mbit/s, of which a queue holds 4 s.
const (
	floodPackets = 50
	floodBytes   = 40_000
)

// counters are those of a queue or a class, as tc(8) prints them.
type counters struct{ bytes, dropped, overlimits int }

func (n namespace) counters(t *testing.T, list string) counters {
	t.Helper()
	var c counters
	text := n.run(t, list)
	if _, after, ok := strings.Cut(text, "Sent "); ok {
		var packets int
		if _, err := fmt.Sscanf(after, "%d bytes %d pkt (dropped %d, overlimits %d", &c.bytes, &packets, &c.dropped, &c.overlimits); err == nil {
			return c
		}
	}
	t.Fatalf("%s: no counters in:\n%s", list, text)
	return c
}

func (lab *limitLab) sent(t *testing.T) counters {
	t.Helper()
	return lab.node.counters(t, "tc -s class show dev nmifb | sed -n '/leaf/,/^$/p'")
}

func (lab *limitLab) received(t *testing.T) counters {
	t.Helper()
	return lab.node.counters(t, "tc -s qdisc show dev "+plan.PortName(lab.network.Ports[0].ID)+" root")
}

func TestAPortSendsAndReceivesNoMoreThanItsMaximum(t *testing.T) {
	lab := newLimitLab(t, api.Quality{MaxRate: 1e6})
	a, b := lab.members[0], lab.members[1]
	mustReach(t, a.namespace, "a member without rates", b.address())
	sent, received := lab.sent(t), lab.received(t)
	if sent.bytes == 0 || sent.dropped > 0 || received.bytes == 0 || received.dropped > 0 {
		t.Fatalf("after an echo request, sent are %+v and received are %+v", sent, received)
	}
	lab.flood(t, a, b)
	if now := lab.sent(t); now.dropped == 0 || now.overlimits == sent.overlimits || now.bytes-sent.bytes > floodPackets*floodBytes/2 {
		t.Errorf("of a flood from the port, its class passed or keeps too much: %+v, before %+v", now, sent)
	}
	if now := lab.received(t); now.dropped > 0 {
		t.Errorf("a flood from the port is counted as one to it: %+v", now)
	}
	lab.flood(t, b, a)
	if now := lab.received(t); now.dropped == 0 || now.overlimits == received.overlimits || now.bytes-received.bytes > floodPackets*floodBytes/2 {
		t.Errorf("of a flood to the port, its queue passed or keeps too much: %+v, before %+v", now, received)
	}
}

func TestTheMaximumHoldsForVirtualMachines(t *testing.T) {
	needRoot(t)
	for _, queues := range []int{1, 3} {
		n := newNode(t, Config{})
		lab := &limitLab{node: n, network: testNetwork(1, 2, 3)}
		lab.network.Ports[0].Quality = api.Quality{MaxRate: 1e6, DSCP: "10"}
		apply(t, n.fabric, lab.network)
		vm, b := attachMachine(t, n, lab.network, 0, queues), attach(t, n.fabric, lab.network, 1)
		mac, _ := net.ParseMAC(vm.port.MAC)
		packet := func(data []byte) []byte {
			return ethernetFrame(b.mac(), mac, etherIPv4, udpPacket(netip.AddrPortFrom(vm.port.Address, 9), netip.AddrPortFrom(b.port.Address, 9), data))
		}
		l := b.listen(t, memberLink)
		text := token()
		vm.send(t, queues-1, packet([]byte(text)))
		frames, ok := l.until(text, markerTimeout)
		if !ok {
			t.Fatalf("%d queues: a frame of a virtual machine with rates did not arrive", queues)
		}
		if got := service(frames[len(frames)-1]); got != 10<<2 {
			t.Errorf("%d queues: a frame of a virtual machine with DSCP 10 has the type of service %#x", queues, got)
		}
		for i := range floodPackets {
			vm.send(t, i%queues, packet(make([]byte, floodBytes)))
		}
		if now := lab.sent(t); now.dropped == 0 {
			t.Errorf("%d queues: of a flood from the port nothing was dropped: %+v", queues, now)
		}
		other := member{b.namespace, vm.port} // only its identity is needed
		lab.flood(t, b, other)
		if now := lab.received(t); now.dropped == 0 {
			t.Errorf("%d queues: of a flood to the port nothing was dropped: %+v", queues, now)
		}
		lab.network.Ports[0].Quality = api.Quality{}
		apply(t, n.fabric, lab.network)
		name := plan.PortName(vm.port.ID)
		if got := n.run(t, "tc qdisc show dev "+name+"; tc filter show dev "+name+" ingress"); strings.Contains(got, "tbf") || strings.Contains(got, "clsact") || queues > 1 && strings.Contains(got, "mq") {
			t.Errorf("%d queues: left over of the limits is:\n%s", queues, got)
		}
		mustReachMachine(t, vm, b)
	}
}

// mustReachMachine checks that a packet to the machine arrives at its first queue or another.
func mustReachMachine(t *testing.T, vm machine, b member) {
	t.Helper()
	l := b.listen(t, memberLink)
	mac, _ := net.ParseMAC(vm.port.MAC)
	text := token()
	vm.send(t, 0, ethernetFrame(b.mac(), mac, etherIPv4, udpPacket(netip.AddrPortFrom(vm.port.Address, 9), netip.AddrPortFrom(b.port.Address, 9), []byte(text))))
	if _, ok := l.until(text, markerTimeout); !ok {
		t.Error("a frame of a virtual machine whose limits were removed did not arrive")
	}
}

// service is the type of service of a frame with an IPv4 packet, and checks the header's checksum: 0xff if that is wrong.
func service(frame []byte) byte {
	if len(frame) < 34 || binary.BigEndian.Uint16(frame[12:]) != etherIPv4 || checksum(frame[14:34]) != 0 {
		return 0xff
	}
	return frame[15]
}

// marked is a packet with a type of service, and the text in it.
func marked(from, to member, service byte) (frame []byte, text string) {
	text = token()
	packet := udpPacket(netip.AddrPortFrom(from.port.Address, 9), netip.AddrPortFrom(to.port.Address, 9), []byte(text))
	packet[1], packet[10], packet[11] = service, 0, 0
	binary.BigEndian.PutUint16(packet[10:], checksum(packet[:20]))
	return ethernetFrame(to.mac(), from.mac(), etherIPv4, packet), text
}

func TestPacketsFromAPortHaveItsMarkAndNoOther(t *testing.T) {
	for name, q := range map[string]api.Quality{"DSCP alone": {DSCP: "10"}, "DSCP with rates": {DSCP: "10", MaxRate: 1e9}, "DSCP 0": {DSCP: "0"}} {
		lab := newLimitLab(t, q)
		a, b := lab.members[0], lab.members[1]
		atA, atB := a.listen(t, memberLink), b.listen(t, memberLink)
		arrives := func(from, to member, l listener, sent, want byte) {
			t.Helper()
			frame, text := marked(from, to, sent)
			from.send(t, memberLink, frame)
			frames, ok := l.until(text, markerTimeout)
			if !ok {
				t.Errorf("%s: a packet with type of service %#x did not arrive", name, sent)
			} else if got := service(frames[len(frames)-1]); got != want {
				t.Errorf("%s: a packet with type of service %#x arrived with %#x, want %#x", name, sent, got, want)
			}
		}
		for sent, ecn := range map[byte]byte{0: 0, 46 << 2: 0, 46<<2 | 3: 3, 1: 1, 10 << 2: 0} {
			arrives(a, b, atB, sent, byte(q.DSCP.Number())<<2|ecn)
			arrives(b, a, atA, sent, sent)
		}
	}
}

func TestAMarkIsOnTheOutsideOfATunnelOfItsPortsPacketsOnly(t *testing.T) {
	withAndWithoutEgress(t, func(t *testing.T, lab underlayLab) {
		network := lab.networks[0]
		network.Ports = append(network.Ports, testPort(network, 12))
		network.Ports[0].Quality = api.Quality{DSCP: "10"}
		apply(t, lab.nodes[0].fabric, network)
		plain := attach(t, lab.nodes[0].fabric, network, 1)
		theirs := lab.networks[1]
		theirs.Remotes = behind(theirs, underlayAddress(0), 2, 12)
		apply(t, lab.nodes[1].fabric, theirs)
		l := lab.nodes[1].listen(t, "under0")
		for who, from := range map[string]member{"the port with a mark": lab.members[0], "a port without": plain} {
			want := byte(0)
			if from.port.ID == network.Ports[0].ID {
				want = 10 << 2
			}
			frame, text := marked(from, lab.members[1], 46<<2)
			from.send(t, memberLink, frame)
			frames, ok := l.until(text, markerTimeout)
			if !ok {
				t.Fatalf("a packet of %s did not arrive", who)
			}
			if got := service(frames[len(frames)-1]); got != want {
				t.Errorf("the outer packet of %s has the type of service %#x, want %#x", who, got, want)
			}
		}
		mustReach(t, lab.members[0].namespace, "a member on another node", lab.members[1].address())
		if drifts, err := lab.nodes[0].fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
			t.Errorf("found are %v, %v", drifts, err)
		}
	})
}

func TestNothingPassesThePinsByWayOfTheQueues(t *testing.T) {
	lab := newLimitLab(t, api.Quality{MaxRate: 1e9, DSCP: "10"})
	a, b := lab.members[0], lab.members[1]
	foreign := testPort(lab.network, 9)
	stranger := net.HardwareAddr{0x02, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa}
	own, to := netip.AddrPortFrom(a.port.Address, 9), netip.AddrPortFrom(b.port.Address, 9)
	l := b.listen(t, memberLink)
	var forbidden []string
	put := func(make func(text string) []byte) {
		text := token()
		forbidden = append(forbidden, text)
		a.send(t, memberLink, make(text))
	}
	put(func(text string) []byte {
		return ethernetFrame(b.mac(), a.mac(), etherIPv4, udpPacket(netip.AddrPortFrom(foreign.Address, 9), to, []byte(text)))
	})
	put(func(text string) []byte {
		return ethernetFrame(b.mac(), stranger, etherIPv4, udpPacket(own, to, []byte(text)))
	})
	put(func(text string) []byte {
		return ethernetFrame(b.mac(), a.mac(), etherARP, arpPacket(2, a.mac(), foreign.Address, b.mac(), b.port.Address, text))
	})
	put(func(text string) []byte {
		return tagged(unix.ETH_P_8021Q, ethernetFrame(b.mac(), a.mac(), etherIPv4, udpPacket(own, to, []byte(text))))
	})
	frame, text := marked(a, b, 0)
	a.send(t, memberLink, frame)
	frames, ok := l.until(text, markerTimeout)
	if !ok {
		t.Fatal("a permitted frame did not arrive")
	}
	for i, text := range forbidden {
		if contains(frames, text) {
			t.Errorf("forbidden frame %d arrived", i)
		}
	}
	if open, err := lab.node.fabric.observe(t.Context()); err != nil || open.OpenShortcuts[plan.PortName(a.port.ID)] != (plan.Shortcut{}) {
		t.Errorf("the port has a shortcut past the queues, or %v", err)
	}
}

func TestWhatSomebodyChangedInLimitsIsFoundAndRepaired(t *testing.T) {
	lab := newLimitLab(t, api.Quality{MinRate: 1e8, MaxRate: 1e9, DSCP: "10"})
	name := plan.PortName(lab.network.Ports[0].ID)
	class := "$(tc class show dev nmifb | sed -n 's/class htb \\(6e6d:[0-9a-f]*0\\) .*/\\1/p')"
	for what, script := range map[string]string{
		"removed the queues":            "tc qdisc del dev nmifb root",
		"removed the device":            "ip link del nmifb",
		"set the device down":           "ip link set nmifb down",
		"put the device elsewhere":      "ip link del nmifb; ip link add nmifb type bridge",
		"replaced the queues":           "tc qdisc del dev nmifb root; tc qdisc add dev nmifb root handle 6e6d: tbf rate 1mbit burst 99999 latency 50ms",
		"changed the parent":            "tc class change dev nmifb parent 6e6d: classid 6e6d:1 htb rate 1mbit",
		"changed a class":               "tc class change dev nmifb parent 6e6d:1 classid " + class + " htb rate 100mbit ceil 2gbit",
		"changed the burst of a class":  "tc class change dev nmifb parent 6e6d:1 classid " + class + " htb rate 100mbit ceil 1gbit burst 9000000",
		"changed the queue of a class":  "tc qdisc replace dev nmifb parent " + class + " handle 9: bfifo limit 99999999",
		"added a class":                 "tc class add dev nmifb parent 6e6d:1 classid 6e6d:70 htb rate 1mbit",
		"removed the program":           "tc filter del dev " + name + " ingress",
		"removed the place of programs": "tc qdisc del dev " + name + " clsact",
		"removed the queue to the port": "tc qdisc del dev " + name + " root",
		"changed the queue to the port": "tc qdisc replace dev " + name + " root handle 6e6e: tbf rate 2gbit burst 1000000 latency 50ms",
		"replaced that queue":           "tc qdisc del dev " + name + " root; tc qdisc add dev " + name + " root handle 6e6e: bfifo limit 99999",
		"limited another port":          "tc qdisc replace dev " + plan.PortName(lab.network.Ports[1].ID) + " root handle 6e6e: tbf rate 2mbit burst 100000 latency 50ms",
	} {
		lab.node.run(t, script)
		if drifts, err := lab.node.fabric.Audit(t.Context()); err != nil || len(drifts) == 0 {
			t.Errorf("somebody %s: found are %v, %v", what, drifts, err)
		}
		if err := lab.node.fabric.Apply(t.Context(), []fabric.Network{lab.network}); err != nil {
			t.Errorf("somebody %s: the repair: %v", what, err)
			continue
		}
		if drifts, err := lab.node.fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
			t.Errorf("somebody %s, after the repair: found are %v, %v", what, drifts, err)
		}
		before := lab.sent(t)
		mustReach(t, lab.members[0].namespace, "another member, after somebody "+what+",", lab.members[1].address())
		if now := lab.sent(t); now.bytes == before.bytes {
			t.Errorf("somebody %s, after the repair: packets of the port don't take its class", what)
		}
	}
}

func TestLimitsOutliveTheProcessAndLeaveNothing(t *testing.T) {
	lab := newLimitLab(t, api.Quality{MaxRate: 1e9, DSCP: "10"})
	list := "tc filter show dev " + plan.PortName(lab.network.Ports[0].ID) + " ingress; tc class show dev nmifb; tc qdisc show | grep -v clsact"
	before := lab.node.run(t, list)
	lab.node.fabric = newFabric(t, lab.node.namespace, Config{})
	apply(t, lab.node.fabric, lab.network)
	if after := lab.node.run(t, list); after != before || !strings.Contains(before, "nearmetal-rate") {
		t.Errorf("a new process changed the limits from\n%sto\n%s", before, after)
	}
	lab.network.Ports[0].Quality = api.Quality{}
	apply(t, lab.node.fabric, lab.network)
	if left := lab.node.run(t, "tc qdisc show; ip link"); strings.Contains(left, "htb") || strings.Contains(left, "tbf") || strings.Contains(left, "nmifb") {
		t.Errorf("left over is:\n%s", left)
	}
	mustReach(t, lab.members[0].namespace, "another member", lab.members[1].address())
}

func TestAPortWithRatesIsRefusedWhereTheKernelCannotLimitIt(t *testing.T) {
	needRoot(t)
	n := newNode(t, Config{})
	good := n.fabric.limits.probe
	n.fabric.limits.probe = func() error { return errors.New("no such queue") }
	network := testNetwork(1, 2, 3)
	network.Ports[0].Quality = api.Quality{MaxRate: 1e9}
	apply(t, n.fabric, network)
	space := newSpace(t)
	err := n.fabric.Attach(context.Background(), network.Ports[0], fabric.Namespace(space.Path()))
	if !errors.Is(err, fabric.ErrUnshaped) || !strings.Contains(err.Error(), "no such queue") {
		t.Errorf("attaching a port with rates: got %v, want ErrUnshaped with the kernel's refusal", err)
	}
	b := attach(t, n.fabric, network, 1)
	n.fabric.limits.probe = good
	apply(t, n.fabric, network)
	mustReach(t, attach(t, n.fabric, network, 0).namespace, "another member", b.address())
}

func TestPortsShareWhatTheUplinkCarries(t *testing.T) {
	needRoot(t)
	n := newNode(t, Config{Config: plan.Config{UplinkRate: 4e9}})
	network := testNetwork(1, 2, 3)
	network.Ports[0].Quality, network.Ports[1].Quality = api.Quality{MinRate: 3e9}, api.Quality{MinRate: 1e9}
	apply(t, n.fabric, network)
	attach(t, n.fabric, network, 0)
	attach(t, n.fabric, network, 1)
	classes := n.run(t, "tc class show dev nmifb")
	for _, want := range []string{"class htb 6e6d:1 root rate 4Gbit ceil 4Gbit", "rate 3Gbit ceil 4Gbit", "rate 1Gbit ceil 4Gbit"} {
		if !strings.Contains(classes, want) {
			t.Errorf("%q is not in:\n%s", want, classes)
		}
	}
}

func TestAPortWithRatesReachesTheOutside(t *testing.T) {
	lab := newEgressLab(t)
	lab.networks[0].Ports[0].Quality = api.Quality{MaxRate: 1e9, DSCP: "10"}
	apply(t, lab.node.fabric, lab.networks...)
	mustReach(t, lab.members[0].namespace, "the outside", internet)
	if classes := lab.node.run(t, "tc -s class show dev nmifb"); !strings.Contains(classes, "leaf") || strings.Contains(classes, "Sent 0 bytes") {
		t.Errorf("the packets took no class:\n%s", classes)
	}
}
