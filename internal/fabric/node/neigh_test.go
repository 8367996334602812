package node

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestManyMembersOfOneNodeAllReachEachOther(t *testing.T) {
	needRoot(t)
	const count = 40
	n := newNode(t, Config{})
	network := testNetwork(1)
	for i := range count {
		network.Ports = append(network.Ports, testPort(network, 2+i))
	}
	apply(t, n.fabric, network)
	members := make([]member, count)
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() { members[i] = attach(t, n.fabric, network, i) })
	}
	wg.Wait()
	var lost atomic.Int64
	for _, from := range members {
		wg.Go(func() {
			for _, to := range members {
				if !from.canReach(to.address(), markerTimeout) {
					lost.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if lost.Load() > 0 {
		t.Errorf("%d of %d pairs do not reach each other; is the kernel's table of neighbours full?", lost.Load(), count*count)
	}
}
