package node

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/measure"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// What a packet takes between two members, beside the same links made by hand without any rules, in turn within each round:
//
//	go test -run '^$' -bench TenantPaths -benchtime 101x -exec $PWD/setup/asroot.sh ./internal/fabric/node
//
// "datagrams" are what one thread takes to send and receive one of 64 B, and "tcp" what one way of 8 B or 64 KiB takes. One thread holds both
// ends, so nothing waits for the scheduler. A side's packets a second are the inverse of its time for a datagram.
func BenchmarkTenantPaths(b *testing.B) {
	for _, s := range []scene{
		{"one node", []side{
			{"by-hand", newWayByHand},
			{"shortcut", oneNode(false, nil)},
			{"bridge", oneNode(true, nil)},
			{"4-rules", oneNode(false, fewRules)},
			{"1000-rules", oneNode(false, thousandRules)},
			{"group-rule", oneNode(false, groupRule)},
		}},
		{"two nodes", []side{
			{"by-hand", newTunnelByHand},
			{"shortcut", twoNodes(false, nil)},
			{"bridge", twoNodes(true, nil)},
			{"4-rules", twoNodes(false, fewRules)},
			{"1000-rules", twoNodes(false, thousandRules)},
		}},
		{"routed", []side{
			{"by-hand", newRouteByHand},
			{"bridge", routed(nil)},
			{"4-rules", routed(fewRules)},
			{"1000-rules", routed(thousandRules)},
		}},
		{"tap", []side{
			{"by-hand", newTAPsByHand},
			{"bridge", betweenTAPs(nil)},
			{"4-rules", betweenTAPs(fewRules)},
			{"1000-rules", betweenTAPs(thousandRules)},
		}},
	} {
		b.Run(s.name, func(b *testing.B) {
			needRoot(b)
			var ways []tenantWay
			for _, side := range s.sides {
				ways = append(ways, side.connect(b))
			}
			for _, mode := range ways[0].modes() {
				b.Run(mode, func(b *testing.B) { compareSides(b, s, ways, mode) })
			}
		})
	}
}

// scene is the same connection, made in several ways. The first is the yardstick.
type scene struct {
	name  string
	sides []side
}

type side struct {
	name    string
	connect func(b *testing.B) tenantWay
}

// tenantWay measures what a message takes from one member to another, in µs.
type tenantWay interface {
	modes() []string
	takes(b *testing.B, mode string) float64
}

// compareSides measures all sides in turn, and reports their times and their ratios to the first. 1,000 rules are compared with 4, too.
func compareSides(b *testing.B, s scene, ways []tenantWay, mode string) {
	b.Helper()
	took := make([][]float64, len(ways))
	for round := range b.N {
		for _, at := range turns(len(ways), round) {
			took[at] = append(took[at], ways[at].takes(b, mode))
		}
	}
	for i, side := range s.sides {
		b.ReportMetric(measure.Median(took[i]), side.name+"-µs")
		if i > 0 {
			reportRatio(b, side.name+"/"+s.sides[0].name, took[i], took[0])
		}
	}
	at := func(name string) int { return slices.IndexFunc(s.sides, func(s side) bool { return s.name == name }) }
	reportRatio(b, "1000-rules/4-rules", took[at("1000-rules")], took[at("4-rules")])
	b.ReportMetric(0, "ns/op")
}

// turns returns in which order sides are measured in a round. Another one begins each time, and every other round goes backwards, so that none
// always finds the caches as the same other left them.
func turns(sides, round int) []int {
	var order []int
	for i := range sides {
		order = append(order, (i+round/2)%sides)
	}
	if round%2 == 1 {
		slices.Reverse(order)
	}
	return order
}

// reportRatio reports the median of the rounds' ratios, and its interval of 95%.
func reportRatio(b *testing.B, name string, over, under []float64) {
	b.Helper()
	ratios := make([]float64, len(over))
	for i := range ratios {
		ratios[i] = over[i] / under[i]
	}
	e := measure.MedianInterval(ratios, 0.95)
	b.ReportMetric(e.Value, name)
	b.ReportMetric(e.Low, name+"-low")
	b.ReportMetric(e.High, name+"-high")
}

const (
	datagramsMode = "datagrams"
	shortMode     = "tcp 8 B"
	longMode      = "tcp 64 KiB"
)

func (w guardedWay) modes() []string { return []string{datagramsMode, shortMode, longMode} }

func (w guardedWay) takes(b *testing.B, mode string) float64 {
	b.Helper()
	switch mode {
	case datagramsMode:
		return w.datagrams.perDatagram(b)
	case shortMode:
		return w.stream.roundTrips(b, 8, false)
	case longMode:
		return w.stream.roundTrips(b, 64<<10, false)
	}
	b.Fatalf("no mode %q", mode)
	return 0
}

// groupRules are the rules of the group of both members, nil for none.
type groupRules func(b *testing.B) []securitygroup.Rule

func fewRules(b *testing.B) []securitygroup.Rule      { b.Helper(); return manyRules(b, 2) }
func thousandRules(b *testing.B) []securitygroup.Rule { b.Helper(); return manyRules(b, 500) }
func groupRule(b *testing.B) []securitygroup.Rule {
	b.Helper()
	return parsedRules(b, "in any from group bench")
}

// addGroup gives all these addresses, and the ports of all networks, one group with these rules.
func addGroup(b *testing.B, rules groupRules, members []netip.Addr, networks ...*fabric.Network) {
	b.Helper()
	if rules == nil {
		return
	}
	for _, n := range networks {
		g := fabric.Group{ID: "bench", Rules: rules(b), Members: members}
		for _, p := range n.Ports {
			g.Ports = append(g.Ports, p.ID)
		}
		n.Groups = []fabric.Group{g}
	}
}

func addressesOf(networks ...*fabric.Network) (all []netip.Addr) {
	for _, n := range networks {
		for _, p := range n.Ports {
			all = append(all, p.Address)
		}
	}
	return all
}

// oneNode connects two members of one network on one node.
func oneNode(bridged bool, rules groupRules) func(b *testing.B) tenantWay {
	return func(b *testing.B) tenantWay {
		b.Helper()
		n := newNode(b, Config{NoShortcuts: bridged})
		network := testNetwork(1, 2, 3)
		addGroup(b, rules, addressesOf(&network), &network)
		apply(b, n.fabric, network)
		if !bridged && rules == nil {
			needShortcuts(b, n.fabric)
		}
		return connectBoth(b, attach(b, n.fabric, network, 0).namespace, attach(b, n.fabric, network, 1).namespace, network.Ports[1].Address)
	}
}

// newWayByHand connects two namespaces by a bridge without rules.
func newWayByHand(b *testing.B) tenantWay {
	b.Helper()
	host, one, two := newSpace(b), newSpace(b), newSpace(b)
	mtu := plan.MTU(testNetwork(1), 0)
	host.run(b, fmt.Sprintf("ip link add br0 type bridge mcast_snooping 0; ip link set br0 mtu %d up", mtu))
	for i, member := range []namespace{one, two} {
		plugByHand(b, host, member, i, "br0", fmt.Sprintf("192.0.2.%d", i+1), mtu)
	}
	return connectBoth(b, one, two, netip.MustParseAddr("192.0.2.2"))
}

// plugByHand connects a member to a bridge.
func plugByHand(b *testing.B, host, member namespace, i int, bridge, address string, mtu int) {
	b.Helper()
	host.run(b, fmt.Sprintf("ip link add p%d mtu %d type veth peer name eth0 mtu %[2]d netns %s; ip link set p%[1]d master %[4]s up", i, mtu, member.Path(), bridge))
	member.run(b, fmt.Sprintf("ip link set lo up; ip address add %s/24 dev eth0; ip link set eth0 up", address))
}

// twoNodes connects two members of one network on two nodes.
func twoNodes(bridged bool, rules groupRules) func(b *testing.B) tenantWay {
	return func(b *testing.B) tenantWay {
		b.Helper()
		var members []member
		for i, n := range newNodesAtASwitch(b, Config{NoShortcuts: bridged}) {
			network := testNetwork(3)
			network.Remotes = behind(network, underlayAddress(1-i), 3-i)
			network.Ports = []fabric.Port{testPort(network, 2+i)}
			addGroup(b, rules, []netip.Addr{testPort(network, 2).Address, testPort(network, 3).Address}, &network)
			apply(b, n.fabric, network)
			if !bridged && rules == nil {
				needShortcuts(b, n.fabric)
			}
			members = append(members, attach(b, n.fabric, network, 0))
		}
		return connectBoth(b, members[0].namespace, members[1].namespace, members[1].port.Address)
	}
}

// newTunnelByHand connects two members by bridges and VXLAN devices without rules.
func newTunnelByHand(b *testing.B) tenantWay {
	b.Helper()
	nodes := newNodesAtASwitch(b, Config{NoShortcuts: true})
	var members []namespace
	const mtu = 65535 - vxlanOverhead
	for i, n := range nodes {
		n.run(b, fmt.Sprintf(`ip link add br0 type bridge mcast_snooping 0; ip link set br0 mtu %[1]d up
			ip link add vx0 mtu %[1]d type vxlan id 7 local %[2]v dstport 4789; bridge fdb append 00:00:00:00:00:00 dev vx0 dst %[3]v; ip link set vx0 master br0 up`,
			mtu, underlayAddress(i), underlayAddress(1-i)))
		members = append(members, newSpace(b))
		plugByHand(b, n.namespace, members[i], 7, "br0", fmt.Sprintf("192.0.2.%d", i+1), mtu)
	}
	return connectBoth(b, members[0], members[1], netip.MustParseAddr("192.0.2.2"))
}

// routed connects members of two networks of a project on one node.
func routed(rules groupRules) func(b *testing.B) tenantWay {
	return func(b *testing.B) tenantWay {
		b.Helper()
		n := newNode(b, Config{})
		one, two := routedNetwork(1, 2), routedNetwork(2, 3)
		addGroup(b, rules, addressesOf(&one, &two), &one, &two)
		apply(b, n.fabric, one, two)
		return connectBoth(b, attach(b, n.fabric, one, 0).namespace, attach(b, n.fabric, two, 0).namespace, two.Ports[0].Address)
	}
}

// routedNetwork is one that is routed, with these members.
func routedNetwork(index int, members ...int) fabric.Network {
	n := testNetwork(index, members...)
	n.Project, n.Routed, n.Pool = "lab", true, netip.MustParsePrefix("10.64.0.0/10")
	return n
}

// newRouteByHand connects members of two bridges, between which the node routes without rules.
func newRouteByHand(b *testing.B) tenantWay {
	b.Helper()
	host, one, two := newSpace(b), newSpace(b), newSpace(b)
	mtu := plan.MTU(routedNetwork(1), 0)
	host.run(b, "sysctl -qw net.ipv4.ip_forward=1")
	for i, member := range []namespace{one, two} {
		host.run(b, fmt.Sprintf("ip link add br%d type bridge mcast_snooping 0; ip link set br%[1]d mtu %d up; ip address add 192.0.%[1]d.254/24 dev br%[1]d", i, mtu))
		plugByHand(b, host, member, i, fmt.Sprintf("br%d", i), fmt.Sprintf("192.0.%d.%d", i, i+1), mtu)
		member.run(b, fmt.Sprintf("ip route add default via 192.0.%d.254", i))
	}
	return connectBoth(b, one, two, netip.MustParseAddr("192.0.1.2"))
}

// tapWay is two virtual machines' ends of TAP devices, and a frame from the first to the second.
type tapWay struct {
	from, to int
	frame    []byte
}

func (tapWay) modes() []string { return []string{datagramsMode} }

// takes returns what it takes to write a frame to one device and to read it from the other, in µs.
func (w tapWay) takes(b *testing.B, _ string) float64 {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pin(0)
	const batches, batch = 24, 32
	buffer := make([]byte, 2048)
	var begun time.Time
	for i := range batches + 4 {
		if i == 4 {
			begun = time.Now()
		}
		for range batch {
			if _, err := unix.Write(w.from, w.frame); err != nil {
				b.Fatal(err)
			}
		}
		for received := 0; received < batch; {
			if n, err := unix.Read(w.to, buffer); err == nil && n == len(w.frame) {
				received++
			}
		}
	}
	return time.Since(begun).Seconds() * 1e6 / (batches * batch)
}

// connectTAPs returns the way of a datagram of 64 B between two machines.
func connectTAPs(b *testing.B, from, to machine) tenantWay {
	b.Helper()
	payload := make([]byte, 64)
	own, _ := net.ParseMAC(from.port.MAC)
	other, _ := net.ParseMAC(to.port.MAC)
	packet := udpPacket(netip.AddrPortFrom(from.port.Address, 2000), netip.AddrPortFrom(to.port.Address, 2001), payload)
	w := tapWay{int(from.queues[0].Fd()), int(to.queues[0].Fd()), append(slices.Clone(vnetHeader), ethernetFrame(other, own, etherIPv4, packet)...)}
	for _, fd := range []int{w.from, w.to} {
		if err := unix.SetNonblock(fd, true); err != nil {
			b.Fatal(err)
		}
	}
	buffer := make([]byte, 2048)
	for deadline := time.Now().Add(markerTimeout); time.Now().Before(deadline); runtime.Gosched() {
		if _, err := unix.Write(w.from, w.frame); err != nil {
			continue
		}
		if n, err := unix.Read(w.to, buffer); err == nil && n == len(w.frame) {
			for err == nil {
				_, err = unix.Read(w.to, buffer)
			}
			return w
		}
	}
	b.Fatal("the machines don't reach each other")
	return nil
}

// betweenTAPs connects two virtual machines' ports on one node.
func betweenTAPs(rules groupRules) func(b *testing.B) tenantWay {
	return func(b *testing.B) tenantWay {
		b.Helper()
		n := newNode(b, Config{})
		network := testNetwork(1, 2, 3)
		addGroup(b, rules, addressesOf(&network), &network)
		apply(b, n.fabric, network)
		return connectTAPs(b, attachMachine(b, n, network, 0, 1), attachMachine(b, n, network, 1, 1))
	}
}

// newTAPsByHand connects two TAP devices by a bridge without rules.
func newTAPsByHand(b *testing.B) tenantWay {
	b.Helper()
	host := newSpace(b)
	network := testNetwork(1, 2, 3)
	mtu := plan.MTU(network, 0)
	host.run(b, fmt.Sprintf("ip link add br0 type bridge mcast_snooping 0; ip link set br0 mtu %d up", mtu))
	var ends []machine
	for i, p := range network.Ports {
		name := fmt.Sprintf("tap%d", i)
		host.run(b, fmt.Sprintf("ip tuntap add %s mode tap vnet_hdr; ip link set %[1]s mtu %d master br0 up", name, mtu))
		m := machine{port: p}
		err := host.Do(func() error {
			file, err := openTAP(name, unix.IFF_TAP|unix.IFF_NO_PI|unix.IFF_VNET_HDR)
			m.queues = append(m.queues, file)
			return cmp.Or(err, awaitForwarding(b.Context(), name))
		})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { m.queues[0].Close() })
		ends = append(ends, m)
	}
	return connectTAPs(b, ends[0], ends[1])
}
