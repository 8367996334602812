package sim

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
)

// scheduleUsers lets users create clusters one after the other, change them, and delete each some time later. After the last it
// becomes calm.
func (w *world) scheduleUsers() {
	w.makeProjects()
	t := time.Duration(0)
	var before life
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
		if again := w.deviceRandom.IntN(4) == 0; again && i > 0 {
			life = life.likeThe(before)
		}
		before = life
		w.after(t, func() { w.create(life) })
	}
	rest := span(w.userRandom, time.Second, 5*time.Minute)
	if w.userRandom.IntN(4) == 0 {
		rest += 2 * lifecycle.DefaultDeadlines().Clean // long enough for what can't be cleaned to be quarantined
	}
	t += max(rest, w.scheduleWhole()-t)
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
	jobs    []submission
	lasts   time.Duration
}

// likeThe is a life of the same user, who asks for the same as in another one, under a name of its own.
func (l life) likeThe(other life) life {
	name := l.intent.Name[strings.LastIndexByte(l.intent.Name, '.')+1:]
	if other.intent.Project != api.DefaultProject {
		name = other.intent.Project + "." + name
	}
	l.intent = other.intent
	l.intent.Name = name
	return l
}

type change struct {
	after time.Duration
	kind  Kind
	group int
	size  int
	queue bool
	limit time.Duration
}

// makeProjects makes two besides the default one. On half of the sites their quotas are less than the nodes have, and bind more often.
func (w *world) makeProjects() {
	r := w.userRandom
	lab := api.Project{Name: "lab", Shares: 3, Quota: api.Quota{Cores: 8 + r.IntN(8), Clusters: 3}}
	class := api.Project{Name: "class", Shares: 1, Quota: api.Quota{Members: 4 + r.IntN(6), Memory: api.Bytes(4+r.IntN(8)) << 30}}
	if r.IntN(2) == 0 {
		lab.Quota.Cores, class.Quota.Members = 4+r.IntN(4), 3+r.IntN(3)
	}
	if w.cfg.Kinds.Has(Devices) {
		lab.Quota.Devices = map[string]int64{"gpu/slices": int64(2 + lab.Quota.Cores%6), "nic/queues": int64(4 + lab.Quota.Cores%8)}
		class.Quota.Devices = map[string]int64{"gpu/slices": int64(1 + class.Quota.Members%5), "nic/vf": int64(1 + class.Quota.Members%3)}
	}
	// The server may have crashed already: what the site begins with is written past it.
	repo := state.New(w.store)
	for _, p := range []api.Project{lab, class} {
		p.CreatedAt = time.Now()
		_, err := repo.CreateProject(w.ctx, p)
		w.must(err)
	}
	w.makeNetworks(repo)
	w.makeGuards(repo)
	w.scheduleVolumes()
	w.scheduleHomes()
	w.scheduleDisks()
	w.limitVolumes(0)
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
		w.drawMetal(&group, in.Project)
		w.drawMachine(&group)
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
	w.drawJoins(in.Name, in.Spec.Groups)
	w.drawFunctions(in.Name, in.Project, in.Spec.Groups)
	w.drawOwnNetwork(in.Name, &in.Spec)
	w.drawEgress(&in)
	l.intent = in
	for range r.IntN(5) {
		l.changes = append(l.changes, drawChange(r, min(l.lasts, 5*time.Minute)))
	}
	for range r.IntN(4) {
		j := submission{after: span(r, 0, min(l.lasts, 5*time.Minute)), requeue: r.IntN(2) == 0}
		if cancelled := span(r, time.Second, time.Minute); r.IntN(4) == 0 {
			j.cancelled = cancelled
		}
		l.jobs = append(l.jobs, j)
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
	g.Devices = w.drawDeviceRequests()
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
	if w.isCalm() {
		return
	}
	s := w.up()
	if s == nil {
		w.after(time.Second, func() { w.create(l) })
		return
	}
	w.ids++
	in := l.intent
	in.UID, in.CreatedAt = fmt.Sprintf("u%d", w.ids), s.now()
	w.addVolume(s, &in)
	if _, err := s.repo.CreateCluster(s.ctx, in); err != nil {
		if !(len(in.Spec.Volumes) > 0 && isAny(err, volumeErrors)) && !errors.Is(err, state.ErrExists) && s.ctx.Err() == nil {
			w.must(err)
		}
		return
	}
	w.count(func(st *Stats) { st.Lives++ })
	w.trace("create %s (%s): %+v", in.Name, in.UID, in.Spec)
	for _, c := range l.changes {
		w.after(c.after, func() { w.change(in.Name, in.UID, c) })
	}
	for i := range l.jobs {
		w.after(l.jobs[i].after, func() { w.submit(in.Name, in.UID, l.jobs[i]) })
	}
	w.scheduleSaves(in.Name, in.UID, l.lasts)
	w.scheduleSnapshots(in.Name, in.UID, l.lasts)
	w.scheduleMoves(in.Name, in.UID, l.lasts)
	w.scheduleResizes(in.Name, in.UID, l.lasts)
	w.scheduleAttachments(in.Name, in.UID, l.lasts)
	w.scheduleLayers(in.Name, in.UID, l.lasts)
	w.scheduleAddresses(in.Name, in.UID, l.lasts)
	if l.lasts == longest {
		return
	}
	w.after(l.lasts, func() {
		if !w.isCalm() { // what is there then is left alone for a while
			w.delete(in.Name, in.UID)
		}
	})
}

// cluster is what a server has of a cluster; nil when it is gone, when another has its name, or when it is being deleted.
func (s *server) cluster(name, uid string) *state.Cluster {
	if c := s.cache.View().Cluster(name); c != nil && c.UID() == uid && c.Intent.DeleteRequestedAt == nil {
		return c
	}
	return nil
}

// intents are those of all clusters.
func (w *world) intents() []api.ClusterIntent {
	var all []api.ClusterIntent
	w.read(func(m *mirror) {
		for _, name := range m.names() {
			if in := m.clusters[name].intent; in != nil {
				all = append(all, *in)
			}
		}
	})
	return all
}

func (w *world) delete(name, uid string) {
	s := w.up()
	if s == nil {
		w.after(time.Second, func() { w.delete(name, uid) })
		return
	}
	if s.cluster(name, uid) == nil {
		return
	}
	w.trace("delete %s", name)
	if _, _, err := s.repo.RequestDelete(s.ctx, name, s.now()); err != nil && s.ctx.Err() == nil {
		w.must(err)
	}
}

// change is what the API does with a change of a cluster: it validates, and stores another intent.
func (w *world) change(name, uid string, c change) {
	s := w.up()
	if s == nil || w.isCalm() || !w.cfg.Kinds.Has(c.kind) {
		return
	}
	cluster := s.cluster(name, uid)
	if cluster == nil {
		return
	}
	changed, record, ok := cluster.Intent, cluster.Record, false
	switch c.kind {
	case Scale:
		ok = changeSize(&changed, record, c, s.now())
	case Remove:
		ok = changeRemoved(&changed, cluster, c, s.now())
	case Pause:
		// Most go on after a while, even if much goes wrong meanwhile.
		if ok = changed.Paused || !lifecycle.WantsSaved(&changed, record) && pausable(record); ok {
			changed.Paused = !changed.Paused
			ok = w.saveWhole(cluster, &changed)
		}
		if ok && changed.Paused && c.size > 1 {
			w.after(c.limit/4, func() { w.resume(name, uid) })
		}
	case Extend:
		ok = changed.Spec.TimeLimit != 0 && c.limit > changed.Spec.TimeLimit.Std() && (record == nil || record.ExpiredAt == nil)
		changed.Spec.TimeLimit = api.Duration(c.limit)
		if ok {
			w.checks.disturbed.Add(1)
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
	w.put(s, name, uid, changed)
}

func (w *world) put(s *server, name, uid string, changed api.ClusterIntent) {
	_, _, err := s.repo.UpdateIntent(s.ctx, name, uid, func(in *api.ClusterIntent) error {
		volumes := in.Spec.Volumes // which others may have changed since the view
		*in = changed
		in.Spec.Volumes = volumes
		return nil
	})
	if err != nil && s.ctx.Err() == nil {
		w.must(err)
	}
}

func (w *world) resume(name, uid string) {
	s := w.up()
	if s == nil {
		w.after(time.Second, func() { w.resume(name, uid) })
		return
	}
	if c := s.cluster(name, uid); c != nil && c.Intent.Paused {
		changed := c.Intent
		changed.Paused, changed.PausedFiles = false, nil
		w.trace("resume %s", name)
		w.put(s, name, uid, changed)
	}
}

// submission is a job that a user submits.
type submission struct {
	after, cancelled time.Duration // after the create; 0: it is not cancelled
	requeue          bool
}

// submit is what the API does with a job.
func (w *world) submit(name, uid string, j submission) {
	s := w.up()
	if s == nil || w.isCalm() || !w.cfg.Kinds.Has(Jobs) {
		return
	}
	c := s.cluster(name, uid)
	if c == nil || c.Record == nil || c.Record.Phase != api.ClusterReady {
		return
	}
	w.ids++
	job := api.Job{
		ID: fmt.Sprintf("j%d", w.ids), Cluster: name, ClusterUID: uid, Phase: api.JobPending, CreatedAt: s.now(),
		JobRequest: api.JobRequest{Command: []string{"true"}, Requeue: j.requeue},
	}
	if _, err := s.repo.CreateJob(s.ctx, job); err != nil {
		return
	}
	w.happened(Jobs.String())
	w.trace("job %s in %s, again: %t", job.ID, name, j.requeue)
	if j.cancelled > 0 {
		w.after(j.cancelled, func() { w.cancel(job.ID) })
	}
}

func (w *world) cancel(id string) {
	s := w.up()
	if s == nil {
		return
	}
	w.trace("cancel job %s", id)
	_, _, _ = s.repo.UpdateJob(s.ctx, id, func(j *api.Job) error {
		j.CancelRequested = !j.Phase.Ended()
		return nil
	})
}

// scalable tells whether the API takes a scale.
func scalable(in *api.ClusterIntent, r *api.ClusterRecord) bool {
	if in.Paused || lifecycle.WantsSaved(in, r) || r != nil && (r.ExpiredAt != nil || lifecycle.Shelving(r.Phase)) {
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
func changeSize(in *api.ClusterIntent, r *api.ClusterRecord, c change, now time.Time) bool {
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
	in.ScaledAt = &now
	return true
}

// changeRemoved takes one member out by name; rank 0, which carries out jobs, can't be taken out, nor the last of a group.
func changeRemoved(in *api.ClusterIntent, cluster *state.Cluster, c change, now time.Time) bool {
	at, r := c.group%len(in.Spec.Groups), cluster.Record
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
	for a := range cluster.Held() {
		if a.Member == name && a.Rank == 0 {
			return false
		}
	}
	if slices.ContainsFunc(r.Lost, func(l api.LostMember) bool { return l.Member == name && l.Rank == 0 }) {
		return false
	}
	in.Spec.Groups = slices.Clone(in.Spec.Groups)
	in.Spec.Groups[at].Size--
	in.Removed = append(slices.Clone(in.Removed), name)
	in.ScaledAt = &now
	return true
}
