package provisioner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/fake"
)

// thousand are machines of a site, and what is desired of them.
func thousand(site *fake.Site, n int, behaviour func(i int) fake.Behaviour) []Machine {
	machines := make([]Machine, n)
	for i := range machines {
		name := fmt.Sprintf("m%d", i)
		site.Add(name, behaviour(i))
		machines[i] = order(name, 1, Leave)
	}
	return machines
}

func all(machines []Machine, generation int64, o Order) []Machine {
	told := make([]Machine, len(machines))
	for i, m := range machines {
		m.Generation, m.Order = generation, o
		told[i] = m
	}
	return told
}

// until waits until every machine is as wanted.
func until(ctx context.Context, p *Provisioner, generation int64, is func(Observed) bool) error {
	for {
		ready := true
		for _, o := range p.Observed() {
			ready = ready && o.Generation == generation && is(o)
		}
		if ready {
			return nil
		}
		select {
		case <-p.Changed():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// A thousand machines, whose BMCs take half a second for an answer and their power three for an order, one of twenty faulty.
func TestAThousandMachinesWithFaultyBMCsConverge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dice := rand.New(rand.NewPCG(1, 2))
		site := fake.NewSite()
		machines := thousand(site, 1000, func(int) fake.Behaviour {
			b := fake.Behaviour{Answer: 500 * time.Millisecond, OnAfter: 3 * time.Second, OffAfter: 3 * time.Second}
			switch dice.IntN(100) {
			case 0:
				b.FailObserves, b.Err = 3, power.ErrBusy
			case 1:
				b.FailOrders, b.Err = 2, power.ErrUnreachable
			case 2:
				b.LoseAnswers = 1
			case 3:
				b.Answer = 8 * time.Second
			case 4:
				b.OnAfter, b.OffAfter = 25*time.Second, 25*time.Second // told twice
			}
			return b
		})
		p := New(Options{Open: site.Open, Jitter: rand.New(rand.NewPCG(3, 4)).Float64})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = p.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		limit, stop := context.WithTimeout(ctx, 10*time.Minute)
		defer stop()
		for i, stage := range []struct {
			order Order
			state api.PowerState
		}{{Wake, api.PowerOn}, {Wake, api.PowerOn}, {Cut, api.PowerOff}} { // from off; a cycle; off
			began := time.Now()
			generation := int64(i + 2)
			p.Set(Desired{Term: 1, Machines: all(machines, generation, stage.order)})
			done := func(o Observed) bool { return o.Done && o.State == stage.state }
			for synctest.Wait(); len(p.Observed()) < len(machines); synctest.Wait() {
				<-p.Changed()
			}
			if err := until(limit, p, generation, done); err != nil {
				t.Fatalf("%s: %v", stage.order, err)
			}
			t.Logf("%s of 1000: %s, %.0f machines/min", stage.order, time.Since(began).Round(time.Second), 1000/time.Since(began).Minutes())
		}
		for _, m := range machines {
			if boots := len(site.Machine(m.Name).Boots()); boots != 2 {
				t.Errorf("%s was powered on %d times, want 2", m.Name, boots)
			}
			if most := site.MostSessions(m.Target.Control.Address); most != 1 {
				t.Errorf("%s had %d sessions at once", m.Name, most)
			}
		}
		if n := site.OpenSessions(); n > 32 {
			t.Errorf("%d sessions are open", n)
		}
	})
}

// BenchmarkThousandMachines powers a thousand machines on, cycles them and cuts them, by BMCs that take 20 ms for an answer, in real time. It
// tells the machines a minute of each stage; the bound by the gate is 128 orders at once.
func BenchmarkThousandMachines(b *testing.B) {
	const n = 1000
	took := map[string]time.Duration{}
	for range b.N {
		site := fake.NewSite()
		machines := thousand(site, n, func(int) fake.Behaviour { return fake.Behaviour{Answer: 20 * time.Millisecond} })
		p := New(Options{Open: site.Open})
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = p.Run(ctx) }()
		stage := func(name string, generation int64, o Order, is func(Observed) bool) {
			began := time.Now()
			p.Set(Desired{Term: 1, Machines: all(machines, generation, o)})
			for len(p.Observed()) < n {
				<-p.Changed()
			}
			if err := until(ctx, p, generation, is); err != nil {
				b.Fatal(err)
			}
			took[name] += time.Since(began)
		}
		done := func(o Observed) bool { return o.Done }
		stage("observed", 1, Leave, func(o Observed) bool { return o.State == api.PowerOff })
		stage("woken", 2, Wake, done)
		stage("cycled", 3, Wake, done)
		stage("cut", 4, Cut, done)
		cancel()
		<-ended
	}
	for name, d := range took {
		b.ReportMetric(float64(n*b.N)/d.Minutes(), name+"/min")
	}
	b.ReportMetric(0, "ns/op")
}
