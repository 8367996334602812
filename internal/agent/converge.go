package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/filetree"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// converge plans every member that no operation is under way for, and starts what is to be done.
func (a *Agent) converge(ctx context.Context) {
	now := a.cfg.Clock.Now()
	a.nextWake = time.Hour
	a.wake.Reset(a.nextWake)
	newest := a.newestGenerations()
	a.convergeNetworks(ctx, now) // first: members are made while their networks are
	a.serveNames()
	a.convergeVolumes(ctx, now)
	a.convergeSharings(ctx, now)
	a.useDatasets()
	for _, m := range a.members {
		a.openDoors(ctx, m)
		switch {
		case m.busy:
		case now.Before(m.lookAt):
			a.wakeAt(m.lookAt)
		case !m.lookAt.IsZero():
			a.look(ctx, m)
		default:
			a.listenAgain(ctx, m, now)
			a.follow(ctx, m, a.held(m, lifecycle.PlanMember(a.input(m, newest, now))))
		}
	}
	a.trimLayers(ctx)
	a.convergeBuilds(ctx)
	a.convergePower(ctx, now)
}

// newestGenerations is the newest generation wanted of each member name: an older one of the same name must not start.
func (a *Agent) newestGenerations() map[string]int64 {
	newest := map[string]int64{}
	for id, m := range a.members {
		if m.want != nil && !m.want.Assignment.IsPart() { // a successor is one until it takes over
			newest[lineage(id)] = max(newest[lineage(id)], m.want.Assignment.Generation)
		}
	}
	return newest
}

// lineage is an assignment ID without its generation.
func lineage(id string) string {
	if i := strings.LastIndexByte(id, '.'); i >= 0 {
		return id[:i]
	}
	return id
}

func (a *Agent) input(m *memberState, newest map[string]int64, now time.Time) lifecycle.MemberInput {
	in := lifecycle.MemberInput{
		Current: a.desired != nil, NewestGeneration: newest[lineage(m.id)],
		Host: lifecycle.HostState(m.state), HostMessage: m.exit, Ready: m.ready || m.part() || m.hung != "", Cleaned: m.cleaned, NeverRan: m.neverRan, Holds: m.holds,
		Unhealthy:   joined(joined(m.unhealthy, m.cut), m.hung),
		RecoveredAt: m.recovered, Departed: m.departed, Attempts: m.attempts, Now: now,
	}
	if m.want != nil {
		in.Desired = &lifecycle.DesiredMember{
			Generation: m.want.Assignment.Generation, Release: m.want.Release,
			Grace: time.Duration(m.want.GraceSeconds * float64(time.Second)),
		}
		in.Desired.Paused, in.Desired.Save = m.want.Paused && !m.part(), m.want.Save && !m.part()
		in.Desired.Restore = m.want.Assignment.IsSuccessor()
		in.Desired.Snapshot, in.Desired.LayDown = m.want.Assignment.IsSnapshot(), m.want.Assignment.Resumes != ""
		in.Desired.Verify, in.Unverified = m.want.Verify != "" && m.want.Verify != m.verified, m.unverified
		in.Desired.Moving, in.Desired.TakeBack = m.want.Move != nil, m.want.TakeBack
		in.Desired.Reboot = m.want.Boot != "" && m.want.Boot != m.boot && !m.part()
		in.Desired.ChangeSize = m.sizeWanted() && !m.part()
		in.Desired.ChangeVolumes = a.mountsWanted(m, now)
		in.Desired.ChangeLimits = a.limitsWanted(m, now)
		in.Desired.ChangeCondition = a.conditionWanted(m, now)
		if !m.want.HardReboot {
			in.Desired.RebootGrace = rebootGrace
		}
		in.Stale = !m.want.Release && m.digest != m.wanted
	}
	return in
}

// held takes out of a plan what must not be done while the leader has not been heard: its present wishes may be others. What was released
// stays released for ever, so that goes on.
func (a *Agent) held(m *memberState, ops []lifecycle.MemberOperation) []lifecycle.MemberOperation {
	if m.want != nil && m.want.Release || a.hearing.current() {
		return ops
	}
	return slices.DeleteFunc(ops, func(op lifecycle.MemberOperation) bool {
		switch op.(type) {
		case lifecycle.Report, lifecycle.ReportClean, lifecycle.WakeAt, lifecycle.Reject: // words, which touch no member
			return false
		default:
			return true
		}
	})
}

// follow carries a member's plan out. A plan with an operation that this agent does not know ends there, and the member's message says so.
func (a *Agent) follow(ctx context.Context, m *memberState, ops []lifecycle.MemberOperation) {
	for _, op := range ops {
		if err := a.carryOut(ctx, m, op); err != nil {
			a.cfg.Log.ErrorContext(ctx, "the member's plan was not carried out", "member", m.id, "error", err)
			m.message = err.Error()
			return
		}
	}
}

// carryOut does one thing that was planned for a member; a driver's call runs by itself and posts how it went.
func (a *Agent) carryOut(ctx context.Context, m *memberState, op lifecycle.MemberOperation) error {
	switch op := op.(type) {
	case lifecycle.Report:
		m.phase, m.message, m.failure = op.Phase, op.Message, op.Failure
	case lifecycle.ReportClean: // report looks at m.cleaned
	case lifecycle.WakeAt:
		a.wakeAt(op.Time)
	case lifecycle.Reject:
		a.cfg.Log.WarnContext(ctx, "an outdated member is not started", "member", m.id, "reason", op.Reason)
	case lifecycle.Start, lifecycle.Restore:
		a.start(ctx, m)
	case lifecycle.Save:
		a.save(ctx, m)
	case lifecycle.TakeSnapshot:
		a.takeSnapshot(ctx, m)
	case lifecycle.VerifySnapshot:
		a.verifySnapshot(ctx, m)
	case lifecycle.LayDown:
		a.layDown(ctx, m)
	case lifecycle.Update:
		a.update(ctx, m)
	case lifecycle.Stop:
		if m.control != nil {
			m.control.StopMember()
		}
		m.doors.close()
		gone := m.doors.gone()
		a.run(ctx, m, "stop", stopDeadline, func(ctx context.Context) error {
			gone()
			failpoint.Hit("agent.before-stop")
			return m.driver.Stop(ctx, m.id, op.Grace)
		}, func(m *memberState) { m.state, m.exit, m.ended = driver.StateExited, "stopped", true })
	case lifecycle.Pause:
		a.freeze(ctx, m, driver.Pauser.Pause, driver.StatePaused)
	case lifecycle.TakeBack:
		a.takeBack(ctx, m)
	case lifecycle.Resume:
		a.freeze(ctx, m, driver.Pauser.Resume, driver.StateRunning)
	case lifecycle.Reboot:
		a.reboot(ctx, m, op.Grace)
	case lifecycle.ChangeSize:
		a.changeSize(ctx, m)
	case lifecycle.ChangeVolumes:
		a.changeMounts(ctx, m)
	case lifecycle.ChangeLimits:
		a.changeLimits(ctx, m)
	case lifecycle.ChangeCondition:
		a.changeCondition(ctx, m)
	case lifecycle.Clean:
		a.clean(ctx, m)
	default:
		return &lifecycle.UnhandledOperation{Handler: "the node agent", Operation: op}
	}
	return nil
}

// update brings the files of a running member up to date.
func (a *Agent) update(ctx context.Context, m *memberState) {
	want, digest := m.want.Member, m.wanted
	m.digest = "" // until it is done
	a.run(ctx, m, "update", updateDeadline, a.ifKnown(m, func(ctx context.Context) error {
		return a.changeFiles(m.id, digest, func() error { return m.driver.Update(ctx, want) })
	}), func(m *memberState) { m.digest = digest })
}

// ifKnown holds a call back that was planned in time, when this agent was stopped, or cut off, before it came to it.
func (a *Agent) ifKnown(m *memberState, call func(context.Context) error) func(context.Context) error {
	released := m.want.Release
	return func(ctx context.Context) error {
		if !released && !a.hearing.current() {
			return errNotKnown
		}
		return call(ctx)
	}
}

// start starts a member whose networks are in force with its ports pinned, or are about to be: it is made meanwhile, and Attach, before anything
// runs in it, waits for them.
func (a *Agent) start(ctx context.Context, m *memberState) {
	if m.driver == nil {
		m.phase, m.message = api.MemberFailed, "this node's agent has no driver for stack "+string(m.want.Assignment.Stack)
		return
	}
	m.ended = false
	m.early = !a.networks.has(&m.want.Member)
	if m.early && !a.networks.makes(&m.want.Member) {
		m.message = a.networks.problem
		return // applying the networks wakes the loop
	}
	if !a.imageReady(m) || !a.volumesReady(m) || !a.datasetsReady(m) {
		return
	}
	m.ready, m.unhealthy, m.cut, m.hung, m.exit, m.recovered = false, "", "", "", "", time.Time{}
	if m.elsewhere(a.cfg.Node.Name) && a.inTheWay(m.want.Assignment.From) {
		m.message = "what an earlier attempt to bring it here has left is being removed"
		return
	}
	starts, err := a.starter(m)
	if err != nil {
		m.phase, m.message = api.MemberFailed, err.Error()
		return
	}
	home := m.want.HomeDir
	if m.part() || !ownsHome(m.want) {
		home = a.controlDir(m.id) // it has no home of its cluster; its digest is kept there
	}
	if !m.part() && m.control == nil {
		if err := a.listen(ctx, m); err != nil {
			m.attempts = m.attempts.Fail(err.Error(), a.cfg.Clock.Now())
			a.wakeAt(m.attempts.NextTry)
			return
		}
	}
	want, digest, layers := m.want.Member, m.wanted, m.want.Layers
	want.IOLimits = a.ioLimits(m)
	if want.Assignment.IsSuccessor() {
		digest = "" // it goes on with the files that it had, until it is updated
	}
	do := task{what: "start", life: ctx, deadline: startDeadline, slots: a.slots}
	if m.elsewhere(a.cfg.Node.Name) {
		do.what, do.deadline, do.slots = "fetch", carryDeadline, a.carries
		m.fetched = want.Assignment.From
		do.life = m.revocably(ctx, func(w *agentstream.Member) bool { return w != nil && !w.Release })
	} else if want.Assignment.IsSuccessor() {
		do.what, do.deadline = "restore", saveDeadline
	} else if slow, ok := m.driver.(driver.SlowStarter); ok && !m.part() {
		do.deadline = slow.StartTime()
	}
	m.neverRan, m.digest, m.startedAt = true, "", time.Now()
	do.call = a.ifKnown(m, func(ctx context.Context) error {
		if err := os.MkdirAll(home, 0o755); err != nil {
			return err
		}
		if err := a.mountLayers(layers, &want.Assignment); err != nil {
			return err
		}
		failpoint.Hit("agent.before-start")
		if err := a.readmit(ctx, want.Assignment.ID); err != nil {
			return err
		}
		err := a.changeFiles(m.id, digest, func() error { return starts(ctx, want) })
		failpoint.Hit("agent.after-start")
		return err
	})
	a.perform(ctx, m, do, a.counting(ctx, m, func(m *memberState) {
		m.state, m.digest, m.cleaned, m.neverRan, m.boot = driver.StateRunning, digest, false, false, want.Boot
		m.size, m.mounts = want.Assignment.SizeNumber, mounts{number: want.Assignment.VolumesNumber, layers: want.LayersNumber}
		m.limits = limits{known: len(want.IOLimits) == 0} // a driver starts it without those that it can't set
		m.condition = networkCondition{}
	}))
}

// starter is how the driver starts a member, lets one go on, or starts a part. What the driver can't carry has failed for good.
func (a *Agent) starter(m *memberState) (func(context.Context, driver.Member) error, error) {
	if m.elsewhere(a.cfg.Node.Name) {
		d, want := m.driver, *m.want
		return func(ctx context.Context, _ driver.Member) error { return a.fetch(ctx, m, d, want) }, nil
	}
	if m.want.Assignment.IsSuccessor() {
		saver, ok := m.driver.(driver.Saver)
		if !ok {
			return nil, noSaver(m.driver)
		}
		return func(ctx context.Context, want driver.Member) error {
			return saver.Restore(ctx, want, want.Assignment.From)
		}, nil
	}
	if !m.part() {
		return m.driver.Start, nil
	}
	carrier, ok := m.driver.(driver.PartCarrier)
	if !ok {
		return nil, fmt.Errorf("the %s stack of this node can't carry parts of members: it holds nothing for members elsewhere", m.driver.Stack())
	}
	return carrier.StartPart, nil
}

// freeze makes a member stand still or go on, and says what state that leaves it in.
func (a *Agent) freeze(ctx context.Context, m *memberState, call func(driver.Pauser, context.Context, string) error, state driver.State) {
	a.run(ctx, m, string(state), pauseDeadline, a.ifKnown(m, func(ctx context.Context) error {
		pauser, ok := m.driver.(driver.Pauser)
		if !ok {
			return fmt.Errorf("members of stack %q can't be paused", m.driver.Stack())
		}
		failpoint.Hit("agent.before-freeze")
		return call(pauser, ctx, m.id)
	}), func(m *memberState) { m.state = state })
}

// clean removes what is left of a member, and the shared home of a cluster that is being deleted.
func (a *Agent) clean(ctx context.Context, m *memberState) {
	control := m.control
	m.control = nil
	m.doors.close()
	gone := m.doors.gone()
	final := m.want == nil || m.want.Release
	home := ""
	if m.want != nil && m.want.ReleaseHome && ownsHome(m.want) && (!m.want.Assignment.IsSnapshot() || len(a.cluster(m)) == 1) {
		// Every member of a cluster that is being deleted removes the home after its own end: so the last one leaves nothing.
		home = m.want.HomeDir
	}
	from := m.fetched
	if m.elsewhere(a.cfg.Node.Name) {
		from = m.want.Assignment.From
	}
	if from != "" && a.inTheWay(from) {
		from = "" // it is cleaned by itself
	}
	d, stack := m.driver, api.Stack("")
	if m.want != nil {
		stack = m.want.Assignment.Stack
	}
	a.run(ctx, m, "clean", cleanDeadline, func(ctx context.Context) error {
		gone()
		failpoint.Hit("agent.before-clean")
		if control != nil {
			if err := control.Close(); err != nil {
				a.cfg.Log.WarnContext(ctx, "a member's socket can't be closed", "member", m.id, "error", err)
			}
		}
		if d == nil {
			// Nothing was looked at, which proves nothing: an agent that carried the stack before may have left something.
			return fmt.Errorf("this node's agent has no driver for stack %s, and can't look whether anything of the member is left; "+
				"start it where its host checks pass", stack)
		}
		if err := d.Clean(ctx, m.id); err != nil {
			return err
		}
		if from != "" { // which was brought here for it
			if err := d.Clean(ctx, from); err != nil {
				return err
			}
		}
		failpoint.Hit("agent.after-clean")
		if home != "" {
			if err := filetree.Remove(ctx, home); err != nil {
				return err
			}
		}
		if !final {
			return nil // the control directory remembers which jobs were started, and must outlive a restart
		}
		return filetree.Remove(ctx, a.controlDir(m.id))
	}, func(m *memberState) {
		m.state, m.exit, m.ready, m.unhealthy, m.cut, m.hung, m.problem = driver.StateAbsent, "", false, "", "", "", ""
		m.digest, m.neverRan, m.kills, m.oomKills, m.moved, m.fetched = "", false, nil, 0, nil, ""
		m.cleaned = final
		m.watched, m.probed, m.lookAt = false, false, time.Time{}
		m.instance++
		m.loseJobs(a.cfg.Clock.Now())
	})
}

// run calls a driver for a member, within a deadline, and posts how it went: done on success, a counted failure otherwise.
func (a *Agent) run(ctx context.Context, m *memberState, what string, deadline time.Duration, call func(context.Context) error, done func(*memberState)) {
	a.perform(ctx, m, task{what, ctx, deadline, a.slots, call}, a.counting(ctx, m, done))
}

// perform calls a driver for a member, within a deadline, and posts its end.
func (a *Agent) perform(ctx context.Context, m *memberState, do task, ended func(error)) {
	m.busy = true
	traced := a.traced(do.life, m.id, rootOf(m))
	revocable := m.revocable
	go func() {
		err := do.inTurn(traced)
		a.post(ctx, func() {
			m.busy, m.arriving, m.revocable = false, nil, nil
			if revocable != nil {
				revocable.end()
			}
			ended(err)
		})
	}()
}

// counting returns what is done about the end of a driver's call: done on success, a counted failure otherwise.
func (a *Agent) counting(ctx context.Context, m *memberState, done func(*memberState)) func(error) {
	return func(err error) {
		if err == nil {
			done(m)
		}
		if err == nil || errors.Is(err, errNotKnown) {
			if alive(m.state) {
				a.watch(ctx, m) // an end that was noticed meanwhile is noticed again
			}
			return
		}
		if m.early && errors.Is(err, fabric.ErrNotApplied) { // its networks could not be made after all: it is made again once they are
			a.look(ctx, m)
			return
		}
		if errors.Is(err, agentstream.ErrOver) || errors.Is(err, driver.ErrUnfit) {
			m.attempts = m.attempts.GiveUp(err.Error(), a.cfg.Clock.Now())
		} else {
			m.attempts = m.attempts.Fail(err.Error(), a.cfg.Clock.Now())
		}
		a.cfg.Log.WarnContext(ctx, "an operation on a member failed", "member", m.id, "error", err, "attempt", m.attempts.Count)
		a.look(ctx, m)
	}
}

// look finds out what state a member is in after an operation failed half way. As long as that can't be told, nothing is done to
// the member: it may well run.
func (a *Agent) look(ctx context.Context, m *memberState) {
	if m.driver == nil {
		return
	}
	m.busy, m.lookAt = true, time.Time{}
	d := m.driver
	go func() {
		bounded, cancel := context.WithTimeout(ctx, lookDeadline)
		defer cancel()
		found, err := d.Observe(bounded)
		a.post(ctx, func() {
			m.busy = false
			if err != nil {
				a.cfg.Log.ErrorContext(ctx, "the members on this node can't be inspected", "error", err)
				m.lookAt, m.message = a.cfg.Clock.Now().Add(lookPause), err.Error()
				return
			}
			m.state = driver.StateAbsent
			for _, o := range found {
				if o.ID == m.id {
					m.state, m.exit, m.stateBytes, m.holds = o.State, o.Message, o.StateBytes, o.Holds
				}
			}
			if alive(m.state) {
				a.watch(ctx, m)
			} else if m.state != driver.StateSaved && m.state != driver.StateHandedOver && !m.departed {
				m.loseJobs(a.cfg.Clock.Now())
			}
		})
	}()
}

// alive reports whether a member's processes are there, running or frozen.
func alive(s driver.State) bool { return s == driver.StateRunning || s == driver.StatePaused }

// wakeAt makes the loop look again at a time.
func (a *Agent) wakeAt(at time.Time) {
	if pause := a.cfg.Clock.Until(at); pause < a.nextWake {
		a.nextWake = max(pause, 0)
		a.wake.Reset(a.nextWake)
	}
}

func (a *Agent) controlDir(id string) string { return filepath.Join(a.cfg.StateDir, "control", id) }
