package node

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/packettrace"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// traceLab is a guardLab on two nodes: the first half of the members is on the first.
type traceLab struct {
	guardLab
	nodes []node
	// unknown is a member that the node without it does not know, -1 for none.
	unknown int
}

const traceMembers = 6

func (lab *traceLab) nodeOf(member int) int { return member / (traceMembers / 2) }

// networkOf is the network as one node has it.
func (lab *traceLab) networkOf(i int) fabric.Network {
	n := lab.network
	n.Ports = nil
	for m, p := range lab.network.Ports {
		switch {
		case lab.nodeOf(m) == i:
			n.Ports = append(n.Ports, p)
		case m != lab.unknown:
			n.Remotes = append(n.Remotes, fabric.Remote{Peer: underlayAddress(1 - i), Address: p.Address, MAC: p.MAC})
		}
	}
	return n
}

func newTraceLab(t *testing.T, six bool) *traceLab {
	t.Helper()
	needRoot(t)
	lab := &traceLab{guardLab: guardLab{network: testNetwork(1), six: six}, unknown: -1}
	if six {
		lab.network = testNetwork6(1)
	}
	sw := newSpace(t)
	sw.run(t, "ip link add sw type bridge mcast_snooping 0; ip link set sw mtu 9000 up")
	for i := range 2 {
		space := newSpace(t)
		plugIn(t, sw, space, i, underlayMTUInTests)
		lab.nodes = append(lab.nodes, node{space, newFabric(t, space, Config{Config: plan.Config{Underlay: underlayAddress(i)}})})
	}
	for i := range traceMembers {
		lab.network.Ports = append(lab.network.Ports, testPort(lab.network, i+2))
	}
	lab.apply(t)
	for i := range traceMembers {
		lab.members = append(lab.members, lab.join(t, lab.nodes[lab.nodeOf(i)].fabric, lab.network, i))
	}
	return lab
}

func (lab *traceLab) apply(t *testing.T) {
	t.Helper()
	for i := range lab.nodes {
		apply(t, lab.nodes[i].fabric, lab.networkOf(i))
	}
}

// end is a member's port as package trace is given it.
func (lab *traceLab) end(member int) packettrace.End {
	at := lab.nodeOf(member)
	return packettrace.End{
		Member: groupID(member), Port: lab.network.Ports[member], Node: []string{"n1", "n2"}[at], Underlay: underlayAddress(at), Network: lab.networkOf(at),
	}
}

// pass sends packets, and reports which arrived. Behind them, one member of each node sends each receiver an ARP request.
func (lab *traceLab) pass(t *testing.T, packets []guardPacket) []bool {
	t.Helper()
	arrived := make([]bool, len(packets))
	const batch = 50 // fits a socket's buffer
	lab.inOrder(t, func() {
		for first := 0; first < len(packets); first += batch {
			some := packets[first:min(first+batch, len(packets))]
			texts := make([]string, len(some))
			for i, p := range some {
				texts[i] = lab.put(t, p)
			}
			for to := range lab.members {
				all := lab.heardBehind(t, to)
				for i, p := range some {
					arrived[first+i] = arrived[first+i] || p.to == to && bytes.Contains(all, []byte(texts[i]))
				}
			}
		}
	})
	return arrived
}

// heardBehind is all that a member heard before the requests that are sent to it now.
func (lab *traceLab) heardBehind(t *testing.T, to int) []byte {
	t.Helper()
	var all [][]byte
	for i := range lab.nodes {
		if to == lab.unknown && i != lab.nodeOf(to) {
			continue
		}
		from := slices.IndexFunc(lab.members, func(m guardMember) bool {
			n := slices.IndexFunc(lab.members, func(other guardMember) bool { return other.fd == m.fd })
			return lab.nodeOf(n) == i && n != to && n != lab.unknown
		})
		end, m := token(), lab.members[from]
		lab.putFrame(t, from, ethernetFrame(lab.members[to].mac(), m.mac(), etherARP,
			arpPacket(1, m.mac(), m.port.Address, make6(), lab.members[to].port.Address, end)))
		frames, ok := listener{lab.members[to].fd}.until(end, markerTimeout)
		if !ok {
			t.Fatalf("an ARP request of member %d to member %d did not arrive", from, to)
		}
		all = append(all, frames...)
	}
	return bytes.Join(all, nil)
}

// firstsOf draws first packets of connections whose tuples are all different. What one leaves behind changes the way of no other: of UDP, there
// is one between two members.
func (d dice) firstsOf(members int) []guardPacket {
	var packets []guardPacket
	for from := range members {
		for to := range members {
			if from == to {
				continue
			}
			for range 3 {
				packets = append(packets, guardPacket{from: from, to: to, protocol: unix.IPPROTO_TCP, dport: uint16(1000 + d.IntN(5)), flags: flagSYN})
			}
			packets = append(packets, guardPacket{from: from, to: to, protocol: unix.IPPROTO_ICMP, sport: 8})
			if from < to {
				p := guardPacket{from: from, to: to, protocol: unix.IPPROTO_UDP, dport: uint16(1000 + d.IntN(5))}
				if d.IntN(2) == 0 {
					p.from, p.to = to, from
				}
				packets = append(packets, p)
			}
		}
	}
	d.Shuffle(len(packets), func(i, j int) { packets[i], packets[j] = packets[j], packets[i] })
	for i := range packets {
		if p := &packets[i]; p.protocol == unix.IPPROTO_ICMP {
			p.dport = uint16(20000 + i) // the identifier
		} else {
			p.sport = uint16(20000 + i)
		}
	}
	return packets
}

// answer is the first answer to a first packet.
func (p guardPacket) answer() guardPacket {
	answer := guardPacket{from: p.to, to: p.from, protocol: p.protocol, sport: p.dport, dport: p.sport, flags: flagSYN | flagACK}
	if p.protocol == unix.IPPROTO_ICMP {
		answer.sport, answer.dport = 0, p.dport
	}
	return answer
}

// firstPacket is a packet as package trace is given it.
func firstPacket(p guardPacket) packettrace.Packet {
	switch p.protocol {
	case unix.IPPROTO_TCP:
		return packettrace.Packet{Protocol: securitygroup.TCP, Port: p.dport}
	case unix.IPPROTO_UDP:
		return packettrace.Packet{Protocol: securitygroup.UDP, Port: p.dport}
	default:
		return packettrace.Packet{Protocol: securitygroup.ICMP, Port: p.sport}
	}
}

func TestPacketsAndTheirAnswersPassAsTraced(t *testing.T) {
	testTraces(t, newTraceLab(t, false), 8, packettrace.Follow)
}

func TestPacketsOfIPv6AndTheirAnswersPassAsTraced(t *testing.T) {
	testTraces(t, newTraceLab(t, true), 4, func(from, to packettrace.End, p packettrace.Packet) packettrace.Path {
		if p.Protocol == securitygroup.ICMP {
			p = packettrace.Packet{Protocol: securitygroup.ICMP6, Port: uint16(types6[p.Port])}
		}
		return packettrace.Follow6(from, to, p)
	})
}

func testTraces(t *testing.T, lab *traceLab, policies int, follow func(from, to packettrace.End, p packettrace.Packet) packettrace.Path) {
	t.Helper()
	seed := rand.Uint64()
	for i := range uint64(policies) {
		d := dice{rand.New(rand.NewPCG(seed, i))}
		lab.network.Groups, lab.unknown = nil, -1
		lab.apply(t) // forgets what ports sent
		lab.network.Groups = d.groups(t, &lab.guardLab)
		for g := range lab.network.Groups {
			if lab.six {
				lab.network.Groups[g] = lab.group6(lab.network.Groups[g])
			}
		}
		if d.IntN(2) == 0 {
			lab.unknown = d.IntN(traceMembers)
		}
		lab.apply(t)
		requests := d.firstsOf(traceMembers)
		var paths []packettrace.Path
		var replies []guardPacket
		var answered []packettrace.Path
		passed := 0
		for n, arrived := range lab.pass(t, requests) {
			p := requests[n]
			path := follow(lab.end(p.from), lab.end(p.to), firstPacket(p))
			paths = append(paths, path)
			if arrived != packettrace.Passes(path.Request) {
				t.Errorf("seed %d, policy %d: %v: arrived %t, traced %+v", seed, i, p, arrived, path.Request)
			}
			if arrived {
				passed++
				replies, answered = append(replies, p.answer()), append(answered, path)
			}
		}
		for n, arrived := range lab.pass(t, replies) {
			if arrived != packettrace.Passes(answered[n].Reply) {
				t.Errorf("seed %d, policy %d: answer %v: arrived %t, traced %+v", seed, i, replies[n], arrived, answered[n].Reply)
			}
		}
		if t.Failed() {
			for _, g := range lab.network.Groups {
				t.Logf("%s: ports %v, rules %v", g.ID, g.Ports, g.Rules)
			}
			t.Fatalf("unknown member: %d", lab.unknown)
		}
		t.Logf("policy %d, unknown member %d: %d of %d packets passed, and %d answers", i, lab.unknown, passed, len(paths), len(replies))
	}
}
