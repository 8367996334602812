package node

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/api"
)

// counted reads the counters of a member's port.
func counted(t *testing.T, f *Fabric, m member) api.PortCounters {
	t.Helper()
	all, err := f.Count(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, ok := all[m.port.ID]
	if !ok {
		t.Fatalf("the port of %s is not counted: %v", m.address(), all)
	}
	return c
}

// mustCount sends datagrams from one member to another, and requires that both ports count them. Other frames may pass as well, such as ARP.
func mustCount(t *testing.T, from, to member, fromNode, toNode *Fabric) {
	t.Helper()
	const datagrams, most = 100, 120
	sent, received := counted(t, fromNode, from), counted(t, toNode, to)
	bytes := int64(0)
	for range datagrams {
		frame, text := from.marker(to)
		mustArrive(t, from, to, "a datagram", frame, text)
		bytes += int64(len(frame))
	}
	s, r := counted(t, fromNode, from), counted(t, toNode, to)
	for what, got := range map[string]struct{ packets, bytes int64 }{
		"sent":     {s.SentPackets - sent.SentPackets, s.SentBytes - sent.SentBytes},
		"received": {r.ReceivedPackets - received.ReceivedPackets, r.ReceivedBytes - received.ReceivedBytes},
	} {
		if got.packets < datagrams || got.packets > most || got.bytes < bytes {
			t.Errorf("%s are %d packets with %d bytes, want %d to %d with at least %d", what, got.packets, got.bytes, datagrams, most, bytes)
		}
	}
	if s.SentDropped != sent.SentDropped || r.ReceivedDropped != received.ReceivedDropped {
		t.Errorf("dropped are %d of the sent packets and %d of the received ones, want none", s.SentDropped-sent.SentDropped, r.ReceivedDropped-received.ReceivedDropped)
	}
}

func TestPortsCountWhatPassesByTheBridge(t *testing.T) {
	lab := newShortcutLab(t)
	mustPassBy(t, lab.node, lab.a, lab.b, "a datagram")
	mustCount(t, lab.a, lab.b, lab.node.fabric, lab.node.fabric)
	mustCount(t, lab.b, lab.a, lab.node.fabric, lab.node.fabric)
}

func TestPortsCountWhatPassesTheBridge(t *testing.T) {
	n := testNetwork(1, 2, 3)
	needRoot(t)
	lab := newNode(t, Config{NoShortcuts: true})
	apply(t, lab.fabric, n)
	a, b := attach(t, lab.fabric, n, 0), attach(t, lab.fabric, n, 1)
	mustBeBridged(t, lab, a, b, "a datagram")
	mustCount(t, a, b, lab.fabric, lab.fabric)
}

func TestPortsCountWhatPassesATunnel(t *testing.T) {
	lab := newUnderlayLab(t, false)
	mustCount(t, lab.members[0], lab.members[1], lab.nodes[0].fabric, lab.nodes[1].fabric)
}

func TestCountersOutliveTheProcessThatAttachedThePort(t *testing.T) {
	lab := newPairLab(t)
	mustCount(t, lab.a, lab.b, lab.node.fabric, lab.node.fabric)
	before := counted(t, lab.node.fabric, lab.b)
	successor := newFabric(t, lab.node.namespace, Config{})
	apply(t, successor, lab.network, testNetwork(2, 2))
	after := counted(t, successor, lab.b)
	if after.ReceivedPackets < before.ReceivedPackets || after.ReceivedBytes < before.ReceivedBytes || after.SentPackets < before.SentPackets {
		t.Errorf("after a restart the counters are %+v, and before it %+v", after, before)
	}
}

func TestDropsOfBothEndsCountForTheirDirection(t *testing.T) {
	node := &netlink.LinkStatistics{RxBytes: 1, RxPackets: 2, RxDropped: 3, TxBytes: 4, TxPackets: 5, TxDropped: 6}
	member := &netlink.LinkStatistics{RxBytes: 10, RxPackets: 20, RxDropped: 30, TxBytes: 40, TxPackets: 50, TxDropped: 60}
	want := api.PortCounters{SentBytes: 1, SentPackets: 2, SentDropped: 63, ReceivedBytes: 10, ReceivedPackets: 20, ReceivedDropped: 36}
	if got := countersOf(node, member); got != want {
		t.Errorf("a veth port: got %+v, want %+v", got, want)
	}
	want = api.PortCounters{SentBytes: 1, SentPackets: 2, SentDropped: 3, ReceivedBytes: 4, ReceivedPackets: 5, ReceivedDropped: 6}
	if got := countersOf(node, nil); got != want {
		t.Errorf("a TAP port: got %+v, want %+v", got, want)
	}
}
