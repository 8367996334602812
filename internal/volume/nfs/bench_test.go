package nfs

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/nfsd"
	"github.com/nearmetal/nearmetal/internal/volume/nfsd/nfsdtest"
)

// BenchmarkVolumeOfAnotherNode compares a volume that crosses by a Sharer with the same volume by the same kernel's server and client, mounted by hand:
// over a tunnel of the same kind that iproute2 makes, and over the bare underlay, where no cluster is kept apart from others. The three are timed in
// turns, each of them first in turn. What is reported are the medians of the ratios, and the least and the greatest of those to the tunnel.
func BenchmarkVolumeOfAnotherNode(b *testing.B) {
	needs.Request(b, "NEARMETAL_NFS", "make test-volume-guest, whose guest has a kernel with an NFS server and client")
	s := newSite(b)
	server, client := s.node(b), s.node(b)
	disk := server.disk(b, "data", 512)
	peers := []netip.Addr{client.underlay}
	server.apply(b, volume.Sharing{Peers: peers, Serves: []volume.Share{{UID: "data"}}, Clients: peers})
	client.apply(b, volume.Sharing{Peers: []netip.Addr{server.underlay}, Reaches: []volume.Remote{{UID: "data", Server: server.underlay}}})
	b.Cleanup(func() {
		for _, n := range []node{client, server} {
			if err := n.End(context.Background(), "c"); err != nil {
				b.Error(err)
			}
		}
		nfsdtest.Unmount(b, disk)
	})
	served, reached := tunnelByHand(b, server, client)
	dirs := [3]string{
		client.Dir("data", "c"),
		byHand(b, served, reached, disk),
		byHand(b, end{server.space, server.underlay}, end{client.space, client.underlay}, disk),
	}
	for _, work := range [][2]string{ // what is read was written
		{"write", "dd if=/dev/zero of=%[1]s/big bs=1M count=16 oflag=direct conv=fsync 2>/dev/null"},
		{"read", "dd if=%[1]s/big of=/dev/null bs=1M iflag=direct 2>/dev/null"},
		{"files", "mkdir %[1]s/many && cd %[1]s/many && n=0 && while [ $n -lt 50 ]; do echo $n >$n; n=$((n+1)); done && cd / && rm -r %[1]s/many"},
	} {
		b.Run(work[0], func(b *testing.B) {
			var tunnel, bare []float64
			for i := range b.N {
				var took [len(dirs)]float64
				for j := range dirs {
					at := (i + j) % len(dirs)
					took[at] = timed(b, work[1], dirs[at]).Seconds()
				}
				tunnel, bare = append(tunnel, took[0]/took[1]), append(bare, took[0]/took[2])
			}
			slices.Sort(tunnel)
			slices.Sort(bare)
			b.ReportMetric(tunnel[len(tunnel)/2], "times-by-hand")
			b.ReportMetric(tunnel[0], "least")
			b.ReportMetric(tunnel[len(tunnel)-1], "greatest")
			b.ReportMetric(bare[len(bare)/2], "times-bare-link")
		})
	}
}

// end is a network namespace of a node, and the node's address there.
type end struct {
	space   netns.Handle
	address netip.Addr
}

// tunnelByHand makes a tunnel between nodes as an administrator would, whose ends are in namespaces of their own.
func tunnelByHand(b *testing.B, server, client node) (served, reached end) {
	b.Helper()
	served, reached = end{nfsdtest.Space(b), netip.MustParseAddr("10.77.0.1")}, end{nfsdtest.Space(b), netip.MustParseAddr("10.77.0.2")}
	for _, e := range []struct {
		end
		own, peer node
	}{{served, server, client}, {reached, client, server}} {
		nfsdtest.Run(b, e.own.space, fmt.Sprintf("ip link add hand type vxlan id 77 local %v remote %v dstport %d && ip link set hand netns /proc/%d/fd/%d",
			e.own.underlay, e.peer.underlay, tunnelPort, os.Getpid(), e.space.FD()))
		nfsdtest.Run(b, e.space, fmt.Sprintf("ip addr add %v/24 dev hand && ip link set hand mtu %d up && ip link set lo up", e.address, underlayMTU-tunnelOverhead))
	}
	return served, reached
}

// byHand mounts what a node serves from one end to another, and returns where.
func byHand(b *testing.B, server, client end, disk string) string {
	b.Helper()
	at, dir := netip.AddrPortFrom(server.address, port), nfsdtest.Dir(b)
	by, err := nfsd.Start(b.Context(), nfsd.Config{Space: server.space, Address: at, Dir: filepath.Join(dir, "server"), UserIDs: nfsdtest.Users})
	if err == nil {
		err = by.Share(nfsd.Share{Name: "data", Number: 7, Dir: disk})
	}
	if err == nil {
		err = by.Admit(client.address)
	}
	if err != nil {
		b.Fatal(err)
	}
	m := nfsd.Mount{Server: at, Own: client.address, Name: "data", Dir: filepath.Join(dir, "hand")}
	b.Cleanup(func() {
		if err := m.Detach(context.Background()); err != nil {
			b.Error(err)
		}
		if err := by.Stop(context.Background()); err != nil {
			b.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(b.Context(), 2*time.Minute)
	defer cancel()
	if err := client.space.Do(func() error { return m.Attach(ctx) }); err != nil {
		b.Fatal(err)
	}
	return m.Dir
}

// timed is how long a user of the cluster takes for a script.
func timed(b *testing.B, script, dir string) time.Duration {
	b.Helper()
	began := time.Now()
	out, err := nfsdtest.Member(b.Context(), 1000, fmt.Sprintf(script, dir)).CombinedOutput()
	took := time.Since(began)
	if err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	return took
}
