package node

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// parsedRules parses rules of a security group.
func parsedRules(t testing.TB, texts ...string) []securitygroup.Rule {
	t.Helper()
	var all []securitygroup.Rule
	for _, text := range texts {
		r, err := securitygroup.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// testGroups are groups of all kinds of rules on the first ports of a network.
func testGroups(t testing.TB, n fabric.Network) []fabric.Group {
	t.Helper()
	return []fabric.Group{
		{ID: "web", Ports: []string{n.Ports[0].ID}, Members: []netip.Addr{n.Ports[0].Address}, Rules: parsedRules(t,
			"in tcp 80 from 0.0.0.0/0", "in udp 5000-5100 from 10.64.16.0/24", "in icmp 8 from 10.64.0.0/16", "in any from 10.64.16.4/32",
			"in any from 255.0.0.0/8", "in tcp 22 from group admin", "in icmp from group admin", "in any from group web")},
		{ID: "admin", Ports: []string{n.Ports[1].ID}, Members: []netip.Addr{n.Ports[1].Address}, Rules: parsedRules(t,
			"in tcp 22 from 10.64.16.0/20", "in tcp 22-80 from 10.64.16.4/32", "out tcp 22 to group web", "out any to 10.64.18.0/24", "out icmp to 0.0.0.0/0")},
	}
}

// guardLab is a node with members whose kernels answer nothing, so that only what a test sends changes what ports keep open.
type guardLab struct {
	node    node
	network fabric.Network
	members []guardMember
	// six makes all packets those of IPv6.
	six bool
}

// guardMember is a member with a socket for whole frames.
type guardMember struct {
	member
	fd, link int
}

// newGuardLab attaches this many members of a network without security groups.
func newGuardLab(t testing.TB, members int) *guardLab {
	t.Helper()
	needRoot(t)
	lab := &guardLab{node: newNode(t, Config{}), network: testNetwork(1)}
	for i := range members {
		lab.network.Ports = append(lab.network.Ports, testPort(lab.network, i+2))
	}
	apply(t, lab.node.fabric, lab.network)
	for i := range members {
		lab.members = append(lab.members, lab.join(t, lab.node.fabric, lab.network, i))
	}
	return lab
}

// join attaches a member and silences its kernel.
func (lab *guardLab) join(t testing.TB, f *Fabric, n fabric.Network, i int) guardMember {
	t.Helper()
	m := guardMember{member: attach(t, f, n, i)}
	m.run(t, "ip link set eth0 arp off; ip address flush dev eth0")
	err := m.Do(func() (err error) {
		m.fd, m.link, err = packetSocket(memberLink, unix.ETH_P_ALL)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(m.fd) })
	return m
}

// guard gives the network these security groups.
func (lab *guardLab) guard(t testing.TB, groups ...fabric.Group) {
	t.Helper()
	lab.network.Groups = groups
	apply(t, lab.node.fabric, lab.network)
}

// group is a security group of these members with these rules.
func (lab *guardLab) group(t testing.TB, id string, members []int, texts ...string) fabric.Group {
	t.Helper()
	g := fabric.Group{ID: id, Rules: parsedRules(t, texts...)}
	for _, i := range members {
		g.Ports = append(g.Ports, lab.network.Ports[i].ID)
		g.Members = append(g.Members, lab.network.Ports[i].Address)
	}
	return g
}

// guardPacket is one IPv4 packet between two members, by their numbers.
type guardPacket struct {
	from, to int
	protocol uint8
	// sport and dport are the ports; of ICMP messages the type, and the identifier of an echo.
	sport, dport uint16
	flags        byte // of TCP
	part         part
	options      bool
	// source and target are other addresses than those of the members, for packets that lie.
	source, target netip.Addr
	// data is what a later fragment has in place of ports.
	data string
	// quoted is the packet that an ICMP error is about.
	quoted *guardPacket
}

// part says which part of a packet a fragment is.
type part int

const (
	whole part = iota
	firstFragment
	laterFragment
)

// TCP flags (RFC 793).
const (
	flagFIN = 1
	flagSYN = 2
	flagRST = 4
	flagACK = 16
)

func (p guardPacket) String() string {
	text := fmt.Sprintf("%d > %d protocol %d %d > %d flags %#x", p.from, p.to, p.protocol, p.sport, p.dport, p.flags)
	switch {
	case p.part == firstFragment:
		text += ", first fragment"
	case p.part == laterFragment:
		text += ", later fragment"
	}
	if p.options {
		text += ", with IP options"
	}
	if p.quoted != nil {
		text += fmt.Sprintf(", quotes (%v)", *p.quoted)
	}
	return text
}

// bytes is the packet with data behind its headers.
func (lab *guardLab) bytes(p guardPacket, data []byte) []byte {
	var upper []byte
	switch {
	case p.part == laterFragment:
		upper = []byte(cmp.Or(p.data, "12345678"))
	case p.protocol == unix.IPPROTO_ICMP && p.quoted != nil:
		upper = append([]byte{byte(p.sport), 0, 0, 0, 0, 0, 0, 0}, lab.bytes(*p.quoted, nil)...)
	case p.protocol == unix.IPPROTO_ICMP:
		upper = binary.BigEndian.AppendUint16([]byte{byte(p.sport), 0, 0, 0}, p.dport)
		upper = append(upper, 0, 1)
	default:
		upper = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, p.sport), p.dport)
		if p.protocol == unix.IPPROTO_UDP {
			upper = append(upper, 0, byte(8+len(data)), 0, 0)
		} else {
			upper = append(upper, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, p.flags, 255, 255, 0, 0, 0, 0)
		}
	}
	upper = append(upper, data...)
	if lab.six {
		return lab.bytes6(p, upper)
	}
	header := []byte{0x45, 0, 0, 0, 0, 7, 0, 0, 64, p.protocol, 0, 0}
	header = append(header, lab.sourceOf(p).AsSlice()...)
	target := lab.network.Ports[p.to].Address
	if p.target.IsValid() {
		target = p.target
	}
	header = append(header, target.AsSlice()...)
	if p.options {
		header[0] = 0x46
		header = append(header, 1, 1, 1, 0) // RFC 791: three of "no operation", and the end of the list
	}
	binary.BigEndian.PutUint16(header[2:], uint16(len(header)+len(upper)))
	switch p.part {
	case firstFragment:
		header[6] = 0x20
	case laterFragment:
		header[7] = 100
	}
	binary.BigEndian.PutUint16(header[10:], checksum(header))
	return append(header, upper...)
}

func (lab *guardLab) sourceOf(p guardPacket) netip.Addr {
	if p.source.IsValid() {
		return p.source
	}
	return lab.network.Ports[p.from].Address
}

// put sends a packet with a token, and returns the token.
func (lab *guardLab) put(t testing.TB, p guardPacket) string {
	t.Helper()
	text := token()
	kind := uint16(etherIPv4)
	if lab.six {
		kind = etherIPv6
	}
	frame := ethernetFrame(lab.members[p.to].mac(), lab.members[p.from].mac(), kind, lab.bytes(p, []byte(text)))
	lab.putFrame(t, p.from, frame)
	return text
}

func (lab *guardLab) putFrame(t testing.TB, from int, frame []byte) {
	t.Helper()
	m := lab.members[from]
	if err := unix.Sendto(m.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: m.link}); err != nil {
		t.Fatalf("sending a frame: %v", err)
	}
}

// inOrder runs f by one thread on one core, so that what f sends passes the node in the order of sending.
func (lab *guardLab) inOrder(t testing.TB, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &before) }()
	pin(0)
	f()
}

// send sends packets one after the other, and reports which arrived. Behind them it sends ARP requests, which every member may send.
func (lab *guardLab) send(t testing.TB, packets ...guardPacket) []bool {
	t.Helper()
	var arrived []bool
	const batch = 100 // fits a socket's buffer
	lab.inOrder(t, func() {
		for some := range slices.Chunk(packets, batch) {
			arrived = append(arrived, lab.sendSome(t, some)...)
		}
	})
	return arrived
}

func (lab *guardLab) sendSome(t testing.TB, packets []guardPacket) []bool {
	t.Helper()
	texts, arrived := make([]string, len(packets)), make([]bool, len(packets))
	receivers := map[int]bool{}
	for i, p := range packets {
		texts[i] = lab.put(t, p)
		receivers[p.to] = true
	}
	for to := range receivers {
		from := (to + 1) % len(lab.members)
		end := token()
		m := lab.members[from]
		lab.putFrame(t, from, ethernetFrame(lab.members[to].mac(), m.mac(), etherARP,
			arpPacket(1, m.mac(), m.port.Address, make6(), lab.members[to].port.Address, end)))
		frames, ok := listener{lab.members[to].fd}.until(end, markerTimeout)
		if !ok {
			t.Fatal("an ARP request did not arrive")
		}
		all := bytes.Join(frames, nil)
		for i, p := range packets {
			arrived[i] = arrived[i] || p.to == to && bytes.Contains(all, []byte(texts[i]))
		}
	}
	return arrived
}

// arrives reports whether a packet arrives.
func (lab *guardLab) arrives(t testing.TB, p guardPacket) bool {
	t.Helper()
	return lab.send(t, p)[0]
}

func (lab *guardLab) mustPass(t testing.TB, what string, p guardPacket) {
	t.Helper()
	if !lab.arrives(t, p) {
		t.Errorf("%s (%v) did not arrive", what, p)
	}
}

func (lab *guardLab) mustStop(t testing.TB, what string, p guardPacket) {
	t.Helper()
	if lab.arrives(t, p) {
		t.Errorf("%s (%v) arrived, but must not", what, p)
	}
}
