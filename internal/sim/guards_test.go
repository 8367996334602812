package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/controller"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/store"
)

// Guard is something that keeps a site sound; a run Without it must fail. These are removed where the real components meet the modelled world:
// at the store, at what the leader hears, and in the modelled agents. Guards inside the real components are removed by "make mutants", which
// runs this simulator against each (tools/mutants/guards_sim.go).
type Guard string

// The guards that a run can do without.
const (
	GuardElection   Guard = "election"       // a commit needs the leadership
	GuardConflict   Guard = "conflict"       // a commit needs intent and record to be as they were when it was decided
	GuardEpoch      Guard = "epoch"          // agents obey no former leader and no earlier state
	GuardTerm       Guard = "term"           // agents remember the highest term over their restarts
	GuardLooking    Guard = "looking"        // an agent confirms clean only what it looked for and did not find
	GuardConfirming Guard = "confirming"     // the leader frees only what was confirmed clean
	GuardLost       Guard = "lost hold"      // what a lost member had stays taken until it is clean
	GuardGrace      Guard = "grace"          // a new leader starts death timers anew
	GuardReported   Guard = "reported"       // what a node does not speak of counts only once it has told all
	GuardRecovery   Guard = "recovery"       // a member that ran through a restart of its agent may well be ready
	GuardGarbage    Guard = "garbage"        // a new leader removes chunks that no record names
	GuardCurrent    Guard = "current"        // what an agent does not know of is left alone until it has heard the leader
	GuardDebris     Guard = "debris"         // what the leader does not know of is cleaned
	GuardDeadline   Guard = "clean deadline" // what can't be cleaned is quarantined in time
	GuardUsage      Guard = "usage"          // usage is written in the commit that ends it
	GuardHandedOver Guard = "handed over"    // a member that may run on another node stands still until its leader takes it back
	GuardDeparture  Guard = "departure"      // an agent starts no member that it sent away, or may have
	GuardWithdrawn  Guard = "withdrawn"      // a node has no floating address that it is no longer told of
	GuardSettled    Guard = "settled"        // a member uses a volume once the node of the one in whose place it runs is shut out
	GuardOneMachine Guard = "one machine"    // a machine begins with a block volume once another that had it on its node is gone, and other nodes have it then
	GuardOneMember  Guard = "one member"     // a cluster with a block volume gets no second member
	GuardShutOut    Guard = "shut out"       // a node serves no volume to those that it is not told of
	GuardKind       Guard = "kind"           // a block volume is told as such
	GuardLimits     Guard = "limits"         // agents change limits of I/O
	GuardStale      Guard = "stale order"    // a fabric obeys no former leader and no earlier state
)

// ears are what a leader hears with: the real monitor, but for the guards that a run is without. Each pass of the leader is looked at as it
// begins.
type ears struct {
	controller.Agents
	w *world
	s *server
}

// NextDeath is the first that a pass of the leader asks for.
func (t ears) NextDeath() time.Time {
	if left := time.Until(t.s.stalledUntil()); left > 0 {
		pause(t.s.ctx, left)
	}
	t.s.beginPass()
	t.w.lookAtPass(t.s)
	return t.Agents.NextDeath()
}

// Clean is all that is released, or all that was lost, whatever its agent has confirmed.
func (t ears) Clean(node string) []string {
	if t.w.cfg.Without != GuardConfirming && t.w.cfg.Without != GuardLost {
		return t.Agents.Clean(node)
	}
	clean := slices.Clone(t.Agents.Clean(node))
	for _, c := range t.s.cache.View().Clusters {
		if t.w.cfg.Without == GuardLost && c.Record != nil && c.Record.Phase == api.ClusterDeleting {
			continue
		}
		for a := range c.Releasing() {
			if a.Node == node {
				clean = append(clean, a.ID)
			}
		}
	}
	return clean
}

// Node is down as soon as it was not heard of.
func (t ears) Node(name string) (api.NodePhase, time.Time, string) {
	phase, seen, message := t.Agents.Node(name)
	if t.w.cfg.Without == GuardGrace && phase == api.NodeUnknown && seen.IsZero() {
		return api.NodeDown, seen, message
	}
	return phase, seen, message
}

func (t ears) Reported(name string) bool {
	return t.w.cfg.Without == GuardReported || t.Agents.Reported(name)
}

// tamper takes a guard out of a commit.
func (c *commit) tamper() {
	w := c.s.w
	switch w.cfg.Without {
	case GuardElection:
		c.conds = slices.DeleteFunc(slices.Clone(c.conds), func(cond store.Cond) bool { return cond.Leader })
	case GuardConflict:
		if c.term != 0 {
			c.conds = slices.DeleteFunc(slices.Clone(c.conds), func(cond store.Cond) bool { return !cond.Leader })
		}
	case GuardGarbage:
		if c.term != 0 && strings.HasPrefix(c.ops[0].Key, prefixChunk) && c.ops[0].Delete {
			c.ops = []store.Op{{Key: "nothing", Delete: true}}
		}
	case GuardUsage:
		rest := slices.DeleteFunc(slices.Clone(c.ops), func(op store.Op) bool {
			return strings.HasPrefix(op.Key, prefixUsage) && w.drawnFor(op.Key, 20) == 0
		})
		if len(rest) > 0 {
			c.ops = rest
		}
	}
}

// deadlines are those of the leader.
func (w *world) deadlines() lifecycle.Deadlines {
	d := lifecycle.DefaultDeadlines()
	if w.cfg.Without == GuardDeadline {
		d.Clean = longest
	}
	return d
}
