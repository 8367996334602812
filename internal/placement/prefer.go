package placement

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// preferred are the nodes in the order in which a group takes them, all else equal: the natural one, but that whole machines are given away in the order of
// how soon and how surely they boot.
func (f *finder) preferred() []int32 {
	if !f.whole {
		return f.v.order
	}
	var open []int32
	for _, id := range f.v.order {
		if members, _, _ := f.room(id); members > 0 {
			open = append(open, id)
		}
	}
	slices.SortStableFunc(open, func(a, b int32) int {
		return compareReadiness(readinessOf(f.v.nodes[a]), readinessOf(f.v.nodes[b]))
	})
	return open
}

// Readiness is how soon and how surely a machine that is given away whole will boot.
type Readiness struct {
	// Warm: it is on, and waits in its boot agent. Serves: it is on as a node for others, and has to go off first.
	Warm, Serves bool
	// VerifiedAt is when it last proved that it boots; zero: that is not known.
	VerifiedAt time.Time
}

func readinessOf(n *node) Readiness {
	return Readiness{Warm: n.availability == Warm, Serves: n.availability == Schedulable, VerifiedAt: n.record.VerifiedAt}
}

// compareReadiness is negative where a is preferred: warm machines first, then those that are off, those before that proved later that they boot.
func compareReadiness(a, b Readiness) int {
	rank := func(r Readiness) int {
		switch {
		case r.Warm:
			return 0
		case !r.Serves:
			return 1
		default:
			return 2
		}
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), b.VerifiedAt.Compare(a.VerifiedAt))
}

// String says for people what speaks for a machine.
func (r Readiness) String() string {
	state := "off"
	switch {
	case r.Warm:
		state = "warm: it waits in its boot agent"
	case r.Serves:
		state = "on, as a node without members: it goes off first"
	}
	if r.VerifiedAt.IsZero() {
		return state + "; not known to boot"
	}
	return state + "; known to boot since " + r.VerifiedAt.UTC().Format("2006-01-02 15:04:05 UTC")
}

// MachineFit says of one machine whether a member that takes it whole can have it, and why.
type MachineFit struct {
	Node string
	Fits bool
	// Reason is what speaks for it, or what keeps it from being taken.
	Reason    string
	readiness Readiness
}

// Machines says of all machines that could carry members of a group whole, in the order in which the group would take them, whether they fit; those that do not come
// last. A node that no member could ever get whole is left out. Where the group needs no whole machines there are none.
func (s *Sketch) Machines(g api.Group) []MachineFit {
	if !Whole(g.Stack) {
		return nil
	}
	var all []MachineFit
	for _, id := range s.view.order {
		n := s.view.nodes[id]
		if n.availability == Absent || !slices.ContainsFunc(n.record.Stacks, func(c api.StackCheck) bool { return c.Stack == g.Stack }) {
			continue
		}
		fit := MachineFit{Node: n.record.Name, readiness: readinessOf(n)}
		if fit.Reason = s.view.whyNotWhole(id, g); fit.Reason == "" {
			fit.Fits, fit.Reason = true, fit.readiness.String()
		}
		all = append(all, fit)
	}
	slices.SortStableFunc(all, func(a, b MachineFit) int {
		switch {
		case a.Fits != b.Fits && a.Fits:
			return -1
		case a.Fits != b.Fits:
			return 1
		case !a.Fits:
			return 0
		}
		return compareReadiness(a.readiness, b.readiness)
	})
	return all
}

// whyNotWhole says why a machine can't be given whole to a member of a group now, "" where it can.
func (v *View) whyNotWhole(id int32, g api.Group) string {
	n, c := v.nodes[id], &v.cold[id]
	switch v.suits(id, g, &suits{}) {
	case "":
	case ConstraintEnvironment:
		return environmentProblem(n.record, g)
	case ConstraintLabels:
		return "it does not have the labels that the group selects"
	case ConstraintStack:
		return stackProblem(n.record, g.Stack)
	case ConstraintMTU:
		return mtuProblem(n.record, g.PortMTU)
	case ConstraintFabric:
		return "it " + fabricProblem(n.record, g.Interconnect)
	case ConstraintLocalDisks:
		return localDisksProblem(n.record, g.LocalDisks)
	case ConstraintGPUPrograms:
		return noGPUPrograms
	case ConstraintVolume:
		return "it can't have " + volumePlaceText(g.VolumePlace)
	default:
		return "the group's other requests can't be met on it"
	}
	switch {
	case int(c.cores) < g.Cores:
		return fmt.Sprintf("it has %d cores, and each member needs %d", c.cores, g.Cores)
	case c.memory < int64(g.Memory):
		return fmt.Sprintf("it has %s for members, and each needs %s", api.Bytes(c.memory), g.Memory)
	case len(n.holders) > 0:
		return "it is in use"
	case v.wholeAt(id, freeNow):
		return ""
	}
	return "it is " + cmp.Or(map[Availability]string{
		Unknown: "not reporting", Down: "not to be had: it boots, is in quarantine or has failed", Returning: "being cleaned, inspected or switched off, and free after that",
	}[n.availability], string(n.availability))
}
