package nfs

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/nfsd"
	"github.com/nearmetal/nearmetal/internal/volume/nfsd/nfsdtest"
)

// BenchmarkVolumeOfAnotherNode compares a volume that crosses by a Sharer with the same volume by the same kernel's server and client, mounted by hand
// over the bare underlay. Each pair is timed in turns; what is reported are the medians of the ratios, and the least and the greatest of them.
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
	hand := byHand(b, server, client, disk)
	for _, work := range [][2]string{ // what is read was written
		{"write", "dd if=/dev/zero of=%[1]s/big bs=1M count=64 oflag=direct conv=fsync 2>/dev/null"},
		{"read", "dd if=%[1]s/big of=/dev/null bs=1M iflag=direct 2>/dev/null"},
		{"files", "mkdir %[1]s/many && cd %[1]s/many && n=0 && while [ $n -lt 300 ]; do echo $n >$n; n=$((n+1)); done && cd / && rm -r %[1]s/many"},
	} {
		script := work[1]
		b.Run(work[0], func(b *testing.B) {
			var ratios []float64
			for i := range b.N { // each goes first in turn
				dirs := [2]string{client.Dir("data", "c"), hand}
				var took [2]time.Duration
				for j := range 2 {
					took[(i+j)%2] = timed(b, script, dirs[(i+j)%2])
				}
				ours, by := took[0], took[1]
				ratios = append(ratios, ours.Seconds()/by.Seconds())
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[len(ratios)/2], "times-by-hand")
			b.ReportMetric(ratios[0], "least")
			b.ReportMetric(ratios[len(ratios)-1], "greatest")
		})
	}
}

// byHand mounts what a node serves over the bare underlay, and returns where.
func byHand(b *testing.B, server, client node, disk string) string {
	b.Helper()
	at := netip.AddrPortFrom(server.underlay, port)
	bare, err := nfsd.Start(b.Context(), nfsd.Config{Space: server.space, Address: at, Dir: filepath.Join(filepath.Dir(server.cfg.Dir), "bare"), UserIDs: nfsdtest.Users})
	if err == nil {
		err = bare.Share(nfsd.Share{Name: "data", Number: 7, Dir: disk})
	}
	if err == nil {
		err = bare.Admit(client.underlay)
	}
	if err != nil {
		b.Fatal(err)
	}
	m := nfsd.Mount{Server: at, Own: client.underlay, Name: "data", Dir: filepath.Join(filepath.Dir(client.cfg.Dir), "hand")}
	b.Cleanup(func() {
		if err := m.Detach(context.Background()); err != nil {
			b.Error(err)
		}
		if err := bare.Stop(); err != nil {
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
