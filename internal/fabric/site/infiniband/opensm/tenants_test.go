package opensm

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/partitions"
	"github.com/nearmetal/nearmetal/internal/ibsim"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/measure"
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

// BenchmarkAPartitionChangeIsVerified moves one tenant of a hundred by one host, on 648 hosts: one port joins its partition and one leaves. A fabric that
// the executor manages and one that is managed by hand take turns. By hand, it is OpenSM's own file, its signal, and smpquery of the two ports and of the
// switch ports before them until they show the change.
func BenchmarkAPartitionChangeIsVerified(b *testing.B) {
	needs.Request(b, "NEARMETAL_FABRICS", "make test-fabrics")
	own, hand := newChangingFabric(b), newChangingFabric(b)
	l := own.lab
	s := l.executor()
	l.apply(s, epoch(1), own.networks(0)...)
	l.observe(s)
	hand.changeByHand(0)
	var took, byHand, ports, looks, runs, ratios []float64
	audits := 0
	change := func(round int) {
		before, begun := s.Report(), time.Now()
		at := epoch(int64(round) + 1)
		l.apply(s, at, own.networks(round)...)
		look := 1
		for l.observe(s).Epoch != at {
			look++
		}
		took = append(took, time.Since(begun).Seconds()*1e3)
		after := s.Report()
		if after.Audited != before.Audited {
			audits++ // read all ports, which it does every 25 seconds
			return
		}
		ports, looks = append(ports, float64(after.PortsRead-before.PortsRead)/float64(look)), append(looks, float64(look))
	}
	changeByHand := func(round int) {
		begun := time.Now()
		runs = append(runs, float64(hand.changeByHand(round)))
		byHand = append(byHand, time.Since(begun).Seconds()*1e3)
	}
	for round := 1; round <= b.N; round++ {
		if round%2 == 0 {
			change(round)
			changeByHand(round)
		} else {
			changeByHand(round)
			change(round)
		}
		ratios = append(ratios, took[round-1]/byHand[round-1])
	}
	for unit, values := range map[string][]float64{"nearmetal-ms": took, "by-hand-ms": byHand} {
		b.ReportMetric(measure.Median(values), unit)
		b.ReportMetric(measure.Quantile(values, 0.25), unit+"-q1")
		b.ReportMetric(measure.Quantile(values, 0.75), unit+"-q3")
	}
	e := measure.MedianInterval(ratios, 0.95)
	b.ReportMetric(e.Value, "nearmetal/by-hand")
	if e.Bounded() {
		b.ReportMetric(e.Low, "nearmetal/by-hand-low")
		b.ReportMetric(e.High, "nearmetal/by-hand-high")
	}
	if len(ports) > 0 {
		b.ReportMetric(measure.Median(looks), "looks")
		b.ReportMetric(measure.Quantile(ports, 1), "ports-read-a-look-at-most")
	}
	b.ReportMetric(float64(audits), "changes-with-an-audit")
	b.ReportMetric(measure.Median(runs), "by-hand-smpquery-runs")
	b.ReportMetric(0, "ns/op")
}

// changingFabric is a fat tree of 648 hosts with a hundred tenants, of which the first moves.
type changingFabric struct{ site648 }

func newChangingFabric(b *testing.B) *changingFabric {
	b.Helper()
	return &changingFabric{site648{lab: startLab(b, ibsim.FatTree(ibsim.MostHosts))}}
}

// networks are the tenants' in a round: the first tenant moves by one host, and back.
func (f *changingFabric) networks(round int) []site.Network {
	var all []site.Network
	for tenant := range tenants {
		first := tenant * hostsATime
		if tenant == 0 {
			first += round % 2
		}
		all = append(all, site.Network{Number: firstTenant + tenant, Ports: f.ports(first)})
	}
	return all
}

// changeByHand does what an administrator would, and returns how often smpquery ran.
func (f *changingFabric) changeByHand(round int) (runs int) {
	l := f.lab
	l.t.Helper()
	text, err := partitions.Compose(partitions.Content{Networks: f.networks(round), Marker: partitions.FirstMarker})
	if err == nil {
		err = os.WriteFile(l.cfg.Partitions, []byte(text), 0o644)
	}
	if err == nil {
		err = Reload(l.t.Context(), l.cfg.Partitions)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	key := fmt.Sprintf("0x%04x", 0x8000|firstTenant)
	for host, in := range map[int]bool{0: round%2 == 0, hostsATime: round%2 == 1} {
		for _, args := range [][]string{{"-D", "pkeys", "0"}, {"-D", "pkeys", "0,1", fmt.Sprint(l.fabric.Hosts[host].Port)}} {
			l.await("the change in a table", func() bool {
				runs++
				out, err := l.fabric.Command(l.t.Context(), l.fabric.Hosts[host].Name, "smpquery", args...).CombinedOutput()
				if err != nil {
					l.t.Fatalf("smpquery %v: %v: %s", args, err, out)
				}
				return strings.Contains(string(out), key) == in
			})
		}
	}
	return runs
}
