package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// scheduleUsers lets users create clusters one after the other, change them, and delete each some time later. After the last it
// becomes calm.
func (w *world) scheduleUsers() {
	w.makeProjects()
	t := time.Duration(0)
	for i := range w.cfg.Lives {
		if i == w.cfg.Lives*2/3 {
			// From here on leaders live long enough to see deadlines pass: each new one starts them anew.
			w.after(t, func() { w.steady = true })
		}
		if i < w.cfg.Lives*2/3 {
			t += span(w.userRandom, 0, 20*time.Second)
		} else {
			t += span(w.userRandom, 0, 3*time.Minute)
		}
		life := w.drawLife(i)
		w.after(t, func() { w.create(life) })
	}
	rest := span(w.userRandom, time.Second, 5*time.Minute)
	if w.userRandom.IntN(4) == 0 {
		rest += 2 * lifecycle.DefaultDeadlines().Clean // long enough for what can't be cleaned to be quarantined
	}
	t += rest
	if w.cfg.Until != 0 {
		t = min(t, w.cfg.Until)
	}
	w.after(t, w.becomeCalm)
	w.scheduleOperators()
}

// life is what one user wants: a cluster, and changes of it after some time each.
type life struct {
	intent  api.ClusterIntent
	changes []change
	lasts   time.Duration
}

type change struct {
	after time.Duration
	kind  Kind
	group int
	size  int
	queue bool
	limit time.Duration
}

func (w *world) makeProjects() {
	w.store.projects[api.DefaultProject] = api.Project{Name: api.DefaultProject, Shares: 1, CreatedAt: epoch}
	w.store.projects["lab"] = api.Project{Name: "lab", Shares: 3, CreatedAt: epoch, Quota: api.Quota{Cores: 8 + w.userRandom.IntN(8), Clusters: 3}}
	w.store.projects["class"] = api.Project{
		Name: "class", Shares: 1, CreatedAt: epoch, Quota: api.Quota{Members: 4 + w.userRandom.IntN(6), Memory: api.Bytes(4+w.userRandom.IntN(8)) << 30},
	}
}

// drawLife draws all of it first and then drops what must not happen.
func (w *world) drawLife(i int) life {
	r, may := w.userRandom, w.cfg.Kinds.Has
	in := api.ClusterIntent{Name: fmt.Sprintf("c%d", i+1), Project: api.DefaultProject, User: fmt.Sprintf("user%d", r.IntN(2)+1)}
	if r.IntN(4) == 0 {
		// Some names are used again and again; a name that is taken is refused.
		in.Name = fmt.Sprintf("again%d", r.IntN(3))
	}
	if p := []string{api.DefaultProject, "lab", "class"}[r.IntN(3)]; may(Projects) {
		in.Project = p
	}
	if in.Project != api.DefaultProject {
		in.Name = in.Project + "." + in.Name
	}
	groups := 1 + r.IntN(2)
	for g := range 2 {
		group := w.drawGroup(fmt.Sprintf("g%d", g))
		if g < groups && (g == 0 || may(Groups)) {
			in.Spec.Groups = append(in.Spec.Groups, group)
		}
	}
	limit, priority, queue := api.Duration(span(r, 20*time.Second, 8*time.Minute)), r.IntN(3), r.IntN(3) > 0
	if limited := r.IntN(2) == 0; limited && may(Limits) {
		in.Spec.TimeLimit = limit
	}
	if chosen := r.IntN(4) == 0; chosen && may(Priorities) {
		in.Spec.Priority = priority
	}
	in.Spec.Queue = queue && may(Queues)
	l := life{intent: in, lasts: span(r, 10*time.Second, 5*time.Minute)}
	if r.IntN(5) == 0 {
		l.lasts = span(r, 0, 3*time.Second) // deleted before it is up
	}
	if stays := r.IntN(6) == 0; stays {
		l.lasts = longest // nobody deletes it, until everything is
	}
	for range r.IntN(5) {
		l.changes = append(l.changes, drawChange(r, min(l.lasts, 5*time.Minute)))
	}
	return l
}

func (w *world) drawGroup(name string) api.Group {
	r, may := w.userRandom, w.cfg.Kinds.Has
	g := api.Group{
		Name: name, Size: 1 + r.IntN(4), Shape: api.Shape{Cores: 1 + r.IntN(3), Memory: api.Bytes(r.IntN(3)) << 29},
		Stack: api.StackContainer, Environment: "local",
	}
	spares, rack, check := r.IntN(3), fmt.Sprintf("r%d", r.IntN(2)), r.IntN(2) == 0
	if spares == 1 && may(Spares) {
		g.Spares = spares
	}
	if chosen := r.IntN(6) == 0; chosen && may(Selectors) {
		g.NodeSelector = map[string]string{"rack": rack}
	}
	if check && may(MemberIll) {
		g.Checks = []api.Check{{Name: "works", Command: []string{"true"}, Interval: api.Duration(30 * time.Second), Failures: 3}}
	}
	return g
}

func drawChange(r *rand.Rand, lasts time.Duration) change {
	kind := []Kind{Scale, Scale, Remove, Pause, Pause, Extend, Relabel}[r.IntN(7)]
	return change{
		after: span(r, 0, lasts), kind: kind, group: r.IntN(2), size: 1 + r.IntN(6), queue: r.IntN(2) == 0,
		limit: span(r, time.Minute, 10*time.Minute),
	}
}

// create is what the API does with the request, if a server is there to ask.
func (w *world) create(l life) {
	if w.calm {
		return
	}
	if w.leader == nil {
		w.after(time.Second, func() { w.create(l) })
		return
	}
	if w.store.clusters[l.intent.Name].intent != nil {
		return // refused: the name is taken
	}
	w.ids++
	in := l.intent
	in.UID, in.CreatedAt = fmt.Sprintf("u%d", w.ids), w.leader.now()
	w.stats.Lives++
	transition(w, w.tables.clusters, "", api.ClusterPending)
	w.trace("create %s (%s): %+v", in.Name, in.UID, in.Spec)
	w.store.putIntent(&in)
	w.wakeLeader()
	for _, c := range l.changes {
		w.after(c.after, func() { w.change(in.Name, in.UID, c) })
	}
	if l.lasts == longest {
		return
	}
	w.after(l.lasts, func() {
		if !w.calm { // what is there then is left alone for a while
			w.delete(w.store.intentOf(in.Name, in.UID))
		}
	})
}

// intentOf is the present intent of a cluster; nil when it is gone or another has its name.
func (s *store) intentOf(name, uid string) *api.ClusterIntent {
	if in := s.clusters[name].intent; in != nil && in.UID == uid {
		return in
	}
	return nil
}

func (w *world) delete(in *api.ClusterIntent) {
	if in == nil || in.DeleteRequestedAt != nil || w.store.clusters[in.Name].intent != in {
		return
	}
	if w.leader == nil {
		w.after(time.Second, func() { w.delete(w.store.intentOf(in.Name, in.UID)) })
		return
	}
	w.trace("delete %s", in.Name)
	at := w.leader.now()
	changed := *in
	changed.DeleteRequestedAt = &at
	w.store.putIntent(&changed)
	w.wakeLeader()
}

// change is what the API does with a change of a cluster: it validates, and stores another intent.
func (w *world) change(name, uid string, c change) {
	in := w.store.intentOf(name, uid)
	if in == nil || in.DeleteRequestedAt != nil || !w.cfg.Kinds.Has(c.kind) || w.calm || w.leader == nil {
		return
	}
	record := w.store.clusters[name].record
	changed := *in
	ok := false
	switch c.kind {
	case Scale:
		ok = w.changeSize(&changed, record, c)
	case Remove:
		ok = w.changeRemoved(&changed, record, c)
	case Pause:
		// Most go on after a while, even if much goes wrong meanwhile.
		if ok = changed.Paused || pausable(record); ok {
			changed.Paused = !changed.Paused
		}
		if ok && changed.Paused && c.size > 1 {
			w.after(c.limit/4, func() { w.resume(name, uid) })
		}
	case Extend:
		ok = changed.Spec.TimeLimit != 0 && c.limit > changed.Spec.TimeLimit.Std() && (record == nil || record.ExpiredAt == nil)
		changed.Spec.TimeLimit = api.Duration(c.limit)
		if ok {
			w.checks.disturbed++
		}
	case Relabel:
		ok = true
		changed.Labels = map[string]string{"note": c.limit.String()}
	}
	if !ok {
		return
	}
	w.happened(c.kind.String())
	w.trace("%s %s: %d members in groups of %v, without %v, paused %t, limit %s", c.kind, name, len(lifecycle.DesiredMembers(changed.Spec, changed.Removed)),
		changed.Spec.Groups, changed.Removed, changed.Paused, changed.Spec.TimeLimit)
	w.store.putIntent(&changed)
	w.wakeLeader()
}

func (w *world) resume(name, uid string) {
	if w.leader == nil {
		w.after(time.Second, func() { w.resume(name, uid) })
		return
	}
	if in := w.store.intentOf(name, uid); in != nil && in.Paused && in.DeleteRequestedAt == nil {
		changed := *in
		changed.Paused = false
		w.trace("resume %s", name)
		w.store.putIntent(&changed)
		w.wakeLeader()
	}
}

// scalable tells whether the API takes a scale.
func scalable(in *api.ClusterIntent, r *api.ClusterRecord) bool {
	if in.Paused || r != nil && r.ExpiredAt != nil {
		return false
	}
	return r == nil || slices.Contains([]api.ClusterPhase{
		api.ClusterQueued, api.ClusterReady, api.ClusterScaling, api.ClusterDegraded, api.ClusterStarting,
	}, r.Phase)
}

// pausable tells whether the API takes a pause.
func pausable(r *api.ClusterRecord) bool {
	if r == nil || r.ExpiredAt != nil {
		return false
	}
	return slices.Contains([]api.ClusterPhase{api.ClusterReady, api.ClusterScaling, api.ClusterDegraded, api.ClusterResuming}, r.Phase)
}

// changeSize gives a group another size. A group that grows takes back names first that were taken out, the lowest first.
func (w *world) changeSize(in *api.ClusterIntent, r *api.ClusterRecord, c change) bool {
	at := c.group % len(in.Spec.Groups)
	if !scalable(in, r) || in.Spec.Groups[at].Size == c.size {
		return false
	}
	in.Spec.Groups = slices.Clone(in.Spec.Groups)
	g := &in.Spec.Groups[at]
	back := c.size - g.Size
	g.Size = c.size
	removed := slices.Clone(in.Removed)
	slices.SortFunc(removed, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	in.Removed = slices.DeleteFunc(removed, func(name string) bool {
		back--
		if !strings.HasPrefix(name, g.Name+"-") {
			back++
			return false
		}
		return back >= 0
	})
	scaled := w.leader.now()
	in.ScaledAt = &scaled
	return true
}

// changeRemoved takes one member out by name; rank 0, which carries out jobs, can't be taken out, nor the last of a group.
func (w *world) changeRemoved(in *api.ClusterIntent, r *api.ClusterRecord, c change) bool {
	at := c.group % len(in.Spec.Groups)
	if !scalable(in, r) || r == nil || in.Spec.Groups[at].Size == 1 {
		return false
	}
	var names []string
	for _, m := range lifecycle.DesiredMembers(in.Spec, in.Removed) {
		if m.Group == in.Spec.Groups[at].Name {
			names = append(names, m.Member)
		}
	}
	name := names[c.size%len(names)]
	for _, a := range w.store.assignments(r) {
		if a.Member == name && a.Rank == 0 && a.releasedAt == nil {
			return false
		}
	}
	if slices.ContainsFunc(r.Lost, func(l api.LostMember) bool { return l.Member == name && l.Rank == 0 }) {
		return false
	}
	in.Spec.Groups = slices.Clone(in.Spec.Groups)
	in.Spec.Groups[at].Size--
	in.Removed = append(slices.Clone(in.Removed), name)
	scaled := w.leader.now()
	in.ScaledAt = &scaled
	return true
}

func (w *world) wakeLeader() {
	if w.leader != nil {
		w.leader.wake(0)
	}
}
