package sim

import (
	"maps"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// memberLog is what was last seen of a cluster's members: of assignments by ID, and of members by name, which outlive them.
type memberLog struct {
	uid                string
	assignments, names map[string]api.MemberPhase
}

// noteMembers checks that members change phase as the table says. What a new leader reads at first is taken as it is.
func (p *pass) noteMembers(name string, in lifecycle.ClusterInput) {
	if !p.leads() || in.Record == nil {
		return
	}
	now := &memberLog{uid: in.Record.UID, assignments: map[string]api.MemberPhase{}, names: map[string]api.MemberPhase{}}
	for _, a := range in.Assignments {
		if a.Clean {
			continue
		}
		phase, _ := lifecycle.MemberPhase(a, in.Observed, in.Nodes)
		now.assignments[a.ID] = phase
		if !a.Releasing && !a.Spare {
			now.names[a.Member] = phase
		}
	}
	for _, m := range in.Record.Lost {
		now.names[m.Member] = api.MemberLost
	}
	if in.Record.PlacedAt != nil && in.Record.Phase != api.ClusterDeleting && in.Intent != nil && in.Intent.DeleteRequestedAt == nil {
		for _, m := range lifecycle.MissingMembers(lifecycle.DesiredMembers(in.Intent.Spec, in.Intent.Removed), in.Assignments, in.Record.Lost) {
			now.names[m.Member] = api.MemberWaiting
		}
	}
	before := p.last[name]
	p.last[name] = now
	switch {
	case before == nil && p.first:
	case before == nil || before.uid != now.uid:
		p.compare(memberLog{}, *now)
	default:
		p.compare(*before, *now)
	}
}

// noteGone closes the logs of clusters that are no more.
func (p *pass) noteGone() {
	for _, name := range slices.Sorted(maps.Keys(p.last)) {
		if p.w.store.clusters[name].record == nil {
			if p.leads() {
				p.compare(*p.last[name], memberLog{})
			}
			delete(p.last, name)
		}
	}
	p.first = false
}

// compare checks every change between two looks.
func (p *pass) compare(before, now memberLog) {
	table := p.w.tables.members
	see := func(from, to api.MemberPhase) {
		if from == "" && to != api.MemberSpare && to != api.MemberWaiting && to != api.MemberAssigned {
			// Its node has reported on it between two looks.
			transition(p.w, table, "", api.MemberAssigned)
			from = api.MemberAssigned
		}
		if from != to {
			transition(p.w, table, from, to)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(now.assignments)) {
		see(before.assignments[id], now.assignments[id])
	}
	for _, id := range slices.Sorted(maps.Keys(before.assignments)) {
		if _, left := now.assignments[id]; !left {
			see(before.assignments[id], "")
		}
	}
	// Of names only what assignments don't tell: those that wait, and those that are lost.
	waits := func(phase api.MemberPhase) bool { return phase == api.MemberWaiting || phase == api.MemberLost }
	for _, name := range slices.Sorted(maps.Keys(now.names)) {
		from, to := before.names[name], now.names[name]
		if to == api.MemberWaiting && !waits(from) {
			from = "" // it was let go of, and asked for again
		}
		if waits(to) && from != to {
			see(from, to)
		} else if waits(from) && from != to {
			see(from, api.MemberAssigned)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before.names)) {
		if _, left := now.names[name]; !left && waits(before.names[name]) {
			see(before.names[name], "")
		}
	}
}
