package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// agent is one run of a node's agent: a memory that is lost with it. It plans with internal/lifecycle as the real one does, and speaks to the
// server on a real stream.
type agent struct {
	n *node
	// name is of this start.
	name string
	over bool
	// asleep: it is stopped, and what happens meanwhile happens to it when it wakes.
	asleep   bool
	deferred []func()
	// said is what it said last on its link, at saidAt, truth what was so then, heardAt when it last heard anything there.
	said     *agentstream.Observed
	truth    agentstream.Observed
	saidAt   time.Time
	heardAt  time.Time
	epoch    lifecycle.Epoch
	current  bool
	desired  map[string]wanted
	jobs     map[string]agentstream.Job
	powerOff *agentstream.PowerOff
	members  map[string]*memberMemory
	// hangs is until when it does nothing but answer; held is what it is to obey then.
	hangs   time.Time
	held    *agentstream.Desired
	alarm   alarm
	deaf    alarm
	leaving bool // it powers its machine off
	// wantedBuilds are those the leader wants, builds those that go on, by run.
	wantedBuilds []api.Build
	builds       map[string]*buildRun
	// volumes are those that the leader wants.
	volumes []volume.Volume
	// sharings is how volumes are to cross, by cluster.
	sharings map[string]volume.Sharing
	// waits are what it is about to do for processes of block volumes.
	waits map[string]bool
}

// memberMemory is what an agent remembers of one member.
type memberMemory struct {
	busy      bool
	ready     bool
	cleaned   bool
	release   bool
	saves     bool
	takesBack bool
	// verified names the last verification of a state, unverified what that found.
	verified, unverified string
	// moved is what it took to bring it here.
	moved *driver.MoveReport
	// fetches is the member whose state is being brought here for this one, "" for none.
	fetches   string
	neverRan  bool
	unhealthy string
	recovered time.Time
	attempts  lifecycle.Attempts
	report    *lifecycle.Report
	clean     bool
	// remountAt is when to try again to change its volumes.
	remountAt time.Time
	// limitAt is when to try again to set its limits of I/O, unlimited whether that failed.
	limitAt   time.Time
	unlimited bool
	// limitsDiffer is since when it is not held to those that it is to be held to.
	limitsDiffer time.Time
}

// wanted is what the leader wants of a member.
type wanted struct {
	lifecycle.DesiredMember
	cluster, name string
	addresses     []netip.Addr
	// files names the generated files it should have.
	files string
	// part: it is what a member on another node holds here. from is the member that it succeeds, fromNode the node of that, where it is another one.
	part           bool
	from, fromNode string
	// live: it runs on fromNode. moveTo is the successor that the member is to be handed to. machine: it is a virtual machine.
	live, machine bool
	moveTo        string
	// size is the number of the size that it is to have, slots are those of that size.
	size  int64
	slots []int
	// of is the member whose state it is to keep in a snapshot, resumes the state that it begins with, verify names a verification.
	of, resumes, verify string
	// functions are those of adapters that it is to have.
	functions []api.DeviceClaim
	// volumes are the claims that it is to have, of this number.
	volumes       []api.VolumeClaim
	volumesNumber int64
	// layers are those that it is to have, of this number.
	layers       []api.Layer
	layersNumber int64
	// whole: it gets a machine of its own, which boots for it.
	whole bool
}

func newAgent(n *node) {
	n.runs++
	a := &agent{n: n, name: fmt.Sprint("run ", n.runs), desired: map[string]wanted{}, members: map[string]*memberMemory{}, builds: map[string]*buildRun{}}
	n.agent = a
	a.epoch.Term = n.term
	if n.w.cfg.Without == GuardTerm {
		a.epoch.Term = 0
	}
	for _, id := range slices.Sorted(maps.Keys(n.host)) {
		h := n.host[id]
		if n.w.cfg.Without != GuardRecovery {
			a.member(id).recovered = time.Now()
		}
		if h.state == lifecycle.HostRunning {
			a.hearReady(id, h)
		}
	}
	a.dial()
	a.wake(0)
}

// run does something to the agent, now or when it wakes.
func (a *agent) run(do func()) {
	switch {
	case a.over:
	case a.asleep:
		a.deferred = append(a.deferred, do)
	default:
		do()
	}
}

// awake lets the agent go on: all that has waited for it happens at once.
func (a *agent) awake() {
	if a.over || !a.asleep {
		return
	}
	a.n.w.trace("agent of %s wakes", a.n.record.Name)
	a.asleep = false
	deferred := a.deferred
	a.deferred = nil
	for _, do := range deferred {
		a.run(do)
	}
}

// dial lets the agent look for a server until it finds one.
func (a *agent) dial() {
	w := a.n.w
	w.after(w.between(time.Millisecond, time.Second), func() {
		a.run(func() {
			if a.n.link == nil && !a.connect() {
				a.dial()
			}
		})
	})
}

// connect opens a stream, if there is a way to a server.
func (a *agent) connect() bool {
	n, w := a.n, a.n.w
	s := w.reach()
	if n.prefers.alive() {
		s = n.prefers
	}
	if !s.alive() || !n.known(s.cache.View()) {
		return false
	}
	l := &link{s: s, since: time.Now()}
	d := &dialer{w: w, s: s, cuts: &n.cuts, seed: w.random.Uint64(), link: l}
	d.node = n.record.Name
	conn, err := agentstream.Dial(context.WithoutCancel(w.ctx), &http.Client{Transport: d}, "https://server")
	if err != nil {
		return false
	}
	l.conn = conn
	n.links = slices.DeleteFunc(n.links, func(old *link) bool { return old.over && old.served.Load() })
	n.link, n.links, a.said, a.heardAt = l, append(n.links, l), nil, time.Now()
	if conn.Send(agentstream.Up{Hello: &agentstream.Hello{Run: a.name, Node: n.record, Term: n.term}}) != nil {
		a.leave(l)
		return true
	}
	if left := time.Until(n.slow); left > 0 {
		l.down.lag(left)
	}
	n.box.setAgent(true)
	go a.listen(l)
	a.watchSilence()
	a.report()
	return true
}

// listen hands the driver what arrives.
func (a *agent) listen(l *link) {
	for {
		down, err := l.conn.Receive()
		a.n.w.inbox.post(a.n.record.Name, func() { a.run(func() { a.hear(l, down, err) }) })
		if err != nil {
			return
		}
	}
}

// hear takes in what the server says. Most of what comes on a stream that is over is lost; some was taken off it before, and comes late.
func (a *agent) hear(l *link, down agentstream.Down, err error) {
	n, w := a.n, a.n.w
	if n.link != l {
		if down.Desired != nil && w.chance(LateMessages, 2) {
			a.obey(down.Desired)
		}
		return
	}
	a.heardAt = time.Now()
	switch {
	case err != nil:
		a.leave(l)
	case down.Refused != "":
		w.trace("%s is refused: %s", n.record.Name, down.Refused)
		a.leave(l)
	case down.Ping != nil:
		_ = l.conn.Send(agentstream.Up{Heartbeat: &agentstream.Heartbeat{Time: time.Now(), Ping: down.Ping.Seq}})
	case down.Desired != nil:
		a.hang(down.Desired)
		a.obey(down.Desired)
		if w.chance(LateMessages, 8) { // the same once more, and much later
			w.after(w.between(time.Millisecond, 20*time.Second), func() { a.run(func() { a.obey(down.Desired) }) })
		}
	}
}

// leave ends a stream, and looks for another.
func (a *agent) leave(l *link) {
	if a.n.link != l {
		return
	}
	a.n.link, l.over = nil, true
	if w := a.n.w; w.chance(LateMessages, 4) { // its end, and its last words, are longer on their way than the next stream
		l.up.lag(w.between(time.Millisecond, 20*time.Second))
	}
	l.conn.Close()
	a.dial()
}

// watchSilence ends a stream on which nothing was heard for the death timer.
func (a *agent) watchSilence() {
	left := lifecycle.DefaultDeathTimer - time.Since(a.heardAt)
	a.deaf.by(a.n.w, left, func() {
		a.run(func() {
			switch l := a.n.link; {
			case l == nil:
			case time.Since(a.heardAt) >= lifecycle.DefaultDeathTimer:
				a.leave(l)
			default:
				a.watchSilence()
			}
		})
	})
}

// obey takes over what a leader wants.
func (a *agent) obey(d *agentstream.Desired) {
	w, n := a.n.w, a.n
	epoch := lifecycle.Epoch{Term: d.Term, Revision: d.Revision}
	if time.Now().Before(a.hangs) {
		// What comes once more, and late, is not what it is to obey when it goes on.
		if a.held == nil || (lifecycle.Epoch{Term: a.held.Term, Revision: a.held.Revision}).Accept(epoch) == nil || w.cfg.Without == GuardEpoch {
			a.held = d
		}
		return
	}
	if err := a.epoch.Accept(epoch); err != nil && w.cfg.Without != GuardEpoch {
		w.trace("%s does not obey: %v", n.record.Name, err)
		return
	}
	w.checkObedience(a, epoch)
	w.checkGuards(n, d)
	w.checkFloating(n, d)
	a.epoch, a.current = epoch, true
	for i := range d.Members {
		if a.isNew(&d.Members[i]) {
			w.blinkAtNew(n, &d.Members[i])
		}
	}
	a.desired, a.jobs, a.powerOff, a.wantedBuilds = map[string]wanted{}, map[string]agentstream.Job{}, d.PowerOff, d.Builds
	for i := range d.Members {
		m := &d.Members[i]
		a.desired[m.Assignment.ID] = wanted{
			DesiredMember: lifecycle.DesiredMember{
				Generation: m.Assignment.Generation, Release: m.Release, Paused: m.Paused && !m.Assignment.IsPart(),
				Save: m.Save && !m.Assignment.IsPart(), Restore: m.Assignment.IsSuccessor(),
				Snapshot: m.Assignment.IsSnapshot(), LayDown: m.Assignment.Resumes != "",
				Moving: m.Move != nil, TakeBack: m.TakeBack,
				Grace: time.Duration(m.GraceSeconds * float64(time.Second)),
			},
			cluster: m.Assignment.ClusterUID, name: m.Assignment.Member, addresses: addressesOf(m), files: m.FilesDigest,
			part: m.Assignment.IsPart() && !m.Assignment.IsSuccessor(), from: m.Assignment.From, fromNode: m.FromNode,
			live: m.Live, machine: m.Assignment.Stack == api.StackVM,
			size: m.Assignment.SizeNumber, slots: m.Assignment.Slots, resumes: m.Assignment.Resumes, verify: m.Verify,
			functions: functionsHeld(&m.Assignment), volumes: m.Assignment.Volumes, volumesNumber: m.Assignment.VolumesNumber,
			layers: m.Layers, layersNumber: m.LayersNumber,
			whole: m.Assignment.ByProvisioner(),
		}
		if m.Assignment.Snapshot != nil {
			w := a.desired[m.Assignment.ID]
			w.of = m.Assignment.Snapshot.Of
			a.desired[m.Assignment.ID] = w
		}
		if m.Move != nil {
			w := a.desired[m.Assignment.ID]
			w.moveTo = m.Move.To
			a.desired[m.Assignment.ID] = w
		}
	}
	a.checkHomesAttached(d)
	a.checkKinds(d)
	a.obeyVolumes(d.Volumes)
	a.obeySharings(d.Sharings)
	a.reconsider()
	for _, j := range d.Jobs {
		a.jobs[j.RunID()] = j
	}
	n.term = max(n.term, d.Term)
	networks := map[int]nodeNetwork{}
	for i := range d.Networks {
		net := nodeNetwork{ports: map[string]bool{}, remotes: map[remote]bool{}, groups: d.Networks[i].Groups, floating: n.floatingIn(&d.Networks[i])}
		for _, p := range d.Networks[i].Ports {
			net.ports[p.ID] = true
		}
		for _, r := range d.Networks[i].Remotes {
			net.remotes[remote{r.Address, r.Peer.String()}] = true
		}
		networks[d.Networks[i].Index] = net
	}
	n.networks, n.applied = networks, epoch
	w.touched()
	a.wake(0)
}

// addressesOf are those of a member on all its networks.
func addressesOf(m *agentstream.Member) []netip.Addr {
	var addresses []netip.Addr
	for _, p := range m.Assignment.Ports {
		addresses = append(addresses, p.Address)
	}
	return addresses
}

func (a *agent) member(id string) *memberMemory {
	if a.members[id] == nil {
		a.members[id] = &memberMemory{}
	}
	return a.members[id]
}

func (a *agent) wake(d time.Duration) {
	a.alarm.by(a.n.w, d, func() { a.run(a.converge) })
}

// converge plans every member that is wanted, remembered or found, and begins what is to be done.
func (a *agent) converge() {
	if left := time.Until(a.hangs); left > 0 {
		a.wake(left)
		return
	}
	if d := a.held; d != nil {
		a.held = nil
		a.obey(d)
	}
	ids, newest := map[string]bool{}, map[string]int64{}
	for id, d := range a.desired {
		ids[id] = true
		if !d.Restore {
			newest[lineage(id)] = max(newest[lineage(id)], d.Generation)
		}
	}
	for id := range a.n.host {
		ids[id] = ids[id] || a.n.w.cfg.Without != GuardDebris
	}
	for id, m := range a.members {
		if m.busy {
			delete(ids, id)
			delete(ids, m.fetches)
		} else if !ids[id] {
			delete(a.members, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		if ids[id] {
			a.plan(id, newest[lineage(id)])
		}
	}
	a.runJobs()
	a.runBuilds()
	a.convergeDisks()
	a.report()
	a.mindPower()
}

// lineage is an assignment ID without its generation.
func lineage(id string) string { return id[:strings.LastIndexByte(id, '.')] }

func (a *agent) plan(id string, newest int64) {
	m := a.member(id)
	in := lifecycle.MemberInput{
		Current: a.current || a.n.w.cfg.Without == GuardCurrent, NewestGeneration: newest, Host: lifecycle.HostAbsent,
		Ready: m.ready || a.desired[id].part, Unhealthy: m.unhealthy, NeverRan: m.neverRan, Cleaned: m.cleaned, RecoveredAt: m.recovered, Now: time.Now(),
	}
	d, ok := a.desired[id]
	if ok {
		in.Desired = &d.DesiredMember
		in.Desired.Verify, in.Unverified = d.verify != "" && d.verify != m.verified, m.unverified
		if d.Release && !m.release {
			m.release, m.attempts = true, lifecycle.Attempts{}
		}
		if d.Save != m.saves {
			m.saves, m.attempts = d.Save, lifecycle.Attempts{}
		}
		if d.TakeBack != m.takesBack {
			m.takesBack, m.attempts = d.TakeBack, lifecycle.Attempts{}
		}
	}
	in.Attempts = m.attempts
	if h := a.n.host[id]; h != nil {
		in.Holds = h.holds
		if ok {
			in.Desired.ChangeSize = h.size != d.size && !d.part
			in.Desired.ChangeVolumes = a.changesVolumes(h, m, d)
			in.Desired.ChangeLimits = a.changesLimits(h, m, d)
		}
		in.Host, in.HostMessage, in.Stale = h.state, h.message, ok && !d.Release && h.files != d.files
		in.Departed = h.departed
		if h.state == lifecycle.HostHandedOver && a.n.w.cfg.Without == GuardHandedOver && ok {
			in.Desired.TakeBack = true
		}
	}
	if a.n.w.cfg.Without == GuardDeparture {
		in.Departed = false
		if in.Host == lifecycle.HostAbsent && ok {
			in.Desired.Moving = false
		}
	}
	if ok && d.whole != a.n.isMember { // this agent has no driver for it
		m.report = &lifecycle.Report{Phase: api.MemberFailed, Message: "no driver"}
		return
	}
	m.report, m.clean = nil, ok && d.Release && a.n.w.cfg.Without == GuardLooking
	for _, op := range lifecycle.PlanMember(in) {
		a.carryOut(id, m, d, op)
	}
}

func (a *agent) carryOut(id string, m *memberMemory, d wanted, op lifecycle.MemberOperation) {
	switch op := op.(type) {
	case lifecycle.Report:
		m.report = &op
	case lifecycle.ReportClean:
		m.clean = true
	case lifecycle.WakeAt:
		a.wake(time.Until(op.Time))
	case lifecycle.Reject:
		a.n.w.trace("%s does not start %s: %s", a.n.record.Name, id, op.Reason)
	case lifecycle.Start:
		a.start(id, m, d)
	case lifecycle.Update:
		a.drive(id, m, StartFails, "update", time.Second, func(h *hostMember) { h.files = d.files })
	case lifecycle.ChangeSize:
		a.changeSize(id, m, d)
	case lifecycle.ChangeVolumes:
		a.changeMounts(id, m, d)
	case lifecycle.ChangeLimits:
		a.changeLimits(id, m)
	case lifecycle.ChangeCondition: // nothing that the simulator checks depends on it
	case lifecycle.Pause:
		a.drive(id, m, FreezeFails, "pause", time.Second, func(h *hostMember) {
			if h.state == lifecycle.HostRunning {
				h.state = lifecycle.HostPaused
			}
		})
	case lifecycle.Resume:
		a.drive(id, m, FreezeFails, "resume", time.Second, func(h *hostMember) {
			if h.state == lifecycle.HostPaused {
				h.state = lifecycle.HostRunning
			}
		})
	case lifecycle.Save:
		a.drive(id, m, FreezeFails, "save", 5*time.Second, func(h *hostMember) {
			switch h.state {
			case lifecycle.HostRunning:
				h.state, m.ready = lifecycle.HostSaved, false
				a.letGo(h, true)
			case lifecycle.HostSaved:
				a.letGo(h, false)
			}
		})
	case lifecycle.Restore:
		a.restore(id, m, d)
	case lifecycle.TakeSnapshot:
		a.takeSnapshot(id, m, d)
	case lifecycle.VerifySnapshot:
		a.verifySnapshot(id, m, d)
	case lifecycle.LayDown:
		a.layDown(id, m, d)
	case lifecycle.TakeBack:
		a.takeBack(id, m)
	case lifecycle.Stop:
		a.drive(id, m, CleanFails, "stop", op.Grace+100*time.Millisecond, func(h *hostMember) {
			h.state, h.message = lifecycle.HostExited, "stopped"
			h.endJobs()
		})
	case lifecycle.Clean:
		a.drive(id, m, CleanFails, "clean", time.Second, func(*hostMember) {
			delete(a.n.host, id)
			m.cleaned, m.ready, m.neverRan, m.unhealthy = true, false, false, ""
		})
	default:
		a.n.w.fail("must", "the simulated agent does not know operation %T", op)
	}
}

func (a *agent) start(id string, m *memberMemory, d wanted) {
	if !a.hasVolumes(id, d) {
		return // what it waits for wakes the agent
	}
	m.cleaned, m.ready, m.unhealthy, m.recovered = false, false, "", time.Time{}
	a.n.host[id] = d.prepared()
	a.n.w.touched()
	a.drive(id, m, StartFails, "start", 3*time.Second, func(h *hostMember) {
		h.state, h.since = lifecycle.HostRunning, time.Now()
		h.first = !a.n.w.checks.ran[id]
		a.n.w.lives++
		h.life = a.n.w.lives
		m.neverRan, a.n.w.checks.ran[id] = false, true
		if len(d.volumes) > 0 {
			a.n.w.happened("member with a volume")
			a.n.w.checkSharing(d.cluster)
		}
		a.n.endSomeDay(id, h)
		if !h.part {
			a.n.beFrail(id, h)
			a.hearReady(id, h)
			a.n.fallIllSomeDay(id, h)
		}
	})
}

// drive runs a driver's call: it takes its time, and may fail. When the agent ends meanwhile, what had begun may or may not be
// carried through on the host; nobody hears of it.
func (a *agent) drive(id string, m *memberMemory, fails Kind, what string, longest time.Duration, done func(*hostMember), always ...func()) {
	w, n := a.n.w, a.n
	m.busy = true
	takes := w.between(time.Millisecond, longest)
	failed := w.chance(fails, 12) || n.sick
	if what == "start" && w.drawnFor(id+" slow", 100) == 0 && w.may(fails) { // so slow that the leader gives up before the agent does
		takes, failed = w.between(time.Minute, 2*time.Minute), true
	}
	if failed {
		w.checks.disturbed.Add(1)
	}
	boot, half := n.boots, w.random.IntN(2) == 0
	finish := func() {
		w.trace("%s: %s of %s, failed %t", n.record.Name, what, id, failed)
		h := n.host[id]
		if (h != nil || what == "clean") && !failed {
			done(h)
		}
		if failed && what == "start" && h != nil && half {
			h.state, m.neverRan = lifecycle.HostExited, true // it came up and did not get far
		}
		w.touched()
		m.busy, m.fetches = false, ""
		for _, do := range always {
			do()
		}
		if failed {
			m.attempts = m.attempts.Fail(what+" failed", time.Now())
		}
	}
	w.after(takes, func() {
		if !a.over {
			a.run(func() {
				finish()
				a.wake(0)
			})
			return
		}
		// The machine has failed, the next agent has killed what was left of the call, or it died with the agent.
		if boot == n.boots && n.agent == nil && half {
			finish()
		}
	})
}

// report says all the agent has, when that is not what it said last.
func (a *agent) report() {
	l := a.n.link
	if l == nil {
		return
	}
	told := agentstream.Observed{Term: a.epoch.Term}
	for _, id := range slices.Sorted(maps.Keys(a.members)) {
		m := a.members[id]
		switch {
		case m.clean && !m.busy && !a.leftovers(id):
			told.Clean = append(told.Clean, id)
		case m.report != nil:
			r := agentstream.MemberObserved{ID: id, Phase: m.report.Phase, Message: m.report.Message, Failure: m.report.Failure}
			if h := a.n.host[id]; h != nil {
				r.FilesDigest, r.HandedOver, r.Size, r.Volumes = h.files, h.state == lifecycle.HostHandedOver, h.size, h.volumesNumber
				r.Layers = h.layersNumber
				if h.state == lifecycle.HostSaved {
					r.StateBytes = 1000
				}
			}
			r.Verified = m.verified
			r.Moved = m.moved
			told.Members = append(told.Members, r)
		}
	}
	told.Jobs, told.Builds = a.jobsObserved(), a.buildsObserved()
	a.volumesObserved(&told)
	a.sharingsObserved(&told)
	if a.said != nil && reflect.DeepEqual(a.truth, told) {
		return
	}
	before := a.said
	a.truth = told
	told = a.lie(told)
	a.said, a.saidAt = &told, time.Now()
	if l.conn.Send(agentstream.Up{Observed: &told}) != nil {
		a.leave(l)
		return
	}
	for _, m := range a.truth.Members {
		if before == nil || !slices.ContainsFunc(before.Members, func(b agentstream.MemberObserved) bool { return b.ID == m.ID && b.Phase == m.Phase }) {
			a.n.w.blink(a.n, m.ID, m.Phase)
		}
	}
	a.stumble(l)
}

// drawnFor draws a number below n that depends on the run and a name only.
func (w *world) drawnFor(name string, n int) int {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d %s", w.cfg.Seed, name)
	return int(h.Sum64() % uint64(n))
}
