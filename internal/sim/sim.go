// Package sim lives through whole sites on a virtual clock: users who create, scale, pause, extend and delete clusters, a leader that
// decides with internal/lifecycle, internal/admission, internal/placement and internal/decision, agents that carry out what lifecycle
// tells them, and everything that goes wrong between them: members that end, machines that die, networks that are cut one way or both,
// messages that come late, agents that sleep, clocks that jump, commits of unknown outcome, leaders that crash between two writes or
// go on believing that they lead.
//
// After every step it checks what must always hold (the check files). A run is determined by its settings, one word: a failure is
// made smaller (shrink.go) and replayed by it. It must never do anything the real controller and agents could not: it calls the same
// planners, and the store obeys the same guards.
//
// Start with Run, then leader.go and agent.go.
package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// Config says what is lived through.
type Config struct {
	Settings
	// Trace, if any, is told every step.
	Trace io.Writer
	// Without leaves out one of the guards, to show that the checks notice.
	Without Guard
}

// Violation is a check that failed.
type Violation struct {
	Settings Settings
	// Check names what failed; After is the time on the virtual clock.
	Check, Message string
	After          time.Duration
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

// world is one simulated site.
type world struct {
	cfg Config
	// Users, faults and all the rest draw from sources of their own: with fewer faults the users still ask for the same.
	random, userRandom, faultRandom *rand.Rand

	now    time.Time
	queue  queue
	seq    int64
	atOnce int           // steps since the clock moved
	skew   time.Duration // what machines' clocks say, less what the time is

	store   *store
	leader  *leader   // nil while nobody leads
	zombies []*leader // deposed, and unaware of it
	nodes   []*node
	ids     int
	steady  bool // leaders stay
	calm    bool // nothing goes wrong any more
	over    bool // everything is being deleted

	stats  Stats
	err    *Violation
	checks checks
	tables tables
}

// tables are the phases and what may follow what.
type tables struct {
	clusters lifecycle.Machine[api.ClusterPhase]
	members  lifecycle.Machine[api.MemberPhase]
	nodes    lifecycle.Machine[api.NodePhase]
}

// Run lives through one site. The error is a *Violation: the first check that failed.
func Run(cfg Config) (Stats, error) {
	w := &world{
		cfg: cfg, now: epoch, store: newStore(),
		random: source(cfg.Seed, "rest"), userRandom: source(cfg.Seed, "user"), faultRandom: source(cfg.Seed, "ills"),
		stats: Stats{Transitions: map[string]int{}, Events: map[string]int{}, Happened: map[string]int{}},
	}
	w.checks = newChecks()
	w.tables = tables{clusters: lifecycle.Clusters(), members: lifecycle.Members(), nodes: lifecycle.Nodes()}
	w.store.unguarded = cfg.Without == GuardElection
	w.makeNodes()
	w.elect()
	w.scheduleUsers()
	w.scheduleFaults()
	w.drive()
	if w.err == nil {
		w.checkEnd()
	}
	w.stats.Virtual = w.now.Sub(epoch)
	if w.err != nil {
		return w.stats, w.err
	}
	return w.stats, nil
}

func source(seed uint64, purpose string) *rand.Rand {
	var salt uint64
	for _, c := range purpose {
		salt = salt<<8 | uint64(c)
	}
	return rand.New(rand.NewPCG(seed, salt))
}

// fail notes the first check that fails; it ends the run.
func (w *world) fail(check, format string, args ...any) {
	if w.err == nil {
		w.err = &Violation{Settings: w.cfg.Settings, Check: check, Message: fmt.Sprintf(format, args...), After: w.now.Sub(epoch)}
	}
}

// must fails when what can't fail fails.
func (w *world) must(err error) {
	if err != nil {
		w.fail("must", "%v", err)
	}
}

// between draws a duration.
func (w *world) between(low, high time.Duration) time.Duration { return span(w.random, low, high) }

func span(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)+1))
}

// chance is true once in n times, and never when it is calm or the kind must not happen.
func (w *world) chance(k Kind, n int) bool {
	hit := w.random.IntN(n) == 0
	if !hit || w.calm || !w.cfg.Kinds.Has(k) {
		return false
	}
	w.happened(k.String())
	return true
}

// happened counts that something of the name happened.
func (w *world) happened(name string) { w.stats.Happened[name]++ }

// transition checks a change of phase against the table, and counts it.
func transition[P ~string](w *world, m lifecycle.Machine[P], from, to P) {
	if err := m.Check(from, to); err != nil {
		w.fail("phases", "%v", err)
	}
	name := transitionName(m.Name, from, to)
	w.stats.Transitions[name]++
	w.trace("%s", name)
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

// mostNodes is how many machines a site has at most.
const mostNodes = 6

// makeNodes draws the machines of the site.
func (w *world) makeNodes() {
	count := 2 + w.random.IntN(mostNodes-1)
	for i := range mostNodes {
		cores := 2 + w.random.IntN(7)
		memory := int64(2+w.random.IntN(8)) << 30
		if i >= count || w.cfg.Nodes != 0 && i >= w.cfg.Nodes {
			continue
		}
		rec := api.NodeRecord{
			Name: fmt.Sprintf("n%d", i+1), Labels: map[string]string{"rack": fmt.Sprintf("r%d", i%2)},
			Stacks:       []api.StackCheck{{Stack: api.StackContainer, OK: true}},
			Environments: []api.EnvironmentOnNode{{Name: "local", Stacks: []api.Stack{api.StackContainer}, OK: true}},
			Underlay:     fmt.Sprintf("192.0.2.%d", i+1), FirstSeenAt: epoch,
		}
		rec.Capacity.MemoryBytes = memory
		for c := range cores {
			rec.Capacity.Cores = append(rec.Capacity.Cores, api.Core{Slot: c, CPU: c, NUMANode: 2 * c / cores})
		}
		n := newNode(w, rec)
		w.nodes = append(w.nodes, n)
		n.startAgent()
	}
}

// node returns the machine of this name.
func (w *world) node(name string) *node {
	for _, n := range w.nodes {
		if n.record.Name == name {
			return n
		}
	}
	return nil
}
