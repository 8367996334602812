package lifecycle

import (
	"cmp"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// HostState is what a driver sees of a member on its host; the values are those of driver.State.
type HostState string

// The states of a member on a host.
const (
	HostAbsent   HostState = "absent"
	HostPrepared HostState = "prepared"
	HostRunning  HostState = "running"
	HostPaused   HostState = "paused"
	HostExited   HostState = "exited"
	HostSaved    HostState = "saved"
	// HostHandedOver is of a member that may run on another host by now, and stands still here.
	HostHandedOver HostState = "handed-over"
)

// Epoch dates a whole desired state: leaders by their term, states of one leader by their revision.
type Epoch struct{ Term, Revision int64 }

// Accept returns why a desired state of epoch next must not be obeyed after one of epoch e, or nil. The same epoch again is no news and
// no harm.
func (e Epoch) Accept(next Epoch) error {
	switch {
	case next.Term < e.Term:
		return fmt.Errorf("the desired state is from a former leader: its term is %d, the current term is %d", next.Term, e.Term)
	case next.Term == e.Term && next.Revision < e.Revision:
		return fmt.Errorf("the desired state is outdated: its revision is %d, the newest is %d", next.Revision, e.Revision)
	default:
		return nil
	}
}

// Pauses and limits of attempts.
const (
	// MaxAttempts is how often a member's start is tried before it is reported failed. Cleaning is never given up.
	MaxAttempts = 5

	firstPause  = time.Second
	longestWait = 30 * time.Second
	// recoveryGrace is how long the agent of a recovered member is given to speak up again.
	recoveryGrace = 10 * time.Second
	// forgetAfter is how long nothing must have failed for earlier failures not to count any more.
	forgetAfter = 10 * time.Minute
)

// Attempts are the failures of a member on its host so far. The zero value is none.
type Attempts struct {
	Count int
	// FailedAt is when the last one was, NextTry when to try again.
	FailedAt, NextTry time.Time
	LastError         string
}

// Fail counts one more failure: the pause doubles from one second to half a minute. Old failures are forgotten.
func (a Attempts) Fail(message string, now time.Time) Attempts {
	if now.Sub(a.FailedAt) >= forgetAfter {
		a = Attempts{}
	}
	pause := longestWait
	if a.Count < 5 {
		pause = min(longestWait, firstPause<<a.Count)
	}
	return Attempts{Count: a.Count + 1, FailedAt: now, NextTry: now.Add(pause), LastError: message}
}

// GiveUp counts a failure after which nothing is tried again.
func (a Attempts) GiveUp(message string, now time.Time) Attempts {
	a = a.Fail(message, now)
	a.Count = max(a.Count, MaxAttempts)
	return a
}

// DesiredMember is the state that the leader requests of a member.
type DesiredMember struct {
	Generation int64
	// Release asks to stop and clean it; Grace is how long it is asked politely to stop.
	Release bool
	Grace   time.Duration
	// Paused asks for it to be frozen.
	Paused bool
	// Save asks for it to be on disk with its memory. Restore asks for it to go on from what another one left there.
	Save, Restore bool
	// Moving asks for it to be handed to its successor on another node, which fetches it. TakeBack asks for one that was handed over in vain to go
	// on here.
	Moving, TakeBack bool
	// Reboot asks for it to boot again: the boot that it runs is not the one requested. RebootGrace is how long its system is asked to shut
	// down before it is reset.
	Reboot      bool
	RebootGrace time.Duration
	// ChangeSize asks for the size that the leader decided: the member has another, and its driver has not found yet that this takes a reboot.
	ChangeSize bool
	// ChangeLimits asks for other limits of its I/O than it is held to. What failed is tried again after a pause of its own, which is over.
	ChangeLimits bool
	// ChangeVolumes asks for other volumes than it has. What failed is tried again after a pause of its own, which is over: files that are open must
	// not keep anything else from being done.
	ChangeVolumes bool
	// ChangeCondition asks for another condition of what it sends than it is known to have. What failed is tried again after a pause of its own, which is
	// over.
	ChangeCondition bool
	// Snapshot is of an assignment that is to keep the state of a member. Verify asks for that state to be verified. LayDown is of a saved member
	// that begins with its state in a snapshot.
	Snapshot, Verify, LayDown bool
}

// MemberInput is everything an agent's decision about one member depends on.
type MemberInput struct {
	// Desired is nil when the leader does not name the member.
	Desired *DesiredMember
	// Current: the agent has heard the desired state from the leader since it started. Until then, what it does not know of is
	// left alone.
	Current bool
	// NewestGeneration is the highest generation in which the leader has ever named a member of this name and cluster.
	NewestGeneration int64
	// Host is what the driver sees; HostMessage what it says, such as how the member ended.
	Host        HostState
	HostMessage string
	// Holds: it is saved, and its functions of adapters are not released yet.
	Holds bool
	// Ready: the member agent has said that the member can be reached.
	Ready bool
	// Unhealthy is why a member that is Ready can't be used, by its member agent or the agent's own look; empty: it can.
	Unhealthy string
	// NeverRan: what the driver sees as exited is what a Start that failed left behind. Whatever else has exited has run.
	NeverRan bool
	// RecoveredAt is when this agent found the member on its host when it started; zero for one that it started itself. What
	// runs on through a restart of the agent is not told to be less than it may well be.
	RecoveredAt time.Time
	// Departed: it was sent to another node, or may have been. What is not there any more has gone there.
	Departed bool
	// Stale: the generated files of the running member are not those desired.
	Stale bool
	// Unverified is what the last verification of a snapshot's state found.
	Unverified string
	// Cleaned: the driver's Clean has succeeded since the member was last seen on the host.
	Cleaned  bool
	Attempts Attempts
	Now      time.Time
}

// PlanMember returns what the agent is to do about one member now. It is asked again after every operation, and only while
// none is under way for this member.
func PlanMember(in MemberInput) []MemberOperation {
	switch d := in.Desired; {
	case d == nil && in.Host == HostAbsent:
		return nil
	case d == nil && !in.Current:
		return []MemberOperation{Report{Phase: api.MemberUnknown, Message: "found on the node; the agent has just restarted"}}
	case d == nil:
		return in.planRemoval(0)
	case d.Release:
		return in.planRemoval(d.Grace)
	case d.Snapshot:
		return in.planSnapshot()
	case d.Generation < in.NewestGeneration:
		return []MemberOperation{Reject{Reason: fmt.Sprintf("the desired generation is %d, the newest is %d", d.Generation, in.NewestGeneration)}}
	default:
		return in.planPresence()
	}
}

// planRemoval stops, cleans, and says so. It is never given up: the leader quarantines what takes too long.
func (in MemberInput) planRemoval(grace time.Duration) []MemberOperation {
	if in.Host == HostAbsent && in.Cleaned {
		return []MemberOperation{ReportClean{}}
	}
	report := Report{Phase: api.MemberReleasing, Message: in.Attempts.LastError}
	switch {
	case in.waiting():
		return []MemberOperation{report, WakeAt{Time: in.Attempts.NextTry}}
	case in.Host == HostPaused: // what is frozen takes no signal, not even the last one
		return []MemberOperation{report, Resume{}}
	case in.Host == HostRunning:
		return []MemberOperation{report, Stop{Grace: grace}}
	default:
		return []MemberOperation{report, Clean{}}
	}
}

// planPresence starts, keeps up to date, freezes and wakes. What has run and ended is over: its leader replaces it, and what is left of it
// stays until then, to be looked at. Only starting is tried again.
func (in MemberInput) planPresence() []MemberOperation {
	switch {
	case in.Host == HostRunning:
		return in.planRunning()
	case in.Host == HostPaused:
		return in.planPaused()
	case in.Host == HostHandedOver:
		return in.planHandedOver()
	case in.Host == HostSaved && in.Holds:
		return in.planLettingGo()
	case in.Host == HostSaved:
		return []MemberOperation{Report{Phase: api.MemberSaved}}
	case in.Departed && in.Desired.Moving: // its successor's agent knows more
		return []MemberOperation{Report{Phase: api.MemberUnknown, Message: "it was sent to another node"}}
	case in.Host == HostAbsent && in.Desired.Moving: // only a member that ran moves: a node that lost its disk can't know that it sent the member
		return []MemberOperation{Report{Phase: api.MemberUnknown, Message: "nothing of it is on this node; it may have been sent to another node"}}
	case in.Departed:
		return []MemberOperation{Report{Phase: api.MemberFailed, Message: "it was sent to another node, and is no longer here"}}
	case in.Host == HostExited && in.Desired.Reboot && in.Attempts.Count < MaxAttempts: // the reboot was cut short, or the member ended before it
		return in.planReboot()
	case in.Host == HostExited && !in.NeverRan:
		return []MemberOperation{Report{Phase: api.MemberFailed, Message: cmp.Or(in.HostMessage, "ended")}}
	case in.Desired.LayDown && in.Attempts.Count < MaxAttempts:
		return in.planLayingDown()
	case in.Desired.Save: // a fresh start would not be what was saved
		return []MemberOperation{Report{Phase: api.MemberFailed, Message: "its saved memory is no longer on its node"}}
	case in.Attempts.Count >= MaxAttempts:
		return []MemberOperation{Report{Phase: api.MemberFailed, Message: in.Attempts.LastError}}
	case in.waiting():
		return []MemberOperation{in.preparing(), WakeAt{Time: in.Attempts.NextTry}}
	case in.Host == HostAbsent && in.Desired.Restore:
		return []MemberOperation{in.preparing(), Restore{}}
	case in.Host == HostAbsent:
		return []MemberOperation{in.preparing(), Start{}}
	default:
		return []MemberOperation{in.preparing(), Clean{}}
	}
}

func (in MemberInput) planRunning() []MemberOperation {
	report := Report{Phase: api.MemberStarting}
	settled := in.RecoveredAt.Add(recoveryGrace)
	switch {
	case in.Ready && in.Unhealthy != "":
		report = Report{Phase: api.MemberUnhealthy, Message: in.Unhealthy}
	case in.Ready:
		report.Phase = api.MemberReady
	case in.Desired.Paused || in.Desired.Save: // it need not speak up for that
	case in.Now.Before(settled):
		report = Report{Phase: api.MemberUnknown, Message: "running; the agent has just restarted and awaits its first health report"}
		return []MemberOperation{report, WakeAt{Time: settled}}
	}
	if in.Desired.Save { // it is tried again until its leader, who hears of the failure, wants something else
		report.Failure = in.Attempts.LastError
	}
	switch {
	case (in.Desired.Paused || in.Desired.Save || in.Stale || in.Desired.ChangeSize) && in.waiting():
		report.Message = cmp.Or(report.Message, in.Attempts.LastError)
		return []MemberOperation{report, WakeAt{Time: in.Attempts.NextTry}}
	case in.Desired.Save:
		return []MemberOperation{report, Save{}}
	case in.Desired.Paused:
		return []MemberOperation{report, Pause{}}
	case in.Desired.Reboot && !in.Desired.Moving: // a member that moves is another assignment afterwards
		return in.planReboot()
	case in.Stale:
		return []MemberOperation{report, Update{}}
	case in.Desired.ChangeSize && !in.Desired.Moving:
		return []MemberOperation{report, ChangeSize{}}
	case in.Desired.ChangeLimits && !in.Desired.Moving: // a volume that comes is limited before the member has it
		return []MemberOperation{report, ChangeLimits{}}
	case in.Desired.ChangeVolumes && !in.Desired.Moving:
		return []MemberOperation{report, ChangeVolumes{}}
	case in.Desired.ChangeCondition && !in.Desired.Moving:
		return []MemberOperation{report, ChangeCondition{}}
	default:
		return []MemberOperation{report}
	}
}

// planReboot boots a member again. It is no loss of the member: the member is coming up, as after its first start.
func (in MemberInput) planReboot() []MemberOperation {
	report := Report{Phase: api.MemberStarting, Message: "rebooting on request"}
	if in.waiting() {
		report.Message = in.Attempts.LastError + "; retrying the reboot"
		return []MemberOperation{report, WakeAt{Time: in.Attempts.NextTry}}
	}
	return []MemberOperation{report, Reboot{Grace: in.Desired.RebootGrace}}
}

// planHandedOver leaves a member alone that may run elsewhere: taking it back, or cleaning it, is for somebody who knows the other host's side.
func (in MemberInput) planHandedOver() []MemberOperation {
	report := Report{Phase: api.MemberUnknown, Message: "it was handed over, and may run on another node"}
	switch {
	case !in.Desired.TakeBack:
		return []MemberOperation{report}
	case in.waiting():
		report.Message = in.Attempts.LastError
		return []MemberOperation{report, WakeAt{Time: in.Attempts.NextTry}}
	default:
		return []MemberOperation{report, TakeBack{}}
	}
}

// planLettingGo releases the functions of a saved member. Until they are, the leader must not take them for free, so the member is not reported saved,
// nor is it lost: it goes on from disk as soon as they are.
func (in MemberInput) planLettingGo() []MemberOperation {
	report := Report{Phase: api.MemberUnknown, Message: "it is saved, and its functions of adapters are being released"}
	if in.waiting() {
		report.Message = "it is saved, and its functions of adapters are not released yet: " + in.Attempts.LastError
		return []MemberOperation{report, WakeAt{Time: in.Attempts.NextTry}}
	}
	return []MemberOperation{report, Save{}}
}

// planPaused leaves a member frozen, or wakes it.
func (in MemberInput) planPaused() []MemberOperation {
	report := Report{Phase: api.MemberPaused}
	switch {
	case in.Desired.Paused && in.Desired.ChangeLimits:
		return []MemberOperation{report, ChangeLimits{}}
	case in.Desired.Paused && in.Desired.ChangeVolumes:
		return []MemberOperation{report, ChangeVolumes{}}
	case in.Desired.Paused && in.Desired.ChangeCondition:
		return []MemberOperation{report, ChangeCondition{}}
	case in.Desired.Paused:
		return []MemberOperation{report}
	case in.waiting():
		report.Message = in.Attempts.LastError
		return []MemberOperation{report, WakeAt{Time: in.Attempts.NextTry}}
	default:
		return []MemberOperation{report, Resume{}}
	}
}

func (in MemberInput) waiting() bool { return in.Now.Before(in.Attempts.NextTry) }

// preparing is the report of a member that is being made, after what went wrong before.
func (in MemberInput) preparing() Report {
	if in.Attempts.LastError == "" {
		return Report{Phase: api.MemberPreparing}
	}
	return Report{Phase: api.MemberPreparing, Message: in.Attempts.LastError + "; retrying"}
}
