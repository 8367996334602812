package lifecycle

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Operation is one step the controller is to take. The set is closed: the types below.
type Operation interface{ operation() }

// Place asks for a decision: admission and placement. What they say goes to PlanPlaced or PlanRefused.
type Place struct{}

// SetPhase gives the record another phase, or only another message when To is the phase it has. ChangedAt changes with the phase.
type SetPhase struct {
	To      api.ClusterPhase
	Message string
}

// Release turns these chunks, all that are not releasing yet, to releasing, in the commit of the SetPhase beside it.
type Release struct{ Chunks []string }

// ConfirmClean adds assignments to the record's clean list: their resources are free from that commit.
type ConfirmClean struct{ IDs []string }

// Quarantine moves an assignment that can't be cleaned from the cluster to quarantine, in one commit: it joins the record's clean
// list and the quarantines, and stays taken.
type Quarantine struct{ ID, Reason string }

// EndQuarantine frees what a quarantined assignment holds: its executor has confirmed it clean after all.
type EndQuarantine struct{ ID string }

// Forget removes intent, record and chunks: nothing of the cluster is held any more.
type Forget struct{}

// SetNodePhase changes what the leader holds a node to be.
type SetNodePhase struct {
	To      api.NodePhase
	Message string
}

// Emit records an event. Member and Node are empty when it is about neither.
type Emit struct{ Reason, Message, Member, Node string }

// WakeAt asks to be planned again at a time, even if nothing changes until then.
type WakeAt struct{ Time time.Time }

func (Place) operation()         {}
func (SetPhase) operation()      {}
func (Release) operation()       {}
func (ConfirmClean) operation()  {}
func (Quarantine) operation()    {}
func (EndQuarantine) operation() {}
func (Forget) operation()        {}
func (SetNodePhase) operation()  {}
func (Emit) operation()          {}
func (WakeAt) operation()        {}

// The reasons of events: fixed words for programs.
const (
	EventPlaced         = "Placed"
	EventRefused        = "Refused"
	EventReady          = "Ready"
	EventDegraded       = "Degraded"
	EventFailed         = "Failed"
	EventDeleting       = "Deleting"
	EventDeleted        = "Deleted"
	EventQuarantined    = "Quarantined"
	EventQuarantineOver = "QuarantineEnded"
	EventNodeReady      = "NodeReady"
	EventNodeUnknown    = "NodeUnknown"
	EventNodeDown       = "NodeDown"
)

// MemberOperation is one step a node's agent is to take for one member. At most one of Start, Update, Stop and Clean is in a
// list. The set is closed: the types below.
type MemberOperation interface{ memberOperation() }

// Start calls the driver's Start; an error is counted with Attempts.Fail.
type Start struct{}

// Update calls the driver's Update; an error is counted with Attempts.Fail.
type Update struct{}

// Stop calls the driver's Stop with this grace; an error is counted with Attempts.Fail.
type Stop struct{ Grace time.Duration }

// Clean calls the driver's Clean; an error is counted with Attempts.Fail.
type Clean struct{}

// CountFailure counts the end of a member with Attempts.Fail, before the driver's call that may follow.
type CountFailure struct{ Message string }

// Report tells the leader the member's phase.
type Report struct {
	Phase   api.MemberPhase
	Message string
}

// ReportClean tells the leader that nothing of the member is left, verified by looking.
type ReportClean struct{}

// Reject tells that the desired member is not obeyed, for the agent's log.
type Reject struct{ Reason string }

func (Start) memberOperation()        {}
func (Update) memberOperation()       {}
func (Stop) memberOperation()         {}
func (Clean) memberOperation()        {}
func (CountFailure) memberOperation() {}
func (Report) memberOperation()       {}
func (ReportClean) memberOperation()  {}
func (Reject) memberOperation()       {}
func (WakeAt) memberOperation()       {}
