package lifecycle

import (
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
)

// Epoch dates a whole desired state: leaders by their term, states of one leader by their revision.
type Epoch struct{ Term, Revision int64 }

// Accept returns why a desired state of epoch next must not be obeyed after one of epoch e, or nil. The same epoch again is no news and
// no harm.
func (e Epoch) Accept(next Epoch) error {
	switch {
	case next.Term < e.Term:
		return fmt.Errorf("it comes from a former leader: term %d, the leader's is %d", next.Term, e.Term)
	case next.Term == e.Term && next.Revision < e.Revision:
		return fmt.Errorf("it is older than what is known: revision %d, the newest is %d", next.Revision, e.Revision)
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
	if a.Count > 0 && now.Sub(a.FailedAt) >= forgetAfter {
		a = Attempts{}
	}
	pause := longestWait
	if a.Count < 5 {
		pause = min(longestWait, firstPause<<a.Count)
	}
	return Attempts{Count: a.Count + 1, FailedAt: now, NextTry: now.Add(pause), LastError: message}
}

// DesiredMember is what the leader wants of a member.
type DesiredMember struct {
	Generation int64
	// Release asks to stop and clean it; Grace is how long it is asked politely to stop.
	Release bool
	Grace   time.Duration
	// Paused asks for it to be frozen.
	Paused bool
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
	// Ready: the member agent has said that the member can be reached.
	Ready bool
	// RecoveredAt is when this agent found the member on its host when it started; zero for one that it started itself. What
	// runs on through a restart of the agent is not told to be less than it may well be.
	RecoveredAt time.Time
	// Stale: the generated files of the running member are not those desired.
	Stale bool
	// Cleaned: the driver's Clean has succeeded since the member was last seen on the host.
	Cleaned  bool
	Attempts Attempts
	Now      time.Time
}

// PlanMember returns what the agent is to do about one member now. It is asked again after every operation, and only while
// none is under way for this member.
func PlanMember(in MemberInput) []MemberOperation {
	switch d := in.Desired; {
	case d == nil && !in.Current && in.Host == HostAbsent:
		return nil
	case d == nil && !in.Current:
		return []MemberOperation{Report{Phase: api.MemberUnknown, Message: "found by its node's agent, which has just started"}}
	case d == nil:
		return in.planRemoval(0, false)
	case d.Release:
		return in.planRemoval(d.Grace, true)
	case d.Generation < in.NewestGeneration:
		return []MemberOperation{Reject{Reason: fmt.Sprintf("generation %d, the newest is %d", d.Generation, in.NewestGeneration)}}
	default:
		return in.planPresence()
	}
}

// planRemoval stops, cleans, and says so when asked to. It is never given up: the leader quarantines what takes too long.
func (in MemberInput) planRemoval(grace time.Duration, asked bool) []MemberOperation {
	if in.Host == HostAbsent && (in.Cleaned || !asked) {
		if asked {
			return []MemberOperation{ReportClean{}}
		}
		return nil
	}
	report := Report{Phase: api.MemberReleasing, Message: in.Attempts.LastError}
	switch {
	case in.waiting():
		return []MemberOperation{report, WakeAt{Time: in.Attempts.NextTry}}
	case in.Host == HostRunning:
		return []MemberOperation{report, Stop{Grace: grace}}
	default:
		return []MemberOperation{report, Clean{}}
	}
}

// planPresence starts, keeps up to date, and starts again what ended.
func (in MemberInput) planPresence() []MemberOperation {
	switch {
	case in.Host == HostRunning:
		return in.planRunning()
	case in.Attempts.Count >= MaxAttempts && !in.forgotten():
		return []MemberOperation{Report{Phase: api.MemberFailed, Message: in.Attempts.LastError}}
	case in.Host == HostExited && in.waiting():
		// Its end has been counted already; what is left of it could not be cleaned.
		return []MemberOperation{in.preparing(in.Attempts.LastError), WakeAt{Time: in.Attempts.NextTry}}
	case in.Host == HostExited && in.Attempts.Count+1 >= MaxAttempts && !in.forgotten():
		// What is left of it stays, for its user to look at.
		return []MemberOperation{CountFailure{Message: in.ended()}, Report{Phase: api.MemberFailed, Message: in.ended()}}
	case in.Host == HostExited:
		return []MemberOperation{CountFailure{Message: in.ended()}, in.preparing(in.ended()), Clean{}}
	case in.waiting():
		return []MemberOperation{in.preparing(in.Attempts.LastError), WakeAt{Time: in.Attempts.NextTry}}
	case in.Host == HostPrepared:
		return []MemberOperation{in.preparing(in.Attempts.LastError), Clean{}}
	default:
		return []MemberOperation{in.preparing(in.Attempts.LastError), Start{}}
	}
}

func (in MemberInput) planRunning() []MemberOperation {
	report := Report{Phase: api.MemberStarting}
	settled := in.RecoveredAt.Add(recoveryGrace)
	switch {
	case in.Ready:
		report.Phase = api.MemberReady
	case !in.RecoveredAt.IsZero() && in.Now.Before(settled):
		report = Report{Phase: api.MemberUnknown, Message: "runs; its node's agent has just started and has not heard from it yet"}
		return []MemberOperation{report, WakeAt{Time: settled}}
	}
	switch {
	case in.Stale && in.waiting():
		report.Message = in.Attempts.LastError
		return []MemberOperation{report, WakeAt{Time: in.Attempts.NextTry}}
	case in.Stale:
		return []MemberOperation{report, Update{}}
	default:
		return []MemberOperation{report}
	}
}

func (in MemberInput) waiting() bool { return in.Now.Before(in.Attempts.NextTry) }

func (in MemberInput) forgotten() bool { return in.Now.Sub(in.Attempts.FailedAt) >= forgetAfter }

func (in MemberInput) ended() string {
	if in.HostMessage == "" {
		return "ended"
	}
	return in.HostMessage
}

// preparing is the report of a member that is being made, after what went wrong before.
func (in MemberInput) preparing(last string) Report {
	if last == "" {
		return Report{Phase: api.MemberPreparing}
	}
	return Report{Phase: api.MemberPreparing, Message: fmt.Sprintf("%s; trying again", last)}
}
