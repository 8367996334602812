package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/machine/power/fake"
)

// Config is what a run lives through.
type Config struct {
	Settings
	// Trace, if any, gets every step.
	Trace io.Writer
	// Without leaves out one of the guards, to show that the checks notice.
	Without Guard
}

// Violation is a check that failed.
type Violation struct {
	Settings Settings
	// Check names what failed, and says tells what it found, without the names of this run; After is the time on the virtual clock.
	Check, says, Message string
	After                time.Duration
}

// sameAs reports whether both are one failure: one check may find different faults.
func (v *Violation) sameAs(other *Violation) bool {
	return v.Check == other.Check && v.says == other.says
}

func (v *Violation) Error() string {
	return fmt.Sprintf("%s: %s\n%s into the run %s", v.Check, v.Message, v.After, v.Settings)
}

// Stats are what a run saw.
type Stats struct {
	Lives, Steps, Commits, Elections, Rejected int
	// Virtual is the time that passed on the virtual clock.
	Virtual time.Duration
	// Transitions counts changes of phase, as "cluster pending -> starting".
	Transitions map[string]int
	// Events counts recorded events by reason, Happened other things by name.
	Events, Happened map[string]int
}

func newStats() Stats {
	return Stats{Transitions: map[string]int{}, Events: map[string]int{}, Happened: map[string]int{}}
}

// world is one simulated site. What is modelled is owned by one goroutine, the driver (drive); what the real components call is guarded by
// locks of its own: the witness, the boxes, the links, and mu.
type world struct {
	cfg   Config
	t     *testing.T
	epoch time.Time
	ctx   context.Context
	end   context.CancelFunc
	// Users, faults and all the rest draw from sources of their own: with fewer faults the users still ask for the same.
	random, userRandom, faultRandom, deviceRandom, blindRandom, rogueRandom, saveRandom, moveRandom, resizeRandom, snapshotRandom *rand.Rand

	queue  queue
	seq    int64
	atOnce int // steps since the clock moved
	moved  time.Time
	inbox  *inbox

	store   *witness
	servers servers
	bmcs    *fake.Site
	fabric  *managed // nil: the site has none
	boxes   []*box
	whole   bool // members get whole machines
	nodes   []*node
	carries []*carry
	lives   int // how many memories members had so far
	ids     int
	rivals  int
	steady  bool          // leaders stay
	over    bool          // everything is being deleted
	ended   bool          // nothing is left to be done
	ahead   time.Duration // of the real time is the clock on the wall of a server that starts
	checks  *checks
	spell   spell
	looked  *looked

	mu   sync.Mutex
	calm bool // nothing goes wrong any more
	// forced are the UIDs of machines that were to be removed by force.
	forced map[string]bool
	stats  Stats
	err    *Violation
}

// run lives through one site. The error is a *Violation: the first check that failed.
func run(t *testing.T, cfg Config) (stats Stats, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, cfg)
		w.drive()
		if w.failed() == nil {
			w.checkEnd()
		}
		w.stop()
		w.stats.Virtual = w.since()
		stats = w.stats
		if w.err != nil {
			err = w.err
		}
	})
	return stats, err
}

func newWorld(t *testing.T, cfg Config) *world {
	w := &world{
		cfg: cfg, t: t, epoch: time.Now(), inbox: newInbox(), forced: map[string]bool{}, bmcs: fake.NewSite(), stats: newStats(),
		random: source(cfg.Seed, "rest"), userRandom: source(cfg.Seed, "user"), faultRandom: source(cfg.Seed, "ills"),
		deviceRandom: source(cfg.Seed, "devices"), blindRandom: source(cfg.Seed, "blind"), rogueRandom: source(cfg.Seed, "rogue"), saveRandom: source(cfg.Seed, "saves"),
		moveRandom: source(cfg.Seed, "moves"), resizeRandom: source(cfg.Seed, "resizes"), snapshotRandom: source(cfg.Seed, "snapshots"),
	}
	w.ctx, w.end = context.WithCancel(t.Context())
	w.store = newWitness(w)
	w.checks, w.looked = newChecks(), newLooked()
	w.makeFabric()
	w.makeNodes()
	w.drawWhole()
	w.makeBoxes()
	w.start()
	w.makeImages()
	for _, n := range w.nodes {
		n.startAgent()
	}
	w.scheduleUsers()
	w.schedulePeople()
	w.scheduleBuilds()
	w.scheduleTrust()
	w.scheduleFaults()
	return w
}

// stop ends everything that runs, so that the bubble can end.
func (w *world) stop() {
	w.servers.stop()
	for _, n := range w.nodes {
		n.stopAgent()
	}
	w.end()
	for _, b := range w.boxes {
		b.machine.Set(api.PowerOff)
		b.lives.Wait()
	}
	_ = w.store.Close()
}

func source(seed uint64, purpose string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(purpose))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// since is the time on the virtual clock.
func (w *world) since() time.Duration { return time.Since(w.epoch) }

// fail notes the first check that fails; it ends the run. It may be called from any goroutine.
func (w *world) fail(check, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = &Violation{Settings: w.cfg.Settings, Check: check, says: format, Message: fmt.Sprintf(format, args...), After: w.since()}
		w.inbox.wake()
	}
}

func (w *world) failed() *Violation {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// must fails when what can't fail fails.
func (w *world) must(err error) {
	if err != nil {
		w.fail("must", "%v", err)
	}
}

// quiet reports whether nothing goes wrong in this run.
func (w *world) quiet() bool { return w.cfg.Kinds&^QuietKinds() == 0 }

func (w *world) isCalm() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calm
}

// between draws a duration.
func (w *world) between(low, high time.Duration) time.Duration { return span(w.random, low, high) }

func span(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)+1))
}

// chance is true once in n times, and never when it is calm or the kind must not happen.
func (w *world) chance(k Kind, n int) bool { return w.chanceOf(w.random, k, n) }

// chanceOf is chance with another source.
func (w *world) chanceOf(r *rand.Rand, k Kind, n int) bool {
	hit := r.IntN(n) == 0
	if !hit || w.isCalm() || !w.cfg.Kinds.Has(k) {
		return false
	}
	w.happened(k.String())
	return true
}

// happened counts that something of the name happened. It may be called from any goroutine.
func (w *world) happened(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.Happened[name]++
}

// transition checks a change of phase against the table, and counts it.
func transition[P ~string](w *world, m lifecycle.Machine[P], of string, from, to P) {
	if err := m.Check(from, to); err != nil {
		w.fail("phases", "%v", err)
	}
	name := transitionName(m.Name, from, to)
	w.mu.Lock()
	w.stats.Transitions[name]++
	w.mu.Unlock()
	w.trace("%s (%s)", name, of)
}

func transitionName[P ~string](kind string, from, to P) string {
	name := func(p P, none string) string {
		if p == "" {
			return none
		}
		return string(p)
	}
	return fmt.Sprintf("%s %s -> %s", kind, name(from, "new"), name(to, "gone"))
}

// everyTransition lists the transitions of all tables as Stats names them.
func everyTransition() []string {
	var all []string
	all = append(all, transitionsOf(lifecycle.Clusters())...)
	all = append(all, transitionsOf(lifecycle.Members())...)
	all = append(all, transitionsOf(lifecycle.Nodes())...)
	all = append(all, transitionsOf(lifecycle.Machines())...)
	all = append(all, transitionsOf(lifecycle.Jobs())...)
	return append(all, transitionsOf(lifecycle.Builds())...)
}

func transitionsOf[P ~string](m lifecycle.Machine[P]) []string {
	var all []string
	for _, t := range m.Transitions {
		for _, from := range t.From {
			all = append(all, transitionName(m.Name, from, t.To))
		}
	}
	return all
}

// A site has at most so many servers of its own, and so many machines that are woken when they are asked for.
const mostNodes, mostBoxes = 6, 3

// makeNodes draws the nodes of the site that are always on.
func (w *world) makeNodes() {
	count := 2 + w.random.IntN(mostNodes-1)
	for i := range mostNodes {
		cores := 2 + w.random.IntN(7)
		memory := int64(2+w.random.IntN(8)) << 30
		devices := w.drawDevices()
		if i >= count || w.cfg.Nodes != 0 && i >= w.cfg.Nodes {
			continue
		}
		name := fmt.Sprintf("n%d", i+1)
		record := nodeRecord(name, fmt.Sprintf("r%d", i%2), fmt.Sprintf("192.0.2.%d", i+1), cores, memory)
		record.Capacity.Devices = devices
		w.fabric.attach(&record)
		w.addAdapters(&record)
		w.addPool(&record)
		w.nodes = append(w.nodes, newNode(w, record))
	}
}

func nodeRecord(name, rack, underlay string, cores int, memoryBytes int64) api.NodeRecord {
	rec := api.NodeRecord{
		Name: name, Labels: map[string]string{"rack": rack},
		Stacks:       []api.StackCheck{{Stack: api.StackContainer, OK: true}, {Stack: api.StackVM, OK: true}},
		Environments: []api.EnvironmentOnNode{{Name: "local", Stacks: []api.Stack{api.StackContainer, api.StackVM}, OK: true}},
		Underlay:     underlay,
	}
	rec.Capacity.MemoryBytes = memoryBytes
	if name == rogueBuilder || slices.Contains(honestBuilders, name) {
		rec.Builder = &api.BuilderCheck{OK: true}
	}
	for c := range cores {
		rec.Capacity.Cores = append(rec.Capacity.Cores, api.Core{Slot: c, CPU: c, NUMANode: 2 * c / cores})
	}
	return rec
}

// node returns the node of this name.
func (w *world) node(name string) *node {
	for _, n := range w.nodes {
		if n.record.Name == name {
			return n
		}
	}
	return nil
}
