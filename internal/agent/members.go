package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/member"
)

// memberState is one member that is wanted here, was found here, or both. It is owned by loop.
type memberState struct {
	id     string
	driver driver.Driver
	want   *agentstream.Member // nil: found on the node, and the leader has not said anything of it

	state   driver.State
	exit    string // how the first process ended
	ready   bool
	cleaned bool // the driver has verified that nothing is left
	busy    bool // an operation runs
	watched bool // a goroutine waits for its end
	given   []driver.File
	control *member.Server
	jobs    map[string]agentstream.JobObserved

	// recovered is when a restarted agent found it running; zero once this agent has started it itself.
	recovered time.Time
	attempts  lifecycle.Attempts
	problem   string // what keeps a running member from being ready, in its own words
	phase     api.MemberPhase
	message   string
}

// offers tells whether the host checks of a stack's driver passed.
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
			a.cfg.Log.ErrorContext(ctx, "this node goes without a stack; correct what its checks found and start the agent again",
				"stack", d.Stack(), "error", err)
			continue
		}
		if err != nil {
			return fmt.Errorf("look for members of stack %q on this node: %w", d.Stack(), err)
		}
		for _, o := range found {
			m := &memberState{id: o.ID, driver: d, state: o.State, exit: o.Message}
			a.members[o.ID] = m
			a.cfg.Log.InfoContext(ctx, "member found", "id", o.ID, "state", o.State)
			if o.State == driver.StateRunning {
				m.recovered = time.Now()
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
				id: w.Assignment.ID, state: driver.StateAbsent,
			}
		}
	}
	jobs := map[string][]api.Job{}
	for _, job := range d.Jobs {
		jobs[job.MemberID] = append(jobs[job.MemberID], job.Job)
	}
	for id, m := range a.members {
		w := wanted[id]
		if w == nil && (m.cleaned || m.state == driver.StateAbsent) && !m.busy {
			delete(a.members, id)
			continue
		}
		if w != nil {
			w.HomeDir = filepath.Join(a.cfg.HomeDir, w.Assignment.ClusterUID)
			w.ControlDir = a.controlDir(id)
			if m.driver == nil {
				m.driver = a.drivers[w.Assignment.Stack]
			}
			if m.want != nil && m.want.Release != w.Release {
				m.attempts = lifecycle.Attempts{} // another task: what failed before says nothing about it
			}
		}
		m.want = w
		if w != nil && m.control == nil && m.state == driver.StateRunning {
			if err := a.listen(ctx, m); err != nil {
				m.problem = err.Error()
			}
		}
		if m.control != nil {
			m.control.SetJobs(jobs[id])
		}
	}
}

// listen opens the socket that the member's own agent connects to.
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
	control, err := member.NewServer(member.ServerConfig{
		Path: filepath.Join(dir, "agent.sock"), Owner: m.want.Network.IDBase, Log: a.cfg.Log.With("member", id),
		OnReady:   func(member.Ready) { on(func(m *memberState) { m.ready, m.problem = true, "" }) },
		OnProblem: func(p member.Problem) { on(func(m *memberState) { m.problem = p.Message }) },
		OnJobs: func(states []member.JobState) {
			on(func(m *memberState) {
				for _, s := range states {
					if m.jobs == nil {
						m.jobs = map[string]agentstream.JobObserved{}
					}
					m.jobs[s.ID] = agentstream.JobObserved(s)
				}
			})
		},
		OnLog: func(l member.Log) { a.outbox.sendLog(l) },
	})
	if err != nil {
		return err
	}
	m.control = control
	return nil
}

// ackLog passes on how much of a job's output the server has stored; the first word on a stream asks for what follows,
// under the number of the stream.
func (a *Agent) ackLog(ack *agentstream.LogAck, stream int64, first bool) {
	if a.desired == nil {
		return // its orders were not obeyed
	}
	for _, job := range a.desired.Jobs {
		if m := a.members[job.MemberID]; job.ID == ack.JobID && m != nil && m.control != nil {
			if first {
				m.control.RequestLog(ack.JobID, ack.Offset, stream)
			} else {
				m.control.AckLog(ack.JobID, ack.Offset)
			}
		}
	}
}

// watch waits for the end of a member's first process.
func (a *Agent) watch(ctx context.Context, m *memberState) {
	if m.watched {
		return
	}
	m.watched = true
	id, d := m.id, m.driver
	go func() {
		end, err := d.Wait(ctx, id)
		if ctx.Err() != nil {
			return
		}
		a.post(ctx, func() {
			m := a.members[id]
			if m == nil {
				return
			}
			m.watched, m.ready = false, false
			if err != nil {
				a.cfg.Log.WarnContext(ctx, "a member can't be watched", "member", id, "error", err)
			}
			if !m.busy { // else the operation under way looks for itself
				m.state, m.exit = driver.StateExited, end.Message
			}
		})
	}()
}

// report puts together what goes up.
func (a *Agent) report() {
	o := agentstream.Observed{Term: a.term, Drift: a.drift}
	for _, id := range slices.Sorted(maps.Keys(a.members)) {
		m := a.members[id]
		if m.cleaned && m.want != nil && m.want.Release {
			if !a.networks.holds(m.want.Network.Index) || a.sharesNetwork(m) {
				o.Clean = append(o.Clean, id)
				continue
			}
		}
		if m.phase == "" || m.want == nil && m.cleaned {
			continue // nothing was planned for it yet, or it was debris and is gone
		}
		seen := agentstream.MemberObserved{ID: id, Phase: m.phase, Message: cmp.Or(m.message, m.problem)}
		if m.want != nil {
			seen.Generation = m.want.Assignment.Generation
		}
		o.Members = append(o.Members, seen)
		for _, jobID := range slices.Sorted(maps.Keys(m.jobs)) {
			o.Jobs = append(o.Jobs, m.jobs[jobID])
		}
	}
	a.outbox.set(o)
}

// sharesNetwork tells whether another member on this node still needs the network of a clean one.
func (a *Agent) sharesNetwork(m *memberState) bool {
	for id, other := range a.members {
		if id != m.id && other.want != nil && !other.cleaned && other.want.Network.Index == m.want.Network.Index {
			return true
		}
	}
	return false
}
