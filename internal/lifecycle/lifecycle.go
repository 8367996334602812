// Package lifecycle decides the next steps of clusters, members, nodes, machines, jobs and builds. A planner takes the record, the
// observations and the time. It returns a list of operations, or the job or build to store.
//
// The package is pure: no I/O, no clock, no randomness, no memory between calls. Planners return operations and never carry them out.
// The controller commits the operations of PlanCluster, PlanMachine and PlanQuarantine, and the results of PlanJob and PlanBuild. The
// node's agent executes the operations of PlanMember. Each planner has its own type of operation, and a handler returns an error for an
// unknown operation.
//
// Planning is level-triggered: a planner looks at the present state, not at the change. An input that is planned twice, or late, or
// after a crash gives the operations that are still needed. The permitted successions of phases are data (tables.go), from which
// docs/lifecycle.md is generated.
//
// Start with tables.go, then cluster.go and member.go.
package lifecycle

import (
	"fmt"
	"slices"
)

// Transition says that a phase may follow others.
type Transition[P ~string] struct {
	// From are the phases it starts from; "" is "does not exist yet".
	From []P
	// To is the phase it leads to; "" is "gone".
	To P
	// On is the event or condition that causes it.
	On string
	// Why is the reason it is right, for people.
	Why string
}

// PhaseRule says who moves a phase on, and when at the latest.
type PhaseRule[P ~string] struct {
	Phase P
	// Owner is who moves the phase on.
	Owner string
	// Timer bounds the time in the phase. It is empty for a phase at rest: one that a user chose or ends.
	Timer string
}

// Machine is all phases of one kind of thing and the transitions between them.
type Machine[P ~string] struct {
	Name        string
	Phases      []PhaseRule[P]
	Transitions []Transition[P]
}

// IllegalTransition is a change of phase that the table does not have.
type IllegalTransition struct{ Machine, From, To string }

func (e *IllegalTransition) Error() string {
	return fmt.Sprintf("a %s can't go from phase %q to %q: no such transition; see docs/lifecycle.md", e.Machine, e.From, e.To)
}

// Check returns an *IllegalTransition unless the table has the transition.
func (m Machine[P]) Check(from, to P) error {
	for _, t := range m.Transitions {
		if t.To == to && slices.Contains(t.From, from) {
			return nil
		}
	}
	return &IllegalTransition{Machine: m.Name, From: string(from), To: string(to)}
}

// CheckChange is Check, except that a phase that stays is no transition, and legal.
func (m Machine[P]) CheckChange(from, to P) error {
	if from == to {
		return nil
	}
	return m.Check(from, to)
}
