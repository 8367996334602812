package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/fake"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
)

// cell is the site's fabric, on which some nodes have ports.
const cell = "ib0"

// managed is a fabric as it really is: tables that outlive leaders and their executors. Orders come into force later, one order after
// the other.
type managed struct {
	w      *world
	tables fake.Tables
	// places are all there are; blind and stuck say until when one can't be read, or keeps what it has. They are the driver's.
	places       []string
	blind, stuck map[string]time.Time

	mu     sync.Mutex
	random *rand.Rand
	// fails is until when calls fail, slow until when what they say takes long.
	fails, slow time.Time
	obeyed      obeyed
}

// makeFabric draws whether the site has a managed fabric.
func (w *world) makeFabric() {
	r := source(w.cfg.Seed, "fabric")
	if none := r.IntN(2) == 0; none || !w.cfg.Kinds.Has(Metal) {
		return
	}
	w.fabric = &managed{w: w, random: r, blind: map[string]time.Time{}, stuck: map[string]time.Time{}, obeyed: obeyed{real: map[lifecycle.Epoch]lifecycle.Epoch{}}}
	w.fabric.tables.Delay()
}

// attach draws whether a node has ports on the fabric, and then lets members have the whole of it.
func (f *managed) attach(record *api.NodeRecord) {
	if f == nil || f.random.IntN(6) == 0 {
		return
	}
	record.Stacks = append(record.Stacks, api.StackCheck{Stack: api.StackMetal, OK: true})
	record.Environments[0].Stacks = append(record.Environments[0].Stacks, api.StackMetal)
	for i := range 2 {
		at := fmt.Sprintf("%s/%d", record.Name, i)
		record.Capacity.Ports = append(record.Capacity.Ports, api.NodePort{Name: fmt.Sprintf("0000:3b:00.%d", i), Fabric: cell, At: at})
		f.places = append(f.places, at)
	}
}

// drawMetal draws whether a group's members get whole nodes, and on which further networks they have ports. Quotas count what was asked for, which
// is less than such a node has.
func (w *world) drawMetal(g *api.Group, project string) {
	r := w.deviceRandom
	metal, networks := r.IntN(2) == 0, []string{"storage", "data"}[:r.IntN(3)]
	if !metal || w.fabric == nil || project != api.DefaultProject {
		return
	}
	g.Stack, g.Size, g.Cores, g.Memory, g.Spares, g.Devices, g.Networks = api.StackMetal, 1+g.Size%2, 1, 0, 0, nil, api.OnNetworks(networks...)
}

// keepers are those of a server.
func (f *managed) keepers(log *slog.Logger) situation.Fabrics {
	if f == nil {
		return nil
	}
	return situation.Fabrics{cell: site.NewKeeper(&executor{fake.NewSite(&f.tables), f}, log)}
}

// offers is what the site carries.
func (w *world) offers() offer.Site {
	if w.fabric == nil {
		return offer.Site{Metal: w.whole}
	}
	return offer.Site{Metal: w.whole, Fabrics: []string{cell}}
}

// executor is a server's way to the fabric.
type executor struct {
	*fake.Site
	f *managed
}

// errFabric is what a call that fails comes to.
var errFabric = errors.New("the subnet manager does not answer")

// Apply tells the fabric, if the call gets there, and returns that it did, if the answer does.
func (e *executor) Apply(ctx context.Context, epoch lifecycle.Epoch, networks []site.Network) error {
	f := e.f
	fate := f.fate()
	if fate.fails && !fate.late {
		return errFabric
	}
	if !pause(ctx, fate.travels) {
		return ctx.Err()
	}
	if err := f.obey(ctx, e, epoch, networks); err != nil {
		return err
	}
	f.w.inbox.post(cell, func() { f.w.after(fate.takes, f.step) })
	if fate.fails {
		return errFabric
	}
	return nil
}

// Observe reads the tables.
func (e *executor) Observe(ctx context.Context) (site.Observation, error) {
	if e.f.fate().fails {
		return site.Observation{}, errFabric
	}
	seen, err := e.Site.Observe(ctx)
	seen.Epoch = e.f.real(seen.Epoch)
	return seen, err
}

// callFate is what befalls a call: it fails, late or before it has done anything; it travels for a while, and takes a while to come into force.
type callFate struct {
	fails, late    bool
	travels, takes time.Duration
}

func (f *managed) fate() callFate {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, r := time.Now(), f.random
	fate := callFate{fails: now.Before(f.fails), late: r.IntN(2) == 0, travels: span(r, 0, 100*time.Millisecond), takes: span(r, 10*time.Millisecond, 2*time.Second)}
	if long, seldom := span(r, time.Second, 20*time.Second), r.IntN(6) == 0; now.Before(f.slow) || seldom && !f.w.isCalm() && f.w.cfg.Kinds.Has(Fabric) {
		fate.travels, fate.takes = long, 2*long
	}
	return fate
}

// step brings the oldest order into force that is not.
func (f *managed) step() {
	f.tables.Step()
	f.w.touched()
}

// fault lets something be wrong with the fabric for a while: with one place of it, or with all calls.
func (f *managed) fault(what, which int, lasts time.Duration) {
	if f == nil || len(f.places) == 0 {
		return
	}
	at, end := f.places[which%len(f.places)], time.Now().Add(lasts)
	f.w.happened(Fabric.String())
	switch what % 4 {
	case 0:
		f.w.trace("fabric: %s can't be read for %s", at, lasts)
		f.blind[at] = later(f.blind[at], end)
	case 1:
		f.w.trace("fabric: %s keeps what it has for %s", at, lasts)
		f.stuck[at] = later(f.stuck[at], end)
	case 2:
		f.w.trace("fabric: calls fail for %s", lasts)
		f.set(&f.fails, end)
	default:
		f.w.trace("fabric: it is slow for %s, and then its calls fail", lasts)
		f.set(&f.slow, end)
		f.w.after(lasts/2, func() { f.set(&f.fails, end) })
	}
	f.look()
	f.w.after(lasts, f.look)
}

func (f *managed) set(until *time.Time, end time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.w.isCalm() {
		*until = later(*until, end)
	}
}

// look lets places be what is wrong with them now.
func (f *managed) look() {
	now := time.Now()
	for _, at := range f.places {
		why := ""
		if now.Before(f.blind[at]) {
			why = "its switch does not answer"
		}
		f.tables.Blind(at, why)
		f.tables.Stick(at, now.Before(f.stuck[at]))
	}
}

// mend ends all that is wrong with the fabric.
func (f *managed) mend() {
	if f == nil {
		return
	}
	clear(f.blind)
	clear(f.stuck)
	f.mu.Lock()
	f.fails, f.slow = time.Time{}, time.Time{}
	f.mu.Unlock()
	f.look()
}

// inNetwork is one place in one network, by its index.
type inNetwork struct {
	index int
	at    string
}

// check checks, over the tables, that no place is in a network for the sake of an assignment that was confirmed clean: its node may be
// another's by now.
func (f *managed) check(m *mirror) {
	owners := map[inNetwork]bool{}
	own := func(a *api.Assignment) {
		for _, p := range a.Ports {
			if n := m.networks[p.Network]; n != nil && p.Fabric == cell {
				owners[inNetwork{n.FabricNumber(), p.At}] = true
			}
		}
	}
	for _, name := range m.names() {
		for _, a := range m.assignments(m.clusters[name].record) {
			if !a.clean {
				own(a.Assignment)
			}
		}
	}
	for _, q := range m.quarantines {
		own(&q.Assignment)
	}
	for at := range f.there() {
		if !owners[at] {
			f.w.fail("fabric", "place %s is in network %d, and nobody there is not confirmed clean", at.at, at.index)
		}
	}
}

// there are the places that are in networks.
func (f *managed) there() map[inNetwork]bool {
	all := map[inNetwork]bool{}
	for _, n := range f.tables.Networks() {
		for _, p := range n.Ports {
			all[inNetwork{n.Number, p.At}] = true
		}
	}
	return all
}

// checkFabric looks at the tables of the fabric, if the site has one.
func (w *world) checkFabric() {
	if w.fabric != nil {
		w.read(w.fabric.check)
	}
}

// checkAttached checks that the ports of a cluster that is ready are in its networks.
func (w *world) checkAttached(c *state.Cluster) {
	if w.fabric == nil || c.Record == nil || c.Record.Phase != api.ClusterReady {
		return
	}
	there := w.fabric.there()
	w.read(func(m *mirror) {
		for a := range c.Held() {
			for _, p := range a.Ports {
				if n := m.networks[p.Network]; p.Fabric != "" && (n == nil || !there[inNetwork{n.FabricNumber(), p.At}]) {
					w.fail("fabric", "cluster %s is ready, and port %s of %s is not in network %s", c.Name(), p.At, a.ID, p.Network)
				}
			}
		}
	})
}

// obeyed are the orders that the tables took: the newest, and, without GuardStale, what each really was.
type obeyed struct {
	newest lifecycle.Epoch
	orders int64
	real   map[lifecycle.Epoch]lifecycle.Epoch
}

// obey hands an order to the tables, which must refuse one of an earlier epoch than another that they took.
func (f *managed) obey(ctx context.Context, e *executor, epoch lifecycle.Epoch, networks []site.Network) error {
	as := epoch
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.w.cfg.Without == GuardStale {
		f.obeyed.orders++
		as = lifecycle.Epoch{Term: f.obeyed.orders}
		f.obeyed.real[as] = epoch
	}
	if err := e.Site.Apply(ctx, as, networks); err != nil {
		return err
	}
	if err := f.obeyed.newest.Accept(epoch); err != nil {
		f.w.fail("obedience", "the fabric obeys a former order: %v", err)
	}
	f.obeyed.newest = epoch
	return nil
}

// real is the epoch of an order.
func (f *managed) real(epoch lifecycle.Epoch) lifecycle.Epoch {
	f.mu.Lock()
	defer f.mu.Unlock()
	if real, ok := f.obeyed.real[epoch]; ok {
		return real
	}
	return epoch
}

// checkFabricEmpty checks that nothing is left in the tables.
func (w *world) checkFabricEmpty() {
	if w.fabric == nil {
		return
	}
	if there := w.fabric.there(); len(there) > 0 {
		w.fail("end", "fabric: %v are never removed", there)
	}
}
