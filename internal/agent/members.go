package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/member"
	"github.com/nearmetal/nearmetal/internal/member/memberlink"
)

// memberState is one member that is wanted here, was found here, or both. It is owned by loop.
type memberState struct {
	id     string
	driver driver.Driver
	want   *agentstream.Member // nil: found on the node, and the leader has not said anything of it
	// assigned is the assignment that it was last known by; nil: debris without a record.
	assigned *api.Assignment

	state   driver.State
	exit    string // how the first process ended
	ready   bool
	cleaned bool   // the driver has verified that nothing is left
	busy    bool   // an operation runs
	watched bool   // a goroutine waits for its end
	probed  bool   // a goroutine waits until it is ready, or has done so
	digest  string // of the generated files it has, "" while that is not known
	wanted  string // of those it should have
	// neverRan: a start is under way or has failed, and what there is of the member is what it left.
	neverRan bool
	// ended: the driver has ended every process of it, and it was not started since.
	ended bool
	// early: its start was begun while its networks were being made.
	early bool
	// departed: it was sent to another node, or may have been. arriving and moved are of a successor from another node.
	// fetched is the member that this one was fetched from; nothing of that stays here.
	departed bool
	fetched  string
	arriving *agentstream.Arriving
	moved    *driver.MoveReport
	// revocable is the operation under way, where the leader may revoke it.
	revocable *revocable
	// boot names the boot that it runs; empty for its first.
	boot string
	// size is the number of the size that it has. unsized is why it could not be given size unsizedFor while it runs.
	size, unsizedFor int64
	unsized          string
	mounts           mounts
	limits           limits
	condition        networkCondition
	// stateBytes is the size of its state on disk. verified names the last verification of a snapshot's state, unverified what that found.
	stateBytes           int64
	verified, unverified string
	// holds: it is saved, and its functions of adapters are not released yet.
	holds bool
	// startedAt is when this agent began to start it; zero once it could be reached.
	startedAt time.Time
	// instance counts how often it was made anew: the end of an earlier one says nothing.
	instance int
	// lookAt is when to find out what it is on the host; zero: state is known.
	lookAt time.Time
	// listenAt is when to try again to open its socket.
	listenAt time.Time
	control  *member.Server
	doors    doors
	jobs     map[string]agentstream.JobObserved
	// kills are those counted when a job that runs was first heard of, by job; oomKills is how many of this member were counted last.
	kills    map[string]kills
	oomKills int

	// recovered is when a restarted agent found it running; zero once this agent has started it itself.
	recovered time.Time
	attempts  lifecycle.Attempts
	problem   string // what keeps a running member from being ready, in its own words
	unhealthy string // why a member that was ready can't be used, in its own words
	cut       string // what is wrong with its network, as seen from the host
	hung      string // how it hangs, as seen from the host
	phase     api.MemberPhase
	message   string
	failure   string // why what is asked of it beyond its life failed
}

// silent reports whether it was released, or sent to another node, and nothing of it runs any more: its ports can go.
func (m *memberState) silent() bool {
	return m.gone() || m.left() || m.ended && !alive(m.state) && m.want != nil && m.want.Release
}

// gone reports whether it was released and nothing of it is left. One that is wanted after it was cleaned is to be made again.
func (m *memberState) gone() bool { return m.cleaned && m.want != nil && m.want.Release }

// part reports whether it is a part of a member: nothing speaks for it from inside, so it is ready once its driver says that it runs.
// A successor is none: it is to be a member, and runs as one.
func (m *memberState) part() bool {
	return m.want != nil && m.want.Assignment.IsPart() && !m.want.Assignment.IsSuccessor()
}

// loseJobs notes that jobs which ran in it ended with it; how others ended, before it did, stays true.
func (m *memberState) loseJobs(now time.Time) {
	for id, job := range m.jobs {
		if !job.Phase.Ended() {
			job.Phase, job.Message, job.EndedAt = api.JobLost, "the job ended with its member", &now
			m.jobs[id] = job
		}
	}
}

// offers reports whether the host checks of a stack's driver passed.
func (a *Agent) offers(stack api.Stack) bool {
	for _, check := range a.cfg.Node.Stacks {
		if check.Stack == stack {
			return check.OK
		}
	}
	return false
}

// recover finds the members that an earlier run of the agent left running, and whatever else of them is on the node.
// A driver whose host checks failed may be unable to look; the node goes without its stack then, and its record says why. Nothing
// is taken for absent by that: such a driver can neither start nor clean a member.
func (a *Agent) recover(ctx context.Context) error {
	for _, d := range a.cfg.Drivers {
		found, err := d.Observe(ctx)
		if err != nil && !a.offers(d.Stack()) {
			a.cfg.Log.ErrorContext(ctx, "stack disabled: its host checks failed; fix what they report and restart the agent",
				"stack", d.Stack(), "error", err)
			continue
		}
		if err != nil {
			return fmt.Errorf("look for members of stack %q on this node: %w", d.Stack(), err)
		}
		for _, o := range found {
			m := &memberState{id: o.ID, driver: d, state: o.State, exit: o.Message, stateBytes: o.StateBytes, holds: o.Holds, departed: a.hasDeparted(o.ID)}
			a.members[o.ID] = m
			if o.Member != nil {
				m.boot, m.size, m.assigned = o.Member.Boot, o.Member.Assignment.SizeNumber, &o.Member.Assignment
				m.mounts.number = o.Member.Assignment.VolumesNumber
				m.mounts.layers = o.Member.LayersNumber
			}
			a.cfg.Log.InfoContext(ctx, "member found", "id", o.ID, "state", o.State)
			if alive(o.State) {
				m.recovered, m.digest = a.cfg.Clock.Now(), a.loadDigest(o.ID)
				a.watch(ctx, m)
			}
		}
	}
	return nil
}

// setWanted takes over what the leader wants of members and jobs. A member that it no longer mentions was confirmed clean and is
// forgotten, if nothing of it is here; debris stays and is cleaned.
func (a *Agent) setWanted(ctx context.Context, d *agentstream.Desired) {
	wanted := map[string]*agentstream.Member{}
	for i := range d.Members {
		w := &d.Members[i]
		wanted[w.Assignment.ID] = w
		if a.members[w.Assignment.ID] == nil {
			a.members[w.Assignment.ID] = &memberState{
				id: w.Assignment.ID, state: driver.StateAbsent, departed: a.hasDeparted(w.Assignment.ID),
			}
		}
	}
	running := map[string]bool{}
	for _, job := range d.Jobs {
		running[job.RunID()] = true
	}
	maps.DeleteFunc(a.stored, func(jobID string, _ storedLog) bool { return !running[jobID] })
	for id, m := range a.members {
		w := wanted[id]
		// What the server no longer names has ended and is stored.
		maps.DeleteFunc(m.jobs, func(jobID string, _ agentstream.JobObserved) bool { return !running[jobID] })
		maps.DeleteFunc(m.kills, func(jobID string, _ kills) bool { return !running[jobID] })
		if w == nil && m.control != nil && m.state == driver.StateAbsent && !m.busy {
			m.state = driver.StatePrepared // its socket is there
		}
		if w == nil && (m.cleaned || m.state == driver.StateAbsent) && !m.busy {
			delete(a.members, id)
			continue
		}
		if w != nil {
			m.assigned = &w.Assignment
			w.HomeDir = filepath.Join(a.cfg.HomeDir, w.Assignment.ClusterUID)
			if w.PrivateHome {
				w.HomeDir = ""
			}
			a.placeVolumes(w)
			a.placeLayers(w)
			a.placeDatasets(w)
			m.mountsChanged(&w.Member)
			if m.want != nil && m.want.ConditionNumber != w.ConditionNumber {
				m.condition.problem, m.condition.attempts = "", lifecycle.Attempts{}
			}
			w.ControlDir = a.controlDir(id)
			if s := w.GPUServer; s != nil && s.Node == a.cfg.Node.Name {
				here := *s
				here.ControlDir = a.controlDir(s.ID)
				w.GPUServer = &here
			}
			m.wanted = w.FilesDigest
			if m.wanted == "" {
				m.wanted = agentstream.FilesDigest(w.Files)
			}
			if m.driver == nil {
				m.driver = a.drivers[w.Assignment.Stack]
			}
			if m.want != nil && (m.want.Release != w.Release || m.want.Save != w.Save || m.want.TakeBack != w.TakeBack || m.want.Boot != w.Boot ||
				m.want.Assignment.SizeNumber != w.Assignment.SizeNumber) {
				m.attempts = lifecycle.Attempts{} // another task: what failed before says nothing about it
			}
		}
		m.want = w
		m.reconsider()
		a.listenAgain(ctx, m, a.cfg.Clock.Now())
		if m.control != nil {
			m.control.SetJobs(a.jobsOf(id))
			if w != nil {
				m.control.SetChecks(w.Checks)
			}
		}
	}
}

// listenAgain opens the socket of a member that was found running, or that could not be opened before.
func (a *Agent) listenAgain(ctx context.Context, m *memberState, now time.Time) {
	switch {
	case m.want == nil || m.part() || m.control != nil || m.busy || !alive(m.state):
	case now.Before(m.listenAt):
		a.wakeAt(m.listenAt)
	default:
		if err := a.listen(ctx, m); err != nil {
			m.problem, m.listenAt = err.Error(), now.Add(lookPause)
			a.wakeAt(m.listenAt)
			return
		}
		m.problem = ""
	}
}

// listen opens the link that the member's own agent connects to, and gives it its jobs.
func (a *Agent) listen(ctx context.Context, m *memberState) error {
	dir := a.controlDir(m.id)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the member's control directory: %w", err)
	}
	id := m.id
	on := func(change func(*memberState)) {
		a.post(ctx, func() {
			if m := a.members[id]; m != nil {
				change(m)
			}
		})
	}
	link, err := a.linkOf(m, dir)
	if err != nil {
		return err
	}
	control, err := member.NewServer(member.ServerConfig{
		Member: id, Dir: dir, Link: link, Log: a.cfg.Log.With("member", id),
		OnReady: func(member.Ready) {
			at := time.Now()
			on(func(m *memberState) {
				a.traceReady(ctx, m, at)
				m.ready, m.problem = true, ""
			})
		},
		OnHealth: func(h member.Health) {
			on(func(m *memberState) {
				m.unhealthy = ""
				if !h.Healthy {
					m.unhealthy = cmp.Or(h.Message, "the member reports itself unhealthy")
				}
			})
		},
		OnProblem: func(p member.Problem) { on(func(m *memberState) { m.problem = p.Message }) },
		OnJobs: func(states []member.JobState) {
			on(func(m *memberState) {
				for _, s := range states {
					if m.jobs == nil {
						m.jobs = map[string]agentstream.JobObserved{}
					}
					if ended := m.jobs[s.ID]; ended.Phase.Ended() { // it does not come back, but the server may store less of its output than there was
						ended.LogBytes, ended.DiscardedBytes = s.LogBytes, s.DiscardedBytes
						m.jobs[s.ID] = ended
					} else {
						a.hearJob(m, agentstream.JobObserved(s))
					}
				}
			})
		},
		OnLog: func(l member.Log) { a.outbox.sendLog(l) },
	})
	if err != nil {
		return err
	}
	m.control = control
	jobs := a.jobsOf(id)
	control.SetJobs(jobs)
	control.SetChecks(m.want.Checks)
	for _, job := range jobs {
		if log, ok := a.stored[job.RunID()]; ok {
			requestLog(control, job.RunID(), log)
		}
	}
	return nil
}

// jobsOf are the jobs that a member should supervise.
func (a *Agent) jobsOf(memberID string) []api.Job {
	var jobs []api.Job
	for _, job := range a.desired.Jobs {
		if job.MemberID == memberID {
			jobs = append(jobs, job.Job)
		}
	}
	return jobs
}

// linkOf makes the link of a member.
func (a *Agent) linkOf(m *memberState, dir string) (memberlink.Endpoint, error) {
	if a.cfg.Listen != nil {
		return a.cfg.Listen(dir, m.want.Member)
	}
	return memberlink.ListenUnix(filepath.Join(dir, "agent.sock"), m.id, m.want.Assignment.UserIDs.First)
}

// storedLog is where a job's stored output ends, as heard on the stream of this number, and whether no more of it is stored.
type storedLog struct {
	offset, stream int64
	discard        bool
}

// ackLog passes on how much of a job's output the server has stored. The first acknowledgement on a stream asks for what follows, under
// the number of the stream.
func (a *Agent) ackLog(ack *agentstream.LogAck, stream int64, first bool) {
	if a.desired == nil {
		return // its orders were not obeyed
	}
	stored := storedLog{ack.Offset, stream, ack.Discard}
	if b := a.builds[ack.JobID]; b != nil {
		b.asked = stored
		if b.log != nil {
			b.log.ack(ack.Offset, stream, first || ack.Again)
		}
		return
	}
	a.stored[ack.JobID] = stored // for a socket that is not open yet
	for _, job := range a.desired.Jobs {
		m := a.members[job.MemberID]
		if job.RunID() != ack.JobID || m == nil || m.control == nil {
			continue
		}
		switch {
		case first:
			requestLog(m.control, ack.JobID, stored)
		case ack.Again:
			m.control.RepeatLog(ack.JobID, ack.Offset)
		case ack.Discard:
			m.control.DiscardLog(ack.JobID, ack.Offset)
		default:
			m.control.AckLog(ack.JobID, ack.Offset)
		}
	}
}

// requestLog asks a member for the output of a run that follows what is stored.
func requestLog(control *member.Server, run string, stored storedLog) {
	control.RequestLog(run, stored.offset, stored.stream)
	if stored.discard {
		control.DiscardLog(run, stored.offset)
	}
}

// watch waits for the end of a member's first process.
func (a *Agent) watch(ctx context.Context, m *memberState) {
	if m.watched {
		return
	}
	m.watched = true
	a.awaitReady(ctx, m)
	id, d, instance := m.id, m.driver, m.instance
	go func() {
		end, err := d.Wait(ctx, id)
		if ctx.Err() != nil {
			return
		}
		a.post(ctx, func() {
			m := a.members[id]
			if m == nil || m.instance != instance {
				return
			}
			m.watched = false
			if err != nil && !errors.Is(err, driver.ErrNotFound) {
				// That it can't be watched is no sign that it ended.
				a.cfg.Log.WarnContext(ctx, "a member can't be watched", "member", id, "error", err)
				m.lookAt = a.cfg.Clock.Now().Add(lookPause)
				return
			}
			m.ready = false
			if !m.busy { // else the operation under way looks for itself
				m.state, m.exit = driver.StateExited, end.Message
				switch {
				case end.State == driver.StateSaved: // its end was that
					m.state = driver.StateSaved
					return
				case m.departed: // what it was doing may go on elsewhere
					a.look(ctx, m)
					return
				}
				m.loseJobs(a.cfg.Clock.Now())
			}
		})
	}()
}

// report puts together what goes up.
func (a *Agent) report() {
	o := agentstream.Observed{
		Term: a.term, Drift: a.drift, Images: a.observedImages(), Builds: a.observedBuilds(), PeerURL: a.cfg.PeerURL,
		PowerOffProblem: a.power.problem,
	}
	o.Volumes, o.PurgedVolumes = a.observedVolumes()
	o.Sharings = a.observedSharings()
	o.Datasets, o.Caches, o.DataPaths, o.CacheRoom = a.observedDatasets(), a.observedCaches(), a.observedPaths(), a.cfg.CacheRoom
	for _, id := range slices.Sorted(maps.Keys(a.members)) {
		m := a.members[id]
		if m.gone() {
			if a.networksGone(m) && !a.hasLeftover(m) && !a.reaches(m) {
				o.Clean = append(o.Clean, id)
				continue
			}
		}
		if m.phase == "" || m.want == nil && m.cleaned {
			continue // nothing was planned for it yet, or it was debris and is gone
		}
		seen := agentstream.MemberObserved{ID: id, Phase: m.phase, Message: cmp.Or(m.message, m.problem, a.cacheTrouble(m, o.Caches), m.unlimited(), m.unconditioned(), m.memoryText()), FilesDigest: m.digest, Failure: m.failure}
		seen.HandedOver, seen.Arriving, seen.Moved = m.state == driver.StateHandedOver, m.arriving, m.moved
		seen.Boot, seen.Size, seen.Verified = m.boot, m.size, m.verified
		if m.phase == api.MemberSaved {
			seen.StateBytes = m.stateBytes
		}
		if m.want != nil {
			if m.unsizedFor == m.want.Assignment.SizeNumber && m.size != m.unsizedFor {
				seen.Unsized = m.unsized
			}
			seen.Generation = m.want.Assignment.Generation
			seen.Volumes, seen.Layers = m.mounts.number, m.mounts.layers
			if !m.mounts.are(&m.want.Member) {
				seen.Unmounted = m.mounts.problem
			}
			if alive(m.state) {
				seen.Condition, seen.Unconditioned = m.condition.number, m.unconditioned()
			}
		}
		o.Members = append(o.Members, seen)
		for _, jobID := range slices.Sorted(maps.Keys(m.jobs)) {
			o.Jobs = append(o.Jobs, m.jobs[jobID])
		}
	}
	a.outbox.set(o)
}

// networksGone reports whether nothing is left on this node of the networks of a clean member, but for those that others here still need.
func (a *Agent) networksGone(m *memberState) bool {
	for _, network := range m.want.Networks {
		if a.networks.holds(network.Index) && !a.sharesNetwork(m, network) {
			return false
		}
	}
	return true
}

// sharesNetwork reports whether another member on this node still needs a network of a clean one, to have a port there or to reach it.
func (a *Agent) sharesNetwork(m *memberState, network api.Network) bool {
	for id, other := range a.members {
		if id == m.id || other.want == nil || other.gone() {
			continue
		}
		if slices.ContainsFunc(other.want.Networks, func(n api.Network) bool { return n.Index == network.Index || fabric.Connected(n, network) }) {
			return true
		}
	}
	return false
}
