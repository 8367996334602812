package node

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/packettrace"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// callPatience is how long a call may take that nothing refuses. A call that arrives is answered at once.
const callPatience = 300 * time.Millisecond

// connects reports whether a TCP connection is answered, if only because nobody listens, and what the server says.
func (n namespace) connects(to netip.Addr, port uint16) (answered bool, text string) {
	text = n.call(netip.AddrPortFrom(to, port).String(), callPatience)
	return strings.Contains(text, " sees ") || strings.Contains(text, "connection refused"), text
}

// passesBothWays reports whether a packet and the answer to it pass.
func passesBothWays(path packettrace.Path) bool {
	return packettrace.Passes(path.Request) && packettrace.Passes(path.Reply)
}

// outerRules draws rules of one security group for what a member sends, or takes from outside.
func (d dice) outerRules(t *testing.T, direction, word string, addresses []string) []securitygroup.Rule {
	t.Helper()
	var rules []securitygroup.Rule
	for range 1 + d.IntN(3) {
		prefix := netip.PrefixFrom(netip.MustParseAddr(pick(d, addresses...)), pick(d, 32, 32, 24, 0)).Masked()
		r := parsedRules(t, fmt.Sprintf("%s tcp %s %s %v", direction, pick(d, "22", "2222", "1-65535", "1-65535"), word, prefix))[0]
		if securitygroup.Validate(append(rules, r)) == nil {
			rules = append(rules, r)
		}
	}
	return rules
}

// TestConnectionsToTheOutsidePassAsTraced lets members of networks with and without egress call addresses of all kinds, which a machine outside has.
func TestConnectionsToTheOutsidePassAsTraced(t *testing.T) {
	lab := newEgressLab(t)
	targets := []string{internet, "10.20.0.5", "10.20.0.6", "100.64.0.9", "172.16.3.4", "192.168.7.9", "198.19.0.1", "169.254.7.7", "192.0.2.101", "10.64.200.9"}
	for _, a := range targets[1:] {
		lab.outside.run(t, "ip address add "+a+"/32 dev lo")
	}
	lab.node.run(t, "ip route add 192.0.2.101/32 via 192.0.2.2; ip route add 169.254.7.7/32 via 192.0.2.2")
	lab.outside.serve(t, "outside")
	lab.members[2].run(t, "ip route add default via "+lab.networks[2].Gateway.String()+" dev eth0")
	seed := rand.Uint64()
	for policy := range uint64(3) {
		d := dice{rand.New(rand.NewPCG(seed, policy))}
		open := []netip.Prefix{}
		for _, text := range []string{"10.20.0.5/32", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10"} {
			if d.IntN(2) == 0 {
				open = append(open, netip.MustParsePrefix(text))
			}
		}
		floating := d.IntN(2) == 0
		for i := range lab.networks {
			n := &lab.networks[i]
			n.Open, n.FloatingPool, n.Floating, n.Groups = open, []netip.Prefix{netip.MustParsePrefix("192.0.2.96/27")}, nil, nil
			if floating && i == 0 {
				n.Floating = []fabric.Floating{floatingTo("192.0.2.110", n.Ports[0])}
			}
			if rules := d.outerRules(t, "out", "to", targets); d.IntN(2) == 0 {
				n.Groups = []fabric.Group{{ID: "some", Rules: rules, Ports: []string{n.Ports[0].ID}, Members: []netip.Addr{n.Ports[0].Address}}}
			}
		}
		apply(t, lab.node.fabric, lab.networks...)
		passed := 0
		for i, m := range lab.members {
			if !lab.networks[i].Egress && policy > 0 {
				continue // nothing passes, which takes long
			}
			end := packettrace.End{Member: "m", Port: m.port, Node: "n1", Underlay: netip.MustParseAddr("192.0.2.1"), Network: lab.networks[i]}
			for _, text := range targets {
				to := netip.MustParseAddr(text)
				path := packettrace.FollowOut(end, to, packettrace.Packet{Protocol: securitygroup.TCP, Port: 22})
				got, answer := m.connects(to, 22)
				if got != passesBothWays(path) {
					t.Errorf("seed %d, policy %d: member %d to %v: %q, traced %+v; open %v, groups %+v", seed, policy, i, to, answer, path, open, lab.networks[i].Groups)
				}
				source := "192.0.2.1"
				if floating && i == 0 {
					source = "192.0.2.110"
				}
				if got && answer != "outside sees "+source {
					t.Errorf("seed %d, policy %d: member %d to %v: %q, want source %s", seed, policy, i, to, answer, source)
				}
				if got {
					passed++
				}
			}
		}
		t.Logf("policy %d: %d of %d connections passed", policy, passed, len(lab.members)*len(targets))
	}
}

// TestConnectionsToFloatingAddressesPassAsTraced calls floating addresses from outside, and from members on the same node and on another.
func TestConnectionsToFloatingAddressesPassAsTraced(t *testing.T) {
	lab := newFloatingLab(t)
	to, node := lab.members[0], []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("192.0.2.11")}
	address := netip.MustParseAddr(floatingOne)
	sources := []string{clientAddress, "192.0.2.11", lab.network.Gateway.String(), floatingOne, floatingTwo}
	seed := rand.Uint64()
	for policy := range uint64(6) {
		d := dice{rand.New(rand.NewPCG(seed, policy))}
		var forwards []fabric.Forward
		if d.IntN(2) == 0 {
			forwards = []fabric.Forward{{Protocol: "tcp", Port: 2222, MemberPort: 22}}
		}
		lab.networks[0].Groups = nil
		if rules := d.outerRules(t, "in", "from", sources); policy > 0 {
			lab.networks[0].Groups = []fabric.Group{{ID: "some", Rules: rules, Ports: []string{to.port.ID}, Members: []netip.Addr{to.port.Address}}}
		}
		lab.networks[0].Floating = []fabric.Floating{floatingTo(floatingOne, to.port, forwards...)}
		if d.IntN(2) == 0 {
			lab.networks[0].Floating = append(lab.networks[0].Floating, floatingTo(floatingTwo, lab.members[1].port))
		}
		apply(t, lab.nodes[0].fabric, lab.networks[0])
		end := func(i, at int) packettrace.End {
			return packettrace.End{Member: fmt.Sprintf("m-%d", i), Port: lab.members[i].port, Node: fmt.Sprintf("n%d", at+1), Underlay: node[at], Network: lab.networks[at]}
		}
		passed := 0
		for _, port := range []uint16{22, 2222} {
			p := packettrace.Packet{Protocol: securitygroup.TCP, Port: port}
			for _, call := range []struct {
				who  string
				from namespace
				path packettrace.Path
			}{
				{"the client outside", lab.client, packettrace.FollowIn(netip.MustParseAddr(clientAddress), end(0, 0), address, p)},
				{"a member on the same node", lab.members[1].namespace, packettrace.FollowFloating(end(1, 0), end(0, 0), address, p)},
				{"the member itself", to.namespace, packettrace.FollowFloating(end(0, 0), end(0, 0), address, p)},
				{"a member on another node", lab.members[2].namespace, packettrace.FollowFloating(end(2, 1), end(0, 0), address, p)},
			} {
				got, answer := call.from.connects(address, port)
				if got != passesBothWays(call.path) {
					t.Errorf("seed %d, policy %d: %s to port %d: %q, traced %+v; network %+v", seed, policy, call.who, port, answer, call.path, lab.networks[0])
				}
				if got {
					passed++
				}
			}
		}
		t.Logf("policy %d: %d of 8 connections passed", policy, passed)
	}
}
