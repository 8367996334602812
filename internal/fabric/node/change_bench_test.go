package node

import (
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/measure"
)

// What a node takes when a member more joins a network, and when it leaves again, in ms: a network of 1,000 members, beside one of 10. Either
// way in turn within each round, until the kernel has been read back:
//
//	go test -run '^$' -bench NetworkChange -benchtime 31x -exec $PWD/setup/asroot.sh ./internal/fabric/node
//
// "operations" are those of the plan, each of which is one request to the kernel or one transaction of nft(8). "elements" are what the
// transactions add to sets and maps, or remove.
func BenchmarkNetworkChange(b *testing.B) {
	for _, s := range []struct {
		name string
		// here is how many of so many members have a port on this node.
		here func(members int) int
		// attached is how many of those ports have a member in a namespace.
		attached int
	}{
		{"member elsewhere joins", func(int) int { return 5 }, 5},
		{"member here joins", func(members int) int { return members }, 0},
	} {
		b.Run(s.name, func(b *testing.B) {
			needRoot(b)
			sizes := []int{10, 1000}
			var nodes []changingNode
			for _, size := range sizes {
				nodes = append(nodes, newChangingNode(b, size, s.here(size), s.attached, s.here(size) == size))
			}
			var joins, leaves [2][]float64
			for round := range b.N {
				for _, at := range turns(len(nodes), round) {
					joins[at] = append(joins[at], nodes[at].apply(b, nodes[at].after))
					leaves[at] = append(leaves[at], nodes[at].apply(b, nodes[at].before))
				}
			}
			for i, size := range []string{"10", "1000"} {
				b.ReportMetric(measure.Median(joins[i]), "join-"+size+"-ms")
				b.ReportMetric(measure.Quantile(joins[i], 0.25), "join-"+size+"-ms-q1")
				b.ReportMetric(measure.Quantile(joins[i], 0.75), "join-"+size+"-ms-q3")
				b.ReportMetric(measure.Median(leaves[i]), "leave-"+size+"-ms")
				operations, elements := nodes[i].count(b)
				b.ReportMetric(float64(operations), "join-"+size+"-operations")
				b.ReportMetric(float64(elements), "join-"+size+"-elements")
			}
			reportRatio(b, "join-1000/join-10", joins[1], joins[0])
			b.ReportMetric(0, "ns/op")
		})
	}
}

// changingNode is a node whose network has a member more after a change.
type changingNode struct {
	node
	before, after fabric.Network
}

// newChangingNode makes a node with some of the members of a network; the last member of all comes and goes.
func newChangingNode(b *testing.B, members, here, attached int, lastHere bool) changingNode {
	b.Helper()
	const first, networkIndex = 2, 3
	n := changingNode{node: newNodesAtASwitch(b, Config{})[0], after: testNetwork(networkIndex)}
	for i := range members {
		if i < here {
			n.after.Ports = append(n.after.Ports, testPort(n.after, first+i))
		} else {
			n.after.Remotes = append(n.after.Remotes, behind(n.after, underlayAddress(1), first+i)...)
		}
	}
	n.before = n.after
	if lastHere {
		n.before.Ports = n.after.Ports[:here-1]
	} else {
		n.before.Remotes = n.after.Remotes[:len(n.after.Remotes)-1]
	}
	apply(b, n.fabric, n.before)
	for i := range attached {
		attach(b, n.fabric, n.before, i)
	}
	return n
}

// apply returns how long it takes to make the node as wanted, in ms.
func (n changingNode) apply(b *testing.B, network fabric.Network) float64 {
	b.Helper()
	begun := time.Now()
	apply(b, n.fabric, network)
	return time.Since(begun).Seconds() * 1e3
}

// count returns the operations of the plan for the member that joins, and the elements in them.
func (n changingNode) count(b *testing.B) (operations, elements int) {
	b.Helper()
	_, ops, err := n.fabric.plan(b.Context(), wanted{networks: []fabric.Network{n.after}})
	if err != nil {
		b.Fatal(err)
	}
	for _, op := range ops {
		load, isRules := op.(plan.LoadRules)
		if !isRules {
			continue
		}
		for line := range strings.Lines(load.Script) {
			if strings.HasPrefix(line, "add element ") || strings.HasPrefix(line, "delete element ") {
				elements += 1 + strings.Count(line, ", ")
			}
		}
	}
	return len(ops), elements
}
