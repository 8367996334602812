package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/state"
)

// wholeLasts is how much longer a site with clusters of whole machines lives: each member's machine boots, and is cleaned afterwards.
const wholeLasts = 25 * time.Minute

// drawWhole draws whether members get whole machines of the site, which the provisioner carries.
func (w *world) drawWhole() {
	w.whole = source(w.cfg.Seed, "whole").IntN(4) > 0 && w.cfg.Kinds.Has(Whole) && w.cfg.Kinds.Has(Machines)
}

// scheduleWhole lets users create clusters of whole machines, scale them, and delete them some time later. It returns how long that takes.
func (w *world) scheduleWhole() time.Duration {
	if !w.whole {
		return 0
	}
	r, at := source(w.cfg.Seed, "whole clusters"), time.Duration(0)
	for i := range min(4+r.IntN(6), w.cfg.Lives) {
		at += span(r, 0, wholeLasts/5)
		in := api.ClusterIntent{Name: fmt.Sprintf("w%d", i+1), Project: api.DefaultProject, User: fmt.Sprintf("user%d", r.IntN(2)+1)}
		in.Spec.Groups = []api.Group{{
			Name: "g0", Size: 1 + r.IntN(min(2, len(w.boxes))), Shape: api.Shape{Cores: 1}, Stack: api.StackMetal, Environment: environments[1+r.IntN(2)],
		}}
		in.Spec.Queue = r.IntN(4) > 0
		l := life{intent: in, lasts: span(r, 20*time.Second, wholeLasts/2)}
		if stays := r.IntN(4) == 0; stays {
			l.lasts = longest
		}
		for range r.IntN(3) {
			c := drawChange(r, min(l.lasts, wholeLasts/2))
			if c.size = 1 + c.size%mostBoxes; c.kind != Pause { // which comes when the cluster is ready
				l.changes = append(l.changes, c)
			}
		}
		rest := wholePause{lasts: span(r, 30*time.Second, 6*time.Minute), touched: r.IntN(2) == 0, tries: 40}
		if at < wholeLasts {
			w.after(at, func() { w.createWhole(l, rest) })
		}
	}
	return wholeLasts
}

// createWhole creates a cluster of whole machines, as soon as a server is there to ask.
func (w *world) createWhole(l life, rest wholePause) {
	s := w.up()
	switch {
	case w.isCalm():
		return
	case s == nil:
		w.after(time.Second, func() { w.createWhole(l, rest) })
		return
	}
	w.ids++
	in := l.intent
	in.UID, in.CreatedAt = fmt.Sprintf("u%d", w.ids), s.now()
	if _, err := s.repo.CreateCluster(s.ctx, in); err != nil {
		if s.ctx.Err() == nil {
			w.must(err)
		}
		return
	}
	w.happened(Whole.String())
	w.count(func(st *Stats) { st.Lives++ })
	w.trace("create %s (%s) of whole machines: %+v", in.Name, in.UID, in.Spec)
	for _, c := range l.changes {
		w.after(c.after, func() { w.change(in.Name, in.UID, c) })
	}
	if rest.tries > 0 && w.cfg.Kinds.Has(Pause) {
		w.after(pauseTry, func() { w.pauseWhole(in.Name, in.UID, rest) })
	}
	if l.lasts != longest {
		w.after(l.lasts, func() {
			if !w.isCalm() {
				w.delete(in.Name, in.UID)
			}
		})
	}
}

// wholePause is a pause of a cluster of whole machines, as soon as the cluster is ready.
type wholePause struct {
	lasts time.Duration
	// touched: a person switches a machine on meanwhile.
	touched bool
	// tries is how often it is asked for.
	tries int
}

// pauseTry is the time between two tries.
const pauseTry = 20 * time.Second

// pauseWhole pauses a cluster of whole machines, and resumes it later.
func (w *world) pauseWhole(name, uid string, p wholePause) {
	s := w.up()
	if p.tries--; p.tries < 0 || w.isCalm() {
		return
	}
	if s == nil || s.cluster(name, uid) == nil || s.cluster(name, uid).Record == nil || s.cluster(name, uid).Record.Phase != api.ClusterReady {
		w.after(pauseTry, func() { w.pauseWhole(name, uid, p) })
		return
	}
	c := s.cluster(name, uid)
	w.change(name, uid, change{kind: Pause, size: 2, limit: 4 * p.lasts})
	if !p.touched {
		return
	}
	for a := range c.Held() {
		if b := w.box(a.Node); b != nil {
			w.after(p.lasts/2, func() {
				if r, _ := w.store.machine(b.name); r.Phase == api.MachineOff && !w.isCalm() {
					b.press(api.PowerOn)
				}
			})
			return
		}
	}
}

// saveWhole is what the API does before a pause: it saves what members have changed in the roots of their machines. If one member is not there to be read, the
// pause is refused.
func (w *world) saveWhole(c *state.Cluster, changed *api.ClusterIntent) bool {
	changed.PausedFiles = nil
	for a := range c.Held() {
		if !changed.Paused || !a.IsMember() || !a.ByProvisioner() {
			continue
		}
		b := w.box(a.Node)
		if is := b.really(); c.Record.Phase != api.ClusterReady || is.uid == "" || !is.on {
			return false
		}
		w.ids++
		changed.PausedFiles = append(changed.PausedFiles, api.MemberFiles{Member: a.Member, Assignment: a.ID, SavedFiles: api.SavedFiles{Digest: fmt.Sprintf("files of %s, save %d", a.ID, w.ids)}})
	}
	if len(changed.PausedFiles) > 0 {
		w.happened("pause of whole machines")
	}
	return true
}

// checkOffInPause checks that the machine of a paused member is off, and still the member's.
func (w *world) checkOffInPause(c *state.Cluster, a *api.Assignment) {
	r, known := w.store.machine(a.Node)
	if is := w.box(a.Node).really(); !known || is.on || r.Phase != api.MachineOff || r.Tenant == nil || r.Tenant.Assignment != a.ID {
		w.fail("whole", "cluster %s is paused, and the machine %s of %s is %s (on: %v) and of %+v", c.Name(), a.Node, a.ID, r.Phase, is.on, r.Tenant)
	}
}

// checkFiles checks that a machine which boots for a member gets the files of the last pause, unless the cluster was ready since.
func (w *world) checkFiles(b *box, boot api.Boot) {
	w.read(func(m *mirror) {
		for _, c := range m.clusters {
			for _, a := range m.assignments(c.record) {
				if a.ID != boot.Member || a.releasedAt != nil {
					continue
				}
				want, got := lifecycle.FilesOf(c.record, a.Member), boot.Files
				if want != nil && (got == nil || got.Digest != want.Digest) {
					w.fail("whole", "%s boots for %s of cluster %s with the files %+v, want %+v", b.name, a.ID, c.record.Name, got, want)
				}
				if want != nil {
					w.happened("boot after a pause")
					if want.Assignment != a.ID {
						w.happened("boot of another machine after a pause")
					}
				}
			}
		}
	})
}

// memberOf reports whether a node is a machine that a member has whole, as the server finds out.
func memberOf(view *state.View, node string) bool {
	n := view.Node(node)
	return n != nil && n.Identity != nil && n.Identity.Member != ""
}

// asInspected is what a server stores of a node whose agent connects: of a machine that a member has whole, nothing that its users say.
func asInspected(view *state.View, node api.NodeRecord) api.NodeRecord {
	if !memberOf(view, node.Name) {
		return node
	}
	known := api.NodeRecord{Name: node.Name, BootGeneration: node.BootGeneration, Underlay: node.Underlay, Stacks: []api.StackCheck{}, Environments: []api.EnvironmentOnNode{}}
	if hardware := view.Node(node.Name).Hardware(); hardware != nil {
		known.Capacity = offer.Inspected(hardware).Capacity
	}
	return known
}

// moveIn notes for whom a machine boots: whatever the member before left must be gone by then.
func (b *box) moveIn(purpose api.BootPurpose, generation int64) {
	member := ""
	if purpose == api.BootMember {
		if member = b.memberOf(generation); member == "" {
			return // it was removed meanwhile
		}
		b.w.happened("machine booted for a member")
		if r, _ := b.w.store.machine(b.name); r.Boot != nil && r.Boot.Generation == generation {
			b.w.checkFiles(b, *r.Boot)
		}
	}
	b.mu.Lock()
	was := b.tenant
	b.tenant = member
	b.mu.Unlock()
	if member != "" && was != member {
		b.meddle(member)
	}
	if was != "" && was != member {
		b.w.fail("whole", "%s boots for %q, and has what %s left on its disks", b.name, member, was)
	}
}

// wipe is a person who answers for a machine: it is off, and nothing of anybody is left on it.
func (b *box) wipe() {
	b.mu.Lock()
	tenant := b.tenant
	b.tenant, b.left = "", 0
	b.mu.Unlock()
	b.machine.RemoveAccount(intruder)
	if tenant == "" {
		return
	}
	b.w.trace("a person wipes %s after %s", b.name, tenant)
	b.press(api.PowerOff)
}

// checkTenant looks at what a commit says of the member that a machine is held for; the store's mu is held.
func (w *world) checkTenant(b *box, before, after api.MachineRecord) {
	if before.UID != after.UID {
		return
	}
	was, is := before.Tenant, after.Tenant
	b.mu.Lock()
	left := b.tenant
	b.mu.Unlock()
	switch {
	case was != nil && is != nil && was.Assignment != is.Assignment:
		w.fail("whole", "%s goes from %s to %s, and was not cleaned between", b.name, was.Assignment, is.Assignment)
	case was != nil && is == nil:
		w.checkBMC(b, was.Assignment)
		w.happened("machine clean after its member")
		if left == was.Assignment {
			w.fail("whole", "%s is called clean after %s, which is still on its disks", b.name, left)
		}
	}
	// A machine that was off is for the same member again after a pause only, with its files.
	if after.Boot != nil && before.Boot != nil && after.Boot.Generation != before.Boot.Generation && before.Phase == api.MachineOff && after.Boot.Purpose == api.BootMember &&
		was != nil && was.Assignment == after.Boot.Member && (!was.Paused || after.Boot.Files == nil) {
		w.fail("whole", "%s boots again for %s, paused: %v, files: %+v", b.name, was.Assignment, was.Paused, after.Boot.Files)
	}
	// A boot that fails is tried once more; a member that was there is not there again.
	again := before.Phase == api.MachineReady && after.Phase == api.MachineBooting && after.Boot.Purpose == api.BootMember
	if again && before.Boot.Member == after.Boot.Member {
		w.fail("whole", "%s boots again for %s, which was there", b.name, after.Boot.Member)
	}
}

// checkFenced checks, of a cluster that is called ready, that no machine goes on with a lost member: each was told to go off, is off, or waits for people.
func (w *world) checkFenced(r *api.ClusterRecord, all []held) {
	for _, a := range all {
		b := w.box(a.Node)
		if b == nil || !a.ByProvisioner() || a.releasedAt == nil || a.clean {
			continue
		}
		w.happened("ready while a lost machine is not clean")
		m, known := w.store.machine(b.name)
		if known && m.Phase == api.MachineReady && m.Stop == nil && m.Boot.Member == a.ID && time.Since(later(*a.releasedAt, w.store.leaderSince())) > aMoment {
			w.fail("whole", "cluster %s is ready, and %s goes on with %s, which is lost", r.Name, b.name, a.ID)
		}
	}
}

// careForMachines are the operators, when nothing goes wrong any more: a machine that waits for people after a member gets another cleaning.
func (w *world) careForMachines() {
	if !w.whole {
		return
	}
	if s := w.up(); s != nil {
		for m := range s.cache.View().Machines() {
			r, b := m.Record, w.box(m.Name())
			if r == nil || r.Tenant == nil || m.Intent.Clean.Number > r.DoneClean || r.Quarantine == nil && (r.Phase != api.MachineFailed || r.Stop == nil) {
				continue
			}
			w.happened("machine that waited for people")
			if b.blind {
				b.press(api.PowerOff)
			}
			w.trace("%s is %s (%s), and gets another cleaning", b.name, r.Phase, r.Message)
			w.must(w.putClean(b, m.UID(), false))
		}
	}
	w.after(time.Minute, w.careForMachines)
}

// checkNoTenants checks that no machine is held for anybody when all clusters are gone, and that none has anything of anybody.
func (w *world) checkNoTenants() {
	for _, b := range w.boxes {
		if r, _ := w.store.machine(b.name); r.Tenant != nil {
			w.fail("whole", "%s is still held for %s: it is %s (%s)", b.name, r.Tenant.Assignment, r.Phase, r.Message)
		}
		b.mu.Lock()
		left := b.tenant
		b.mu.Unlock()
		if left != "" {
			w.fail("whole", "%s still has what %s left", b.name, left)
		}
	}
}

// startOf is how long a cluster may take to start.
func startOf(all []held, deadlines lifecycle.Deadlines) time.Duration {
	if slices.ContainsFunc(all, func(a held) bool { return a.releasedAt == nil && a.ByProvisioner() }) {
		return deadlines.Machine
	}
	return deadlines.Start
}

// checkLeftDirty looks at what is left on a machine that is no longer known. By force it may be anything, and what can't be stopped or cleaned is given up:
// people know.
func (w *world) checkLeftDirty(b *box, before api.MachineRecord) {
	b.mu.Lock()
	left := b.tenant
	b.mu.Unlock()
	b.forget()
	w.mu.Lock()
	forced := w.forced[before.UID]
	w.mu.Unlock()
	givenUp := before.Quarantine != nil || before.Phase == api.MachineFailed
	if left != "" && !forced && !givenUp {
		w.fail("whole", "%s was removed as %s, and has what %s left", b.name, before.Phase, left)
	}
}

// assignmentsOf are those of a cluster.
func (w *world) assignmentsOf(cluster string) (all []held) {
	w.read(func(m *mirror) { all = m.assignments(m.clusters[cluster].record) })
	return all
}

// onItsWay reports whether a machine that a member has whole boots for it, or is about to: its agent is not there yet.
func (m *mirror) onItsWay(a *api.Assignment) bool {
	seen, known := m.machines[a.Node]
	r := seen.record
	ready := r.Phase == api.MachineReady && r.Boot.Member == a.ID && time.Since(seen.changed) > aMoment+lifecycle.DefaultDeathTimer
	return a.ByProvisioner() && known && r.Quarantine == nil && !ready
}

// memberOf is the member that a boot is for, "" when the machine is not known any more.
func (b *box) memberOf(generation int64) string {
	r, _ := b.w.store.machine(b.name)
	switch {
	case r.Boot != nil && r.Boot.Generation == generation:
		return r.Boot.Member
	case r.Tenant != nil && r.Tenant.Generation <= generation:
		return r.Tenant.Assignment
	}
	return ""
}

// forget notes that nothing of a member is left on the machine.
func (b *box) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tenant = ""
}

// wholeKinds are what matters in the life of clusters of whole machines.
func wholeKinds() Kinds {
	return 1<<Machines | 1<<Whole | 1<<Pause | 1<<Scale | 1<<Remove | 1<<Drain | 1<<MemberEnds | 1<<MemberIll | 1<<StartFails | 1<<CleanFails | 1<<LateMessages | 1<<CommitUnknown |
		1<<CrashBetweenWrites | 1<<ClockJump | 1<<Panic | 1<<AgentRestart | 1<<AgentSleep | 1<<AgentHangs | 1<<Power | 1<<Cut | 1<<CutOneWay | 1<<Reset | 1<<LeaderCrash | 1<<Usurp |
		1<<Deposed | 1<<Stall | 1<<BMC | 1<<Button | 1<<Cable | 1<<Hang
}

func TestRandomLivesOfWholeMachinesKeepEveryInvariant(t *testing.T) {
	first, count := seeds(t)
	total, failed := runEach(t, first, count, func(seed uint64) Settings {
		return Settings{Seed: seed, Lives: 12, Kinds: wholeKinds()}
	})
	if failed != nil {
		t.Fatal(explain(t, Config{}, failed))
	}
	for _, what := range []string{
		"machine booted for a member", "machine clean after its member", "machine that waited for people", "cleaned", "whole", "pause of whole machines",
		"boot after a pause", "boot of another machine after a pause", "BMC closed to a member", "BMC changed by a member",
	} {
		t.Logf("%8d %s", total.Happened[what], what)
		least := int64(10)
		switch what { // the one takes a person and a machine that is free, the other a BMC that can't be closed
		case "boot of another machine after a pause", "BMC changed by a member":
			least = 3
		}
		if count >= someCoverage && int64(total.Happened[what]) < least {
			t.Errorf("%d times it happened: %s, which is common", total.Happened[what], what)
		}
	}
}
