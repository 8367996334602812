package sim

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
)

// looked is what was last seen of members and nodes through the leader's eyes, pass by pass.
type looked struct {
	mu      sync.Mutex
	server  *server
	elected time.Time
	phases  map[string]api.NodePhase
	first   bool // the leader is new: what it reads at first is taken as it is
	members map[string]*memberLog
	// at is when the last look was, stood whether the leader has stood still since.
	at    time.Time
	stood bool
}

// memberLog is what was last seen of a cluster's members: of assignments by ID, and of members by name, which outlive them.
type memberLog struct {
	uid                string
	assignments, names map[string]api.MemberPhase
}

func newLooked() *looked {
	return &looked{first: true, phases: map[string]api.NodePhase{}, members: map[string]*memberLog{}}
}

// lookAtPass looks at what a leader is about to decide on. It is called by the leader.
func (w *world) lookAtPass(s *server) {
	if w.store.leader() != s {
		return
	}
	l := w.looked
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := w.store.leaderSince(); l.server != s || !l.elected.Equal(at) {
		l.server, l.elected, l.first = s, at, true
	}
	l.stood, l.at = s.busyUntil().After(l.at), time.Now()
	site := s.look()
	w.noteNodes(s, site.View)
	for _, c := range site.View.Clusters {
		w.noteMembers(site, c)
	}
	w.noteGone(site.View)
	if w.quiet() {
		w.checkQueue(site)
	}
	l.first = false
}

// noteNodes checks that nodes change phase as the table says, and that none is called down too early.
func (w *world) noteNodes(s *server, view *state.View) {
	l, phases := w.looked, map[string]api.NodePhase{}
	for n := range view.Agents() {
		phases[n.Name], _, _ = ears{s.monitor, w, s}.Node(n.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(phases)) {
		from, to := l.phases[name], phases[name]
		if from == to {
			continue
		}
		if l.first && from != "" && to == api.NodeUnknown { // it begins anew
			continue
		}
		if to == api.NodeDown {
			_, seen := s.monitor.Connected(name)
			if silent := s.wall().Sub(later(s.risenWall, seen)); silent < lifecycle.DefaultDeathTimer {
				w.fail("death", "node %s is called down %s after this server could first have heard of it", name, silent)
			}
		}
		if from == "" && to != api.NodeUnknown { // it has connected between two looks
			transition(w, tablesOf.nodes, name, "", api.NodeUnknown)
			from = api.NodeUnknown
		}
		if from == api.NodeDown && to == api.NodeUnknown && time.Since(s.busyUntil()) < slack { // it was back while the leader stood still
			transition(w, tablesOf.nodes, name, from, api.NodeReady)
			from = api.NodeReady
		}
		transition(w, tablesOf.nodes, name, from, to)
	}
	for name, from := range l.phases {
		if _, left := phases[name]; !left {
			transition(w, tablesOf.nodes, name, from, "")
		}
	}
	l.phases = phases
}

// noteMembers checks that members change phase as the table says.
func (w *world) noteMembers(site *situation.Site, c *state.Cluster) {
	l := w.looked
	in := site.Cluster(c)
	if in.Record == nil {
		return
	}
	now := &memberLog{uid: in.Record.UID, assignments: map[string]api.MemberPhase{}, names: map[string]api.MemberPhase{}}
	for _, a := range in.Assignments {
		if a.Clean {
			continue
		}
		phase := phaseOf(in, a)
		if !a.Releasing && phase == api.MemberUnhealthy && in.Observed[a.ID].Phase == api.MemberReleasing {
			w.fail("phases", "%s is held, and node %s removes it", a.ID, a.Node)
		}
		now.assignments[a.ID] = phase
		if !a.Releasing && a.IsMember() {
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
	before := l.members[c.Name()]
	l.members[c.Name()] = now
	switch {
	case l.first:
	case before == nil || before.uid != now.uid:
		w.compare(memberLog{}, *now)
	default:
		w.compare(*before, *now)
	}
}

// phaseOf is the phase of an assignment as the leader knows it: a ready member is no further than its parts are.
func phaseOf(in lifecycle.ClusterInput, a lifecycle.ClusterAssignment) api.MemberPhase {
	phase, _ := lifecycle.MemberPhase(a, in.Observed, in.Nodes)
	if phase != api.MemberReady {
		return phase
	}
	for _, p := range in.Assignments {
		if p.Of != a.ID || p.Releasing {
			continue
		}
		if its, _ := lifecycle.MemberPhase(p, in.Observed, in.Nodes); its != api.MemberReady {
			return its
		}
	}
	return phase
}

// noteGone closes the logs of clusters that are no more.
func (w *world) noteGone(view *state.View) {
	l := w.looked
	for _, name := range slices.Sorted(maps.Keys(l.members)) {
		if c := view.Cluster(name); c == nil || c.Record == nil {
			if !l.first {
				w.compare(*l.members[name], memberLog{})
			}
			delete(l.members, name)
		}
	}
}

// compare checks every change between two looks.
func (w *world) compare(before, now memberLog) {
	if maps.Equal(before.assignments, now.assignments) && maps.Equal(before.names, now.names) {
		return
	}
	see := func(of string, from, to api.MemberPhase) {
		if from == "" && to != api.MemberSpare && to != api.MemberWaiting && to != api.MemberAssigned {
			// Its node has reported on it between two looks.
			transition(w, tablesOf.members, of, "", api.MemberAssigned)
			from = api.MemberAssigned
		}
		if from != to {
			transition(w, tablesOf.members, of, from, to)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(now.assignments)) {
		see(id, before.assignments[id], now.assignments[id])
	}
	for _, id := range slices.Sorted(maps.Keys(before.assignments)) {
		if _, left := now.assignments[id]; !left {
			see(id, before.assignments[id], "")
		}
	}
	// Of names only what assignments don't tell: those that wait, and those that are lost.
	waits := func(phase api.MemberPhase) bool { return phase == api.MemberWaiting || phase == api.MemberLost }
	for _, name := range slices.Sorted(maps.Keys(now.names)) {
		from, to := before.names[name], now.names[name]
		if to == api.MemberWaiting && !waits(from) {
			from = "" // it was let go of, and asked for again
		}
		if to == api.MemberLost && from == api.MemberReady && w.looked.stood {
			from = api.MemberFailed // the leader stood still after that look, and decided on what its node had said by then
		}
		if to == api.MemberLost && from == api.MemberReady && w.store.inDoubt() {
			from = api.MemberUnknown // it was lost by a commit that came late, and is heard of again
		}
		if waits(to) && from != to {
			see(name, from, to)
		} else if waits(from) && from != to {
			see(name, from, api.MemberAssigned)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before.names)) {
		if _, left := now.names[name]; !left && waits(before.names[name]) {
			see(name, before.names[name], "")
		}
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
