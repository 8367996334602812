package opensm

import (
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/partitions"
	"github.com/nearmetal/nearmetal/internal/ibsim"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/needs"
)

const (
	tenants     = 100
	hostsATime  = 6
	firstTenant = 0x100
	storage     = 0x80
)

// site648 is a fat tree of 648 hosts with the networks of tenants, and what the tables should be.
type site648 struct {
	*lab
	executor *Site
	keeper   *site.Keeper

	mu       sync.Mutex
	networks map[int][]site.Port
	revision int64
}

// set gives a tenant these ports, at the same time as others are given theirs.
func (f *site648) set(number int, ports []site.Port) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.networks, number)
	if len(ports) > 0 {
		f.networks[number] = ports
	}
	f.revision++
	var all []site.Network
	for n, p := range f.networks {
		all = append(all, site.Network{Number: n, Ports: p})
	}
	f.keeper.Set(lifecycle.Epoch{Term: 1, Revision: f.revision}, normal(all))
}

// ports are those of a tenant: hosts of its own, from a first one on.
func (f *site648) ports(first int) []site.Port {
	var all []site.Port
	for i := range hostsATime {
		all = append(all, site.Port{At: f.fabric.Hosts[(first+i)%len(f.fabric.Hosts)].PortGUID()})
	}
	return all
}

// inForce waits until the keeper has every port in its network, and what left is proved to be gone.
func (f *site648) inForce(gone map[int][]site.Port) {
	f.t.Helper()
	f.await("the tenants' partitions", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for number, ports := range f.networks {
			for _, p := range ports {
				if attached, _ := f.keeper.Attached(number, p.At); attached != site.Present {
					return false
				}
			}
		}
		for number, ports := range gone {
			for _, p := range ports {
				if f.keeper.Clean(number, p.At) != nil {
					return false
				}
			}
		}
		return true
	})
}

// compare reads the tables of all ports, of adapters and of switches, and compares them with what was asked for.
func (f *site648) compare(round string) {
	f.t.Helper()
	want := map[string]map[int]bool{}
	for number, ports := range f.networks {
		for _, p := range ports {
			if want[p.At] == nil {
				want[p.At] = map[int]bool{}
			}
			want[p.At][number] = p.Limited
		}
	}
	s := f.lab.executor()
	if _, err := s.Observe(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	if len(s.fabric.places) != len(f.fabric.Hosts) {
		f.t.Fatalf("%s: %d ports were found of %d", round, len(s.fabric.places), len(f.fabric.Hosts))
	}
	for at, p := range s.fabric.places {
		for what, table := range map[string]map[int]bool{"adapter": p.adapter, "switch port": p.before} {
			got := maps.Clone(table)
			maps.DeleteFunc(got, func(key int, _ bool) bool { return key == partitions.DefaultPKey || partitions.IsMarker(key) })
			if p.problem != "" || !maps.Equal(got, want[at]) {
				f.t.Errorf("%s: the %s of port %s has %v, want %v %s", round, what, at, got, want[at], p.problem)
			}
		}
	}
}

func TestAHundredTenantsComeChangeAndGoAtOnceOnAFatTreeOf648Hosts(t *testing.T) {
	needs.Request(t, "NEARMETAL_FABRICS", "make test-fabrics")
	f := &site648{lab: newLab(t, ibsim.FatTree(ibsim.MostHosts)), networks: map[int][]site.Port{}}
	f.executor = f.lab.executor()
	f.keeper = site.NewKeeper(f.executor, slog.New(slog.DiscardHandler))
	done := make(chan struct{})
	go func() { defer close(done); f.keeper.Run(t.Context()) }()
	each := func(change func(tenant int)) {
		var all sync.WaitGroup
		for tenant := range tenants {
			all.Go(func() { change(tenant) })
		}
		all.Wait()
	}
	var shared []site.Port
	for host := range hostsATime * 10 {
		shared = append(shared, site.Port{At: f.fabric.Hosts[host].PortGUID(), Limited: host > 0})
	}
	gone := map[int][]site.Port{}
	for _, round := range []struct {
		name   string
		change func(tenant int)
	}{
		{"all come", func(n int) { f.set(firstTenant+n, f.ports(n*hostsATime)) }},
		{"storage is shared", func(n int) { f.set(storage, shared) }},
		{"all move by one host", func(n int) { f.set(firstTenant+n, f.ports(n*hostsATime+1)) }},
		{"every second goes", func(n int) {
			if n%2 == 0 {
				f.set(firstTenant+n, nil)
			}
		}},
		{"all go", func(n int) { f.set(firstTenant+n, nil); f.set(storage, nil) }},
	} {
		f.mu.Lock()
		before := maps.Clone(f.networks)
		f.mu.Unlock()
		begun := time.Now()
		each(round.change)
		clear(gone)
		for number, ports := range before {
			if f.networks[number] == nil {
				gone[number] = ports
			}
		}
		f.inForce(gone)
		t.Logf("%s: verified after %v; an audit of all tables took %v", round.name, time.Since(begun).Round(time.Millisecond), f.executor.Report().AuditTime.Round(time.Millisecond))
		f.compare(round.name)
	}
}

// BenchmarkAPartitionChangeIsVerified changes one tenant of a hundred on 648 hosts: by the executor, and by hand, with OpenSM's own file and signal, the
// end of its sweep, and smpquery of the tables that have changed.
func BenchmarkAPartitionChangeIsVerified(b *testing.B) {
	needs.Request(b, "NEARMETAL_FABRICS", "make test-fabrics")
	b.Run("nearmetal", func(b *testing.B) { benchmarkChange(b, false) })
	b.Run("by hand", func(b *testing.B) { benchmarkChange(b, true) })
}

func benchmarkChange(b *testing.B, byHand bool) {
	l := startLab(b, ibsim.FatTree(ibsim.MostHosts))
	s := l.executor()
	f := &site648{lab: l}
	networks := func(shift int) []site.Network {
		var all []site.Network
		for tenant := range tenants {
			first := tenant * hostsATime
			if tenant == 0 {
				first += shift % 2
			}
			all = append(all, site.Network{Number: firstTenant + tenant, Ports: f.ports(first)})
		}
		return all
	}
	l.apply(s, epoch(1), networks(0)...)
	l.observe(s)
	revision := int64(1)
	for b.Loop() {
		revision++
		if byHand {
			l.changeByHand(networks(int(revision)))
			continue
		}
		l.apply(s, epoch(revision), networks(int(revision))...)
		for l.observe(s).Epoch != epoch(revision) {
		}
	}
}

// changeByHand does what an administrator would: the file, the signal, the sweep's end, and the tables of the two hosts that have changed and of the
// switch ports before them.
func (l *lab) changeByHand(networks []site.Network) {
	l.t.Helper()
	text, err := partitions.Compose(partitions.Content{Networks: networks, Marker: partitions.FirstMarker})
	if err == nil {
		err = durablefile.Write(l.cfg.Partitions, []byte(text), 0o644)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	l.swept()
	for _, host := range []int{0, hostsATime} {
		for _, args := range [][]string{{"-D", "pkeys", "0"}, {"-D", "pkeys", "0,1", fmt.Sprint(l.fabric.Hosts[host].Port)}} {
			if out, err := l.fabric.Command(l.t.Context(), l.fabric.Hosts[host].Name, "smpquery", args...).CombinedOutput(); err != nil {
				l.t.Fatalf("smpquery %v: %v: %s", args, err, out)
			}
		}
	}
}
