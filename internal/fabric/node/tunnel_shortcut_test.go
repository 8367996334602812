package node

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// newTunnelShortcutLab is newUnderlayLab with a counter of the UDP and TCP frames that pass the bridges, after each member has heard the other.
func newTunnelShortcutLab(t *testing.T) underlayLab {
	t.Helper()
	lab := newUnderlayLab(t, false)
	needShortcuts(t, lab.nodes[0].fabric)
	a, b := lab.members[0], lab.members[1]
	for range 2 {
		for _, way := range [][2]member{{a, b}, {b, a}} {
			frame, text := way[0].marker(way[1])
			mustArrive(t, way[0], way[1], "a first frame", frame, text)
		}
	}
	lab.watch(t)
	return lab
}

// watch counts what passes the bridges.
func (l underlayLab) watch(t *testing.T) {
	t.Helper()
	for _, n := range l.nodes {
		n.run(t, `nft 'table bridge watch { counter seen { }; chain forward { type filter hook forward priority 0; ip protocol { tcp, udp } counter name seen; }; }'`)
	}
}

var packetsSeen = regexp.MustCompile(`packets (\d+)`)

// crossing returns how many frames passed the bridge of each node while f ran.
func (l underlayLab) crossing(t *testing.T, f func()) [2]int {
	t.Helper()
	count := func() (counts [2]int) {
		for i, n := range l.nodes {
			out := n.run(t, "nft list counter bridge watch seen")
			m := packetsSeen.FindStringSubmatch(out)
			if m == nil {
				t.Fatalf("no count in %s", out)
			}
			counts[i], _ = strconv.Atoi(m[1])
		}
		return counts
	}
	before := count()
	f()
	after := count()
	return [2]int{after[0] - before[0], after[1] - before[1]}
}

func TestFramesBetweenMembersOfTwoNodesPassByBothBridges(t *testing.T) {
	lab := newTunnelShortcutLab(t)
	a, b := lab.members[0], lab.members[1]
	for what, f := range map[string]func(){
		"a datagram": func() {
			frame, text := a.marker(b)
			mustArrive(t, a, b, "a datagram", frame, text)
		},
		"a stream": func() { stream(t, a, b, bytes.Repeat([]byte("nearmetal "), 1<<20)) },
	} {
		if got := lab.crossing(t, f); got != [2]int{} {
			t.Errorf("%s: %v frames passed the bridges, want none", what, got)
		}
	}
	for i := range lab.nodes {
		lab.nodes[i].run(t, "nft delete table bridge watch")
		if drifts, err := lab.nodes[i].fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
			t.Errorf("audit of node %d: %v, %v", i, drifts, err)
		}
	}
}

func TestMembersThatComeAndGoLeaveTheOthersTheirShortcut(t *testing.T) {
	lab := newTunnelShortcutLab(t)
	a, b := lab.members[0], lab.members[1]
	for i, n := range lab.nodes {
		n.run(t, "nft delete table bridge watch")
		network := lab.networks[i]
		network.Ports = append(slices.Clone(network.Ports), testPort(network, 10+i))
		network.Remotes = append(slices.Clone(network.Remotes), behind(network, underlayAddress(1-i), 11-i)...)
		apply(t, n.fabric, network)
		attach(t, n.fabric, network, 1)
		apply(t, n.fabric, lab.networks[i])
	}
	lab.watch(t)
	for _, way := range [][2]member{{a, b}, {b, a}} {
		frame, text := way[0].marker(way[1])
		got := lab.crossing(t, func() { mustArrive(t, way[0], way[1], "a datagram", frame, text) })
		if got != [2]int{} {
			t.Errorf("%v frames passed the bridges, want none", got)
		}
	}
}

func TestOneNodeWithShortcutsTalksToOneWithout(t *testing.T) {
	lab := newTunnelShortcutLab(t)
	a, b := lab.members[0], lab.members[1]
	old := newFabric(t, lab.nodes[1].namespace, Config{NoShortcuts: true, Config: plan.Config{Underlay: underlayAddress(1)}})
	apply(t, old, lab.networks[1])
	sent := bytes.Repeat([]byte("nearmetal "), 1<<20)
	for _, way := range [][2]member{{a, b}, {b, a}} {
		got := lab.crossing(t, func() { stream(t, way[0], way[1], sent) })
		if got[0] > 0 || got[1] == 0 {
			t.Errorf("%v frames passed the bridges; want none on the node with shortcuts", got)
		}
	}
}

func TestAMemberWithAnAddressHeardFromElsewhereIsReached(t *testing.T) {
	lab := newTunnelShortcutLab(t)
	a, b := lab.members[0], lab.members[1]
	if err := lab.nodes[1].fabric.Detach(t.Context(), b.port.ID); err != nil {
		t.Fatal(err)
	}
	// The address is given to a port of the first node, one without a shortcut.
	n := lab.networks[0]
	n.Ports = append([]fabric.Port{}, n.Ports...)
	moved := b.port
	moved.ID, moved.Interface = "uid3.c-9.1", "here0"
	n.Ports = append(n.Ports, moved)
	lab.nodes[0].run(t, "nft delete table bridge watch")
	apply(t, lab.nodes[0].fabric, n)
	here := member{lab.nodes[0].namespace, moved}
	if err := lab.nodes[0].fabric.Attach(t.Context(), moved, here.place()); err != nil {
		t.Fatal(err)
	}
	heard := here.listen(t, "here0")
	frame, text := a.marker(here)
	a.send(t, memberLink, frame)
	if _, ok := heard.until(text, markerTimeout); !ok {
		t.Error("a frame to an address that was on another node before did not arrive")
	}
}

func TestAMemberThatMovesToAThirdNodeIsReachedThere(t *testing.T) {
	lab := newTunnelShortcutLab(t)
	a, b := lab.members[0], lab.members[1]
	third := node{lab.stranger, newFabric(t, lab.stranger, Config{Config: plan.Config{Underlay: underlayAddress(2)}})}
	all := lab.networks[0]
	for i, n := range []node{lab.nodes[0], lab.nodes[1], third} {
		if i < 2 {
			n.run(t, "nft delete table bridge watch")
		}
		network := all
		network.Remotes, network.Ports = nil, nil
		for j, host := range map[int]int{0: 2, 2: 3} {
			if j != i {
				network.Remotes = append(network.Remotes, behind(network, underlayAddress(j), host)...)
			}
		}
		if i == 0 {
			network.Ports = lab.networks[0].Ports
		}
		if i == 2 {
			network.Ports = lab.networks[1].Ports
		}
		apply(t, n.fabric, network)
		if i == 2 {
			b = attach(t, n.fabric, network, 0)
		}
	}
	for range 3 {
		frame, text := a.marker(b)
		mustArrive(t, a, b, "a frame to a member that moved", frame, text)
		frame, text = b.marker(a)
		mustArrive(t, b, a, "a frame from a member that moved", frame, text)
	}
}

func TestAFrameOutOfATunnelTakesTheShortcutOnlyIntoItsNetwork(t *testing.T) {
	lab := newTunnelShortcutLab(t)
	out := testNetwork(4, 2)
	for i := range lab.nodes {
		lab.nodes[i].run(t, "nft delete table bridge watch")
	}
	apply(t, lab.nodes[1].fabric, lab.networks[1], out)
	other := attach(t, lab.nodes[1].fabric, out, 0)
	a, b := lab.members[0], lab.members[1]
	heard := other.listen(t, memberLink)
	frame, text := a.marker(other)
	a.send(t, memberLink, frame)
	permitted, end := a.marker(b)
	mustArrive(t, a, b, "a frame behind it", permitted, end)
	own, last := other.marker(other)
	lab.nodes[1].send(t, plan.PortName(other.port.ID), own)
	frames, ok := heard.until(last, markerTimeout)
	if !ok {
		t.Fatal("a frame that the node sent did not arrive")
	}
	if contains(frames, text) {
		t.Error("a frame from another node arrived in another network")
	}
}

func TestShortcutsThroughTunnelsAreMendedAndReplaced(t *testing.T) {
	lab := newTunnelShortcutLab(t)
	n := lab.nodes[0]
	n.run(t, "nft delete table bridge watch")
	tunnel := plan.TunnelName(3)
	for what, meddling := range map[string]string{
		"its program is removed": "tc filter delete dev " + tunnel + " ingress",
		"it is deleted":          "ip link delete " + tunnel,
	} {
		n.run(t, meddling)
		drifts, err := n.fabric.Audit(t.Context())
		if err != nil || len(drifts) == 0 {
			t.Errorf("%s: the audit does not see it: %v, %v", what, drifts, err)
		}
		apply(t, n.fabric, lab.networks[0])
		if drifts, err := n.fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
			t.Errorf("%s: after mending: %v, %v", what, drifts, err)
		}
	}
	before := n.run(t, fmt.Sprintf("tc filter show dev %s ingress", tunnel))
	successor := newFabric(t, n.namespace, Config{Config: plan.Config{Underlay: underlayAddress(0)}})
	apply(t, successor, lab.networks[0])
	if after := n.run(t, fmt.Sprintf("tc filter show dev %s ingress", tunnel)); after == before || after == "" {
		t.Errorf("the next agent left the program of the one before:\n%s", after)
	}
	apply(t, newFabric(t, n.namespace, Config{NoShortcuts: true, Config: plan.Config{Underlay: underlayAddress(0)}}), lab.networks[0])
	if out := n.run(t, fmt.Sprintf("tc filter show dev %s ingress", tunnel)); out != "" {
		t.Errorf("left under an agent that makes no shortcuts:\n%s", out)
	}
}

// crossingDevice returns how many frames the device of the tunnel of each node sent and received while f ran.
func (l underlayLab) crossingDevice(t *testing.T, f func()) [2]uint64 {
	t.Helper()
	count := func() (counts [2]uint64) {
		for i, n := range l.nodes {
			if err := n.Do(func() error {
				link, err := netlink.LinkByName(plan.TunnelName(3))
				if err == nil {
					counts[i] = link.Attrs().Statistics.RxPackets + link.Attrs().Statistics.TxPackets
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		return counts
	}
	before := count()
	f()
	after := count()
	return [2]uint64{after[0] - before[0], after[1] - before[1]}
}

func TestFramesBetweenMembersOfTwoNodesPassByTheTunnelsDevices(t *testing.T) {
	lab := newTunnelShortcutLab(t)
	a, b := lab.members[0], lab.members[1]
	got := lab.crossingDevice(t, func() { stream(t, a, b, bytes.Repeat([]byte("nearmetal "), 1<<20)) })
	const few = 8 // of ARP
	if got[0] > few || got[1] > few {
		t.Errorf("a stream: %v frames passed the devices", got)
	}
	for i := range lab.nodes {
		lab.mustPassTheDevice(t, i, "a datagram", false)
	}
	heard := lab.nodes[1].listen(t, "under0")
	frame, text := a.marker(b)
	mustArrive(t, a, b, "a datagram", frame, text)
	frames, ok := heard.until(text, markerTimeout)
	if !ok {
		t.Fatal("the underlay did not see the datagram")
	}
	wire := frames[len(frames)-1]
	want := slices.Concat([]byte{8, 0, 0, 0, 0, 0, 3, 0}, frame)
	if len(wire) < 42 || !bytes.Equal(wire[42:], want) || checksum(wire[14:34]) != 0 || wire[23] != 17 || !bytes.Equal(wire[36:38], []byte{0x12, 0xb5}) {
		t.Errorf("it is no VXLAN packet with the frame in it:\n% x", wire)
	}
}

// mustPassTheDevice requires that frames for the member on a node come out of the device of its tunnel, or that they don't.
func (l underlayLab) mustPassTheDevice(t *testing.T, i int, what string, pass bool) {
	t.Helper()
	to, from := l.members[i], l.members[1-i]
	for range 2 { // the first is heard
		for _, way := range [][2]member{{from, to}, {to, from}} {
			frame, text := way[0].marker(way[1])
			mustArrive(t, way[0], way[1], what, frame, text)
		}
	}
	heard := l.nodes[i].listen(t, plan.TunnelName(3))
	frame, text := from.marker(to)
	mustArrive(t, from, to, what, frame, text)
	end := token()
	from.send(t, memberLink, ethernetFrame(broadcast, from.mac(), etherARP, arpPacket(1, from.mac(), from.port.Address, make6(), to.port.Address, end)))
	frames, ok := heard.until(end, markerTimeout)
	if !ok {
		t.Fatal("a broadcast did not come out of the device")
	}
	if contains(frames, text) != pass {
		t.Errorf("%s: a datagram came out of the device of node %d's tunnel: %t", what, i, !pass)
	}
}

func TestOthersRulesForTheUnderlayHold(t *testing.T) {
	lab := newTunnelShortcutLab(t)
	for i := range lab.nodes {
		lab.nodes[i].run(t, "nft delete table bridge watch")
	}
	n := lab.nodes[0]
	for _, tt := range []struct{ what, add, remove string }{
		{
			"rules for what comes in", `nft 'table inet theirs { chain input { type filter hook input priority 0; }; }'`, "nft delete table inet theirs",
		},
		{
			"a policy of IPsec", "ip xfrm policy add dir out src 192.0.2.1/32 dst 192.0.2.2/32 action block", "ip xfrm policy flush",
		},
	} {
		if out, err := n.try(tt.add); err != nil {
			t.Logf("%s: not on this kernel: %v: %s", tt.what, err, out)
			continue
		}
		drifts, err := n.fabric.Audit(t.Context())
		if err != nil || len(drifts) == 0 {
			t.Errorf("%s: the audit does not see it: %v, %v", tt.what, drifts, err)
		}
		apply(t, n.fabric, lab.networks[0])
		lab.mustPassTheDevice(t, 0, tt.what, true)
		if out := n.run(t, "tc filter show dev under0 ingress"); out != "" {
			t.Errorf("%s: at the underlay there is still %s", tt.what, out)
		}
		n.run(t, tt.remove)
		apply(t, n.fabric, lab.networks[0])
		lab.mustPassTheDevice(t, 0, "after "+tt.what, false)
	}
	// Rules that drop all of it.
	n.run(t, `nft 'table inet theirs { chain input { type filter hook input priority 0; udp dport 4789 drop; }; }'`)
	apply(t, n.fabric, lab.networks[0])
	a, b := lab.members[0], lab.members[1]
	heard := a.listen(t, memberLink)
	var dropped []string
	for range 3 {
		frame, text := b.marker(a)
		b.send(t, memberLink, frame)
		dropped = append(dropped, text)
	}
	mustReach(t, lab.nodes[1].namespace, "the other node", underlayAddress(0).String())
	own, end := a.marker(a)
	n.send(t, plan.PortName(a.port.ID), own)
	frames, ok := heard.until(end, markerTimeout)
	if !ok {
		t.Fatal("a frame that the node sent did not arrive")
	}
	for _, frame := range frames { // others than these may be the kernels' own
		for _, text := range dropped {
			if bytes.Contains(frame, []byte(text)) {
				t.Errorf("a frame arrived that somebody else's rules drop: %q", frame)
			}
		}
	}
}

func TestWhatIsAtTheUnderlayIsReplacedAndRemoved(t *testing.T) {
	lab := newTunnelShortcutLab(t)
	n := lab.nodes[0]
	n.run(t, "nft delete table bridge watch")
	const show = "tc filter show dev under0 ingress; tc qdisc show dev under0"
	before := n.run(t, show)
	n.run(t, "tc filter delete dev under0 ingress")
	if drifts, err := n.fabric.Audit(t.Context()); err != nil || len(drifts) == 0 {
		t.Errorf("the audit does not see that the program is gone: %v, %v", drifts, err)
	}
	apply(t, n.fabric, lab.networks[0])
	if after := n.run(t, show); after != before {
		t.Errorf("mended:\n%s\nwant\n%s", after, before)
	}
	cfg := Config{Config: plan.Config{Underlay: underlayAddress(0)}}
	successor := newFabric(t, n.namespace, cfg)
	apply(t, successor, lab.networks[0])
	if after := n.run(t, show); after == before || !strings.Contains(after, "nearmetal") {
		t.Errorf("the next agent left the program of the one before:\n%s", after)
	}
	lab.mustPassTheDevice(t, 0, "under the next agent", false)
	cfg.NoShortcuts = true
	last := newFabric(t, n.namespace, cfg)
	apply(t, last, lab.networks[0])
	if out := n.run(t, show); strings.Contains(out, "nearmetal") || strings.Contains(out, "clsact") {
		t.Errorf("left under an agent that makes no shortcuts:\n%s", out)
	}
	lab.mustPassTheDevice(t, 0, "under an agent that makes no shortcuts", true)
	again := newFabric(t, n.namespace, Config{Config: cfg.Config})
	apply(t, again, lab.networks[0])
	lab.mustPassTheDevice(t, 0, "under one that makes them again", false)
	apply(t, again)
	if out := n.run(t, show); strings.Contains(out, "nearmetal") || strings.Contains(out, "clsact") {
		t.Errorf("left without networks:\n%s", out)
	}
}

// TestAStreamCrossesAnUnderlayThatDoesNothingForIt: the kernel then computes checksums, and cuts what TCP left whole, behind the outer headers.
func TestAStreamCrossesAnUnderlayThatDoesNothingForIt(t *testing.T) {
	lab := newTunnelShortcutLab(t)
	for _, n := range lab.nodes {
		if err := n.Do(func() error { return withoutOffloads("under0") }); err != nil {
			needs.Hardware(t, "the kernel can't switch offloads of a veth pair off: %v", err)
		}
	}
	sent := bytes.Repeat([]byte("nearmetal "), 1<<16)
	stream(t, lab.members[0], lab.members[1], sent)
	stream(t, lab.members[1], lab.members[0], sent)
	heard := lab.nodes[1].listen(t, "under0")
	stream(t, lab.members[0], lab.members[1], sent[:5*underlayMTUInTests])
	frame, text := lab.members[0].marker(lab.members[1])
	mustArrive(t, lab.members[0], lab.members[1], "a datagram behind it", frame, text)
	frames, ok := heard.until(text, markerTimeout)
	if !ok {
		t.Fatal("the underlay did not see the datagram")
	}
	longest := 0
	for _, f := range frames {
		longest = max(longest, len(f))
	}
	if longest > underlayMTUInTests+14 || longest < underlayMTUInTests-100 {
		t.Errorf("the longest frame on the underlay has %d bytes, and %d are its MTU", longest, underlayMTUInTests)
	}
	for i := range lab.nodes {
		lab.mustPassTheDevice(t, i, "a datagram without offloads", false)
	}
}

// withoutOffloads switches checksums and segmentation by a link off (linux/ethtool.h).
func withoutOffloads(name string) error {
	const setTSO, setChecksums = 0x1f, 0x17
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, command := range []uint32{setTSO, setChecksums} {
		value := [2]uint32{command, 0}
		request := struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}{data: unsafe.Pointer(&value)}
		copy(request.name[:], name)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
			return errno
		}
	}
	return nil
}
