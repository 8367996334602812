package node

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/packettrace"
)

// routedTraceLab is a traceLab whose first node has the members 0 to 3 and whose second has 4 to 7. Members with even numbers are on network 1, the
// others on network 2. Both are routed, of one project as long as joined is true.
type routedTraceLab struct {
	traceLab
	networks [2]fabric.Network // without ports
}

const routedTraceMembers = 8

func networkOfMember(member int) int { return member % 2 }

func nodeOfMember(member int) int { return member / (routedTraceMembers / 2) }

// on is one of the networks as a node has it.
func (lab *routedTraceLab) on(network, node int) fabric.Network {
	n := lab.networks[network]
	n.Groups = lab.network.Groups
	for m, p := range lab.network.Ports {
		switch {
		case networkOfMember(m) != network:
		case nodeOfMember(m) == node:
			n.Ports = append(n.Ports, p)
		case m != lab.unknown:
			n.Remotes = append(n.Remotes, fabric.Remote{Peer: underlayAddress(1 - node), Address: p.Address, MAC: p.MAC})
		}
	}
	return n
}

func (lab *routedTraceLab) apply(t *testing.T) {
	t.Helper()
	for i := range lab.nodes {
		apply(t, lab.nodes[i].fabric, lab.on(0, i), lab.on(1, i))
	}
}

func newRoutedTraceLab(t *testing.T) *routedTraceLab {
	t.Helper()
	needRoot(t)
	lab := &routedTraceLab{traceLab: traceLab{unknown: -1}}
	sw := newSpace(t)
	sw.run(t, "ip link add sw type bridge mcast_snooping 0; ip link set sw mtu 9000 up")
	for i := range 2 {
		space := newSpace(t)
		plugIn(t, sw, space, i, underlayMTUInTests)
		lab.nodes = append(lab.nodes, node{space, newFabric(t, space, Config{Config: plan.Config{Underlay: underlayAddress(i)}})})
		n := testNetwork(i + 1)
		n.Project, n.Routed, n.Pool = "lab", true, netip.MustParsePrefix("10.64.0.0/10")
		lab.networks[i] = n
	}
	for m := range routedTraceMembers {
		lab.network.Ports = append(lab.network.Ports, testPort(lab.networks[networkOfMember(m)], m+2))
	}
	lab.apply(t)
	for m := range routedTraceMembers {
		n := lab.on(networkOfMember(m), nodeOfMember(m))
		at := slices.IndexFunc(n.Ports, func(p fabric.Port) bool { return p.ID == lab.network.Ports[m].ID })
		lab.members = append(lab.members, lab.join(t, lab.nodes[nodeOfMember(m)].fabric, n, at))
	}
	return lab
}

// end is a member's port as package trace is given it, for a packet from or to another member.
func (lab *routedTraceLab) end(member, other int) packettrace.End {
	at := nodeOfMember(member)
	e := packettrace.End{
		Member: groupID(member), Port: lab.network.Ports[member], Node: []string{"n1", "n2"}[at], Underlay: underlayAddress(at),
		Network: lab.on(networkOfMember(member), at),
	}
	if networkOfMember(member) != networkOfMember(other) {
		e.Beyond = lab.on(networkOfMember(other), at)
	}
	return e
}

// send puts a packet on the way to its receiver, or to the gateway of the sender's network.
func (lab *routedTraceLab) send(t *testing.T, p guardPacket) string {
	t.Helper()
	if networkOfMember(p.from) == networkOfMember(p.to) {
		return lab.put(t, p)
	}
	gateway, err := net.ParseMAC(plan.GatewayMAC(lab.networks[networkOfMember(p.from)].Index))
	if err != nil {
		t.Fatal(err)
	}
	text := token()
	lab.putFrame(t, p.from, ethernetFrame(gateway, lab.members[p.from].mac(), etherIPv4, lab.bytes(p, []byte(text))))
	return text
}

// heard is all that a member heard before the ARP requests that members of its network send to it now, one from each node.
func (lab *routedTraceLab) heard(t *testing.T, to int) []byte {
	t.Helper()
	var all [][]byte
	for node := range lab.nodes {
		if to == lab.unknown && node != nodeOfMember(to) {
			continue
		}
		from := -1
		for m := range lab.members {
			if m != to && m != lab.unknown && networkOfMember(m) == networkOfMember(to) && nodeOfMember(m) == node {
				from = m
			}
		}
		if from < 0 {
			continue
		}
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

// pass sends packets, and reports which arrived.
func (lab *routedTraceLab) pass(t *testing.T, packets []guardPacket) []bool {
	t.Helper()
	arrived := make([]bool, len(packets))
	const batch = 50 // fits a socket's buffer
	lab.inOrder(t, func() {
		for first := 0; first < len(packets); first += batch {
			some := packets[first:min(first+batch, len(packets))]
			texts := make([]string, len(some))
			for i, p := range some {
				texts[i] = lab.send(t, p)
			}
			for to := range lab.members {
				all := lab.heard(t, to)
				for i, p := range some {
					arrived[first+i] = arrived[first+i] || p.to == to && bytes.Contains(all, []byte(texts[i]))
				}
			}
		}
	})
	return arrived
}

// compare sends packets and compares what arrives with their traces. It returns those that arrived, with their paths.
func (lab *routedTraceLab) compare(t *testing.T, what string, packets []guardPacket, hops func(i int) []packettrace.Hop) (arrived []int) {
	t.Helper()
	for i, got := range lab.pass(t, packets) {
		if got != packettrace.Passes(hops(i)) {
			t.Errorf("%s: %v: arrived %t, traced %+v", what, packets[i], got, hops(i))
		}
		if got {
			arrived = append(arrived, i)
		}
	}
	return arrived
}

// TestRoutedPacketsAndTheirAnswersPassAsTraced compares random policies on two routed networks, which are of one project or of two, on two nodes.
func TestRoutedPacketsAndTheirAnswersPassAsTraced(t *testing.T) {
	lab := newRoutedTraceLab(t)
	// With the first of these, a packet that was flooded to a port, and meant for another one, was taken for a question to it.
	lab.comparePolicies(t, 8165468281246445550, 3, 4)
	lab.comparePolicies(t, rand.Uint64(), 0, tracedPolicies)
}

// tracedPolicies are how many policies are compared. The two networks are of two projects in the last one.
const tracedPolicies = 6

// follow draws first packets, and traces them with the policy that the laboratory is to have.
func (lab *routedTraceLab) follow(d dice) ([]guardPacket, []packettrace.Path) {
	requests := d.firstsOf(routedTraceMembers)
	paths := make([]packettrace.Path, len(requests))
	for i, p := range requests {
		paths[i] = packettrace.Follow(lab.end(p.from, p.to), lab.end(p.to, p.from), firstPacket(p))
	}
	return requests, paths
}

// passesRouted reports whether a packet from one network to the other one is to pass.
func passesRouted(requests []guardPacket, paths []packettrace.Path) bool {
	for i, p := range requests {
		if networkOfMember(p.from) != networkOfMember(p.to) && packettrace.Passes(paths[i].Request) {
			return true
		}
	}
	return false
}

// comparePolicies compares some of the policies of a seed.
func (lab *routedTraceLab) comparePolicies(t *testing.T, seed, first, end uint64) {
	t.Helper()
	for i := first; i < end; i++ {
		d := dice{rand.New(rand.NewPCG(seed, i))}
		lab.network.Groups, lab.unknown, lab.networks[1].Project = nil, -1, "lab"
		lab.apply(t) // forgets what ports sent
		lab.network.Groups = d.groups(t, &lab.guardLab)
		if i%2 == 1 {
			lab.unknown = d.IntN(routedTraceMembers)
		}
		if i == tracedPolicies-1 {
			lab.networks[1].Project = "class"
		}
		apart := i == tracedPolicies-1
		requests, paths := lab.follow(d)
		for !apart && !passesRouted(requests, paths) { // such a policy compares too little
			lab.network.Groups = d.groups(t, &lab.guardLab)
			requests, paths = lab.follow(d)
		}
		lab.apply(t)
		what := fmt.Sprintf("seed %d, policy %d", seed, i)
		arrived := lab.compare(t, what, requests, func(n int) []packettrace.Hop { return paths[n].Request })
		var replies []guardPacket
		routed := 0
		for _, n := range arrived {
			replies = append(replies, requests[n].answer())
			if networkOfMember(requests[n].from) != networkOfMember(requests[n].to) {
				routed++
			}
		}
		answered := lab.compare(t, what+", answers", replies, func(n int) []packettrace.Hop { return paths[arrived[n]].Reply })
		if t.Failed() {
			for _, g := range lab.network.Groups {
				t.Logf("%s: ports %v, members %v, rules %v", g.ID, g.Ports, g.Members, g.Rules)
			}
			t.Fatalf("unknown member: %d", lab.unknown)
		}
		if apart == (routed > 0) {
			t.Errorf("%s: %d routed packets arrived", what, routed)
		}
		t.Logf("policy %d, unknown member %d: %d of %d packets arrived, %d of them routed, and %d answers", i, lab.unknown, len(arrived), len(requests), routed, len(answered))
	}
}
