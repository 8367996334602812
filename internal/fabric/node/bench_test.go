package node

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

// What the fabric takes is compared with what a script with ip(8) and nft(8) takes that makes the same, members in parallel:
//
//	go test -run '^$' -bench . -benchtime 10x ./internal/fabric/node

// benchSetting is a node that has a network already, and namespaces for the members of another.
type benchSetting struct {
	node    node
	first   fabric.Network
	network fabric.Network
	spaces  []namespace
}

func newBenchSetting(b *testing.B, members int) benchSetting {
	b.Helper()
	needRoot(b)
	s := benchSetting{node: newNode(b, Config{}), first: testNetwork(9, 2), network: testNetwork(1)}
	for i := range members {
		s.network.Ports = append(s.network.Ports, testPort(s.network, i+2))
		s.spaces = append(s.spaces, newSpace(b))
	}
	apply(b, s.node.fabric, s.first)
	return s
}

func (s benchSetting) attachAll(b *testing.B) {
	var wg sync.WaitGroup
	for i, space := range s.spaces {
		wg.Go(func() {
			place := fabric.Namespace(space.Path())
			if err := s.node.fabric.Attach(context.Background(), s.network.Ports[i], place); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
}

// networkScript makes the network by hand.
func (s benchSetting) networkScript(b *testing.B) string {
	b.Helper()
	seen, err := s.node.fabric.observe(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	rules := plannedRules(b, plan.Config{}, []fabric.Network{s.first, s.network}, seen)
	return fmt.Sprintf("ip link add %[1]s address %[2]s type bridge mcast_snooping 0\nip link set %[1]s mtu %[3]d up\nnft -f - <<'end'\n%[4]send\n",
		plan.BridgeName(1), plan.GatewayMAC(1), plan.MTU(s.network, 0), rules)
}

// memberScript attaches the members by hand.
func (s benchSetting) memberScript() string {
	var script strings.Builder
	for i, p := range s.network.Ports {
		fmt.Fprintf(&script, `{ ip link add %[1]s mtu %[2]d type veth peer name eth0 mtu %[2]d address %[3]s netns %[4]s
			ip link set %[1]s master %[5]s up
			nsenter --net=%[4]s sh -c 'ip link set lo up; ip address add %[6]s/%[7]d dev eth0; ip link set eth0 up'; } &
			`, plan.PortName(p.ID), plan.MTU(s.network, 0), p.MAC, s.spaces[i].Path(), plan.BridgeName(1), p.Address, s.network.Prefix.Bits())
	}
	script.WriteString("wait\n")
	return script.String()
}

func BenchmarkNetwork(b *testing.B) {
	s := newBenchSetting(b, 8)
	script := s.networkScript(b)
	for name, make := range map[string]func(){
		"fabric": func() { apply(b, s.node.fabric, s.first, s.network) },
		"script": func() { s.node.run(b, script) },
	} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				make()
				b.StopTimer()
				apply(b, s.node.fabric, s.first)
				b.StartTimer()
			}
		})
	}
}

func BenchmarkMembers(b *testing.B) {
	for _, count := range []int{1, 8, 32} {
		s := newBenchSetting(b, count)
		script := s.memberScript()
		for name, make := range map[string]func(){
			"fabric": func() { s.attachAll(b) },
			"script": func() { s.node.run(b, script) },
		} {
			b.Run(fmt.Sprintf("%d/%s", count, name), func(b *testing.B) {
				for range b.N {
					b.StopTimer()
					apply(b, s.node.fabric, s.first, s.network)
					b.StartTimer()
					make()
					b.StopTimer()
					mustReachAll(b, s)
					apply(b, s.node.fabric, s.first)
					b.StartTimer()
				}
			})
		}
	}
}

// mustReachAll shows that what was made works.
func mustReachAll(b *testing.B, s benchSetting) {
	b.Helper()
	last := s.network.Ports[len(s.network.Ports)-1].Address.String()
	if !s.spaces[0].canReach(last, markerTimeout) {
		b.Errorf("the first member does not reach the last, %s", last)
	}
}

func BenchmarkRemoval(b *testing.B) {
	s := newBenchSetting(b, 32)
	for range b.N {
		b.StopTimer()
		apply(b, s.node.fabric, s.first, s.network)
		s.attachAll(b)
		b.StartTimer()
		apply(b, s.node.fabric, s.first)
	}
}
