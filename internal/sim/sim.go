// Package sim lives through whole sites on a virtual clock: users who create and delete clusters, a leader that decides with
// internal/placement and internal/lifecycle, agents that carry out what lifecycle tells them, and everything that goes wrong between
// them: members that end, starts and cleanings that fail, agents and machines that restart, messages that come late, leaders that
// crash between two writes or go on believing that they lead.
//
// After every step it checks what must always hold (check.go). A run is determined by its seed: a failure is replayed by it. It must
// never do anything the real controller and agents could not: it calls the same planners, and the store obeys the same guards.
//
// Start with Run, then leader.go and agent.go.
package sim

import (
	"container/heap"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Config says what is lived through.
type Config struct {
	Seed uint64
	// Lives is how many clusters are created.
	Lives int
	// Trace, if any, is told every step.
	Trace io.Writer
	// Without leaves out one of the guards, to show that the checks notice.
	Without Guard
}

// Guard is something that keeps a site sound; a run Without it must fail.
type Guard string

// The guards that a run can do without.
const (
	GuardElection   Guard = "election"       // a commit needs the leadership
	GuardEpoch      Guard = "epoch"          // agents obey no former leader and no earlier state
	GuardLooking    Guard = "looking"        // an agent confirms clean only what it looked for and did not find
	GuardConfirming Guard = "confirming"     // the leader frees only what was confirmed clean
	GuardQuarantine Guard = "quarantine"     // the network of a quarantined member is not given to others
	GuardGrace      Guard = "grace"          // a new leader starts death timers anew
	GuardReported   Guard = "reported"       // what a node does not speak of counts only once it has told all
	GuardRecovery   Guard = "recovery"       // a member that ran through a restart of its agent may well be ready
	GuardGarbage    Guard = "garbage"        // a new leader removes chunks that no record names
	GuardCurrent    Guard = "current"        // what an agent does not know of is left alone until it has heard the leader
	GuardDebris     Guard = "debris"         // what the leader does not know of is cleaned
	GuardDeadline   Guard = "clean deadline" // what can't be cleaned is quarantined in time
)

// Stats are what a run saw.
type Stats struct {
	Lives, Steps, Commits, Elections, Rejected int
	// Virtual is the time that passed on the virtual clock.
	Virtual time.Duration
	// Transitions counts changes of phase, as "cluster pending -> starting".
	Transitions map[string]int
	// Events counts recorded events by reason.
	Events map[string]int
}

// epoch is when every simulation begins.
var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// world is one simulated site.
type world struct {
	cfg    Config
	random *rand.Rand
	now    time.Time
	queue  queue
	seq    int64

	store  *store
	leader *leader // nil while nobody leads
	nodes  []*node
	atOnce int  // steps since the clock moved
	steady bool // leaders stay
	calm   bool // nothing goes wrong any more
	ids    int
	stats  Stats
	err    error

	// live are the IDs of assignments that hold something, as of the revision checked.
	live    map[string]bool
	checked int64
}

// Run lives through one site. The error tells the first check that failed, and when.
func Run(cfg Config) (Stats, error) {
	w := &world{
		cfg: cfg, random: rand.New(rand.NewPCG(cfg.Seed, 0x6e6d)), now: epoch, store: newStore(),
		stats: Stats{Transitions: map[string]int{}, Events: map[string]int{}},
	}
	w.store.unguarded = cfg.Without == GuardElection
	w.makeNodes()
	w.elect()
	w.scheduleUsers()
	w.scheduleFaults()
	w.drive()
	if w.err == nil {
		w.err = w.checkEnd()
	}
	w.stats.Virtual = w.now.Sub(epoch)
	if w.err != nil {
		return w.stats, fmt.Errorf("seed %d, %s into the simulation: %w", cfg.Seed, w.stats.Virtual, w.err)
	}
	return w.stats, nil
}

// longest bounds the virtual time of a run: what is not at its end by then never gets there.
const longest = 24 * time.Hour

// mostAtOnce bounds how much happens while the clock stands still.
const mostAtOnce = 10_000

// drive takes one step after the other until nothing is left to happen.
func (w *world) drive() {
	for w.queue.Len() > 0 && w.err == nil {
		e := heap.Pop(&w.queue).(*event)
		if e.cancelled {
			continue
		}
		if e.at.After(w.now) {
			w.now, w.atOnce = e.at, 0
		}
		if w.atOnce++; w.atOnce > mostAtOnce {
			w.err = fmt.Errorf("the site goes round in circles: %d steps at one moment", w.atOnce)
			return
		}
		if w.now.Sub(epoch) > longest {
			w.err = fmt.Errorf("the site does not come to rest: something is still to happen after %s", longest)
			return
		}
		w.stats.Steps++
		e.do()
		if w.err == nil {
			w.err = w.check()
		}
	}
}

// event is something that happens at a time.
type event struct {
	at        time.Time
	seq       int64
	do        func()
	cancelled bool
}

// queue orders events by time, and those of one time as they were scheduled.
type queue []*event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if q[i].at.Equal(q[j].at) {
		return q[i].seq < q[j].seq
	}
	return q[i].at.Before(q[j].at)
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(*event)) }
func (q *queue) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return e
}

func (w *world) at(t time.Time, do func()) *event {
	if t.Before(w.now) {
		t = w.now
	}
	w.seq++
	e := &event{at: t, seq: w.seq, do: do}
	heap.Push(&w.queue, e)
	return e
}

func (w *world) after(d time.Duration, do func()) *event { return w.at(w.now.Add(d), do) }

// between draws a duration.
func (w *world) between(low, high time.Duration) time.Duration {
	return low + time.Duration(w.random.Int64N(int64(high-low)+1))
}

// chance is true once in n times, and never when it is calm.
func (w *world) chance(n int) bool { return !w.calm && w.random.IntN(n) == 0 }

func (w *world) trace(format string, args ...any) {
	if w.cfg.Trace != nil {
		fmt.Fprintf(w.cfg.Trace, "%12s  %s\n", w.now.Sub(epoch), fmt.Sprintf(format, args...))
	}
}

// makeNodes draws the machines of the site.
func (w *world) makeNodes() {
	for i := range 2 + w.random.IntN(5) {
		cores := 2 + w.random.IntN(7)
		rec := api.NodeRecord{
			Name:         fmt.Sprintf("n%d", i+1),
			Stacks:       []api.StackCheck{{Stack: api.StackContainer, OK: true}},
			Environments: []api.EnvironmentOnNode{{Name: "local", Stacks: []api.Stack{api.StackContainer}, OK: true}},
		}
		rec.Capacity.MemoryBytes = int64(2+w.random.IntN(8)) << 30
		for c := range cores {
			rec.Capacity.Cores = append(rec.Capacity.Cores, api.Core{Slot: c, CPU: c, NUMANode: 2 * c / cores})
		}
		n := &node{w: w, record: rec, up: true, host: map[string]*hostMember{}}
		w.nodes = append(w.nodes, n)
		n.startAgent()
	}
}
