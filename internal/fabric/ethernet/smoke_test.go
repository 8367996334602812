package ethernet

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

func TestSmoke(t *testing.T) {
	needRoot(t)
	n := newNode(t, Config{})
	before := n.snapshot(t)
	net1 := testNetwork(1, 2, 3)
	start := time.Now()
	apply(t, n.fabric, net1)
	t.Log("apply", time.Since(start))
	a := attach(t, n.fabric, net1, 0)
	b := attach(t, n.fabric, net1, 1)
	t.Log(a.run(t, "ip -d a"))
	t.Log(n.run(t, "ip -d link; nft list ruleset"))
	mustReach(t, a.namespace, "b", b.address())
	start = time.Now()
	apply(t, n.fabric, net1)
	t.Log("apply", time.Since(start))
	net2 := testNetwork(2, 2, 3)
	start = time.Now()
	apply(t, n.fabric, net1, net2)
	t.Log("apply second", time.Since(start))
	start = time.Now()
	apply(t, n.fabric)
	t.Log("apply none", time.Since(start))
	if after := n.snapshot(t); after != before {
		t.Errorf("differs: %s\n%s", before, after)
	}
}

func TestTiming(t *testing.T) {
	needRoot(t)
	for _, count := range []int{1, 8, 32} {
		n := newNode(t, Config{})
		net0 := testNetwork(9, 2)
		apply(t, n.fabric, net0)
		net1 := testNetwork(1)
		var spaces []namespace
		for i := range count {
			net1.Ports = append(net1.Ports, testPort(net1, i+2))
			spaces = append(spaces, newSpace(t))
		}
		start := time.Now()
		apply(t, n.fabric, net0, net1)
		t1 := time.Since(start)
		start = time.Now()
		var wg sync.WaitGroup
		for i := range count {
			wg.Go(func() {
				m := member{spaces[i], testDriverPort(net1, i)}
				m.port.NetNS = m.Path()
				if err := n.fabric.Attach(context.Background(), m.port); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		t2 := time.Since(start)
		start = time.Now()
		for i := range count / 2 {
			wg.Go(func() {
				if err := n.fabric.Detach(context.Background(), net1.Ports[i].ID); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		t3 := time.Since(start)
		start = time.Now()
		apply(t, n.fabric, net0)
		fmt.Println(count, "apply", t1, "attach", t2, "detach half", t3, "remove", time.Since(start))
	}
}
