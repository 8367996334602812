package lifecycle

import (
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// ClusterOperation is one step the controller is to take for a cluster; decision.Apply carries it out. The set is closed: the types below
// that have the method, which ClusterOperations lists.
type ClusterOperation interface{ clusterOperation() }

// QuarantineOperation is one step the controller is to take for a quarantined assignment; decision.ApplyQuarantine carries it out. The set is
// closed: the types below that have the method, which QuarantineOperations lists.
type QuarantineOperation interface{ quarantineOperation() }

// UnhandledOperation is the error of a handler that received an operation it does not know. Planner and handler are parts of one program,
// so this is a mistake in it. A handler stops there: a plan without one of its steps is another plan.
type UnhandledOperation struct {
	// Handler names what received the operation.
	Handler   string
	Operation any
}

func (e *UnhandledOperation) Error() string {
	return fmt.Sprintf("%s does not handle operation %T: this is a bug; report it with the version of this program", e.Handler, e.Operation)
}

// SetPhase gives the record another phase, or only another message when To is the phase it has. ChangedAt changes with the phase.
type SetPhase struct {
	To      api.ClusterPhase
	Message string
}

// NeedKind says why members need a place.
type NeedKind string

// The kinds of needs.
const (
	NeedCreate NeedKind = "create" // all members of a new cluster, together or not at all
	NeedScale  NeedKind = "scale"  // the new members of a cluster that grows, together or not at all
	NeedHeal   NeedKind = "heal"   // one member in the place of a lost one
	NeedSpare  NeedKind = "spare"  // one place held for a replacement
	// NeedRestore is for all saved members of a cluster, together or not at all: each on the node that it was saved on, or where that can't
	// have it, on another one.
	NeedRestore NeedKind = "restore"
	NeedMove    NeedKind = "move"   // one member on another node than its own
	NeedResize  NeedKind = "resize" // what one member needs beside what it holds, on its node
)

// Need asks admission and placement for a place for members. It changes nothing by itself: what they say goes to PlanPlaced or
// PlanRefused.
type Need struct {
	Kind    NeedKind
	Members []WantedMember
}

// WantedMember is a member that should have an assignment and has none.
type WantedMember struct {
	Group, Member string
	// Rank is NoRank for a spare.
	Rank int
	// Replaces is the lost assignment; Attempt that of the replacement; Avoid the node it was lost on, where another would do.
	Replaces, Avoid string
	Attempt         int
	Spare           bool
	// Regains: the lost assignment was saved and held no cores, so the replacement counts against the quota again.
	Regains bool
	// Held is what the lost assignment held of its node; nil: what a member of its group holds.
	Held *api.Shape
	// Resizes is the assignment that is to have another size on its node, On.
	Resizes string
	// From is the assignment that goes on here. On is the node where it is saved, or which it is to move to. Elsewhere: another node will do, too.
	From, On  string
	Elsewhere bool
	// Leaves is the node that a member moves off, while it runs if Live. AskedAt names the request. Patient: it waits for room.
	Leaves  string
	Live    bool
	AskedAt time.Time
	Patient bool
}

// Hold makes assignments true. Networks and UserIDs are set with the first ones of a cluster. Spares are IDs of spare assignments whose room the new
// ones take over in the same commit: nothing was ever carried out for a spare, so there is nothing to clean.
type Hold struct {
	Assignments []api.Assignment
	Networks    []api.Network
	Joined      []api.NetworkRef
	UserIDs     api.IDRange
	Spares      []string
}

// Release turns these held assignments to releasing, the parts of members with them. Lost ones are noted in the record, with their names and ranks, for replacement;
// a spare is simply dropped, since nothing was carried out for it.
type Release struct {
	IDs    []string
	Lost   bool
	Reason string
}

// Shelve cuts saved members down: they hold neither cores nor memory from that commit on.
type Shelve struct{ IDs []string }

// KeepFiles notes the files of members whose machines go off; none: they are not needed any more.
type KeepFiles struct{ Files []api.MemberFiles }

// TakeOver makes the successors with these IDs the members that they succeed, which are released.
type TakeOver struct{ IDs []string }

// Withdraw releases successors that did not take over; the members stay what they are.
type Withdraw struct{ IDs []string }

// MoveEnd notes how the move of a member ended that was asked for at a time. Assignment is what the member has; To where it went, or was to go,
// and Failed why it did not.
type MoveEnd struct {
	Assignment string
	AskedAt    time.Time
	To, Failed string
}

// MoveReported notes what a move took, by the assignment that the member had before.
type MoveReported struct {
	Assignment string
	Report     api.MoveReport
}

// Resize decides the size that a member is to have, and claims it: from that commit on the member holds Hold, which is what either size takes.
type Resize struct {
	Assignment string
	Hold, To   api.Size
}

// Resized ends the resizes of members that have their new size: from that commit on they hold that alone.
type Resized struct{ IDs []string }

// ClaimVolumes gives a member the claims on volumes that it is to have, those included that it is to let go of.
type ClaimVolumes struct {
	Assignment string
	Volumes    []api.VolumeClaim
}

// VolumesClaimed ends the changes of a member's volumes up to a number, which its node reports.
type VolumesClaimed struct {
	Assignment string
	Number     int64
}

// NoteDetached notes the requested detaches of which nothing is left.
type NoteDetached struct{ Detached []api.VolumeDetach }

// NoteLayers notes that all members have the layers of a number (api.ClusterIntent.LayersNumber), and no others.
type NoteLayers struct{ Number int64 }

// HoldSnapshot makes an assignment on each member's node that is to keep the member's state in a snapshot.
type HoldSnapshot struct{ Snapshot api.SnapshotIntent }

// NoteSnapshot notes how a request for a snapshot ended. Bytes are the sizes of the states of a complete snapshot, by the ID of their assignment.
type NoteSnapshot struct {
	Snapshot api.SnapshotIntent
	Bytes    map[string]int64
	Failed   string
}

// ForgetSnapshots drops the notes of snapshots that are no longer wanted.
type ForgetSnapshots struct{ Names []string }

// RestoreSnapshot releases all members, and makes saved members in their place that begin with their states in a snapshot.
type RestoreSnapshot struct{ Snapshot api.SnapshotIntent }

// RefuseSnapshotRestore notes why a snapshot was not restored.
type RefuseSnapshotRestore struct {
	Snapshot api.SnapshotIntent
	Reason   string
}

// GiveUp notes that the save or the restore that was asked for last failed, and why.
type GiveUp struct{ Reason string }

// Drop takes members off the record's list of lost ones: nobody wants them any more.
type Drop struct{ Members []string }

// Warn notes that the end of the time limit was warned of.
type Warn struct{ For time.Time }

// Expire notes that the time limit has passed: jobs are asked to end, and grace begins.
type Expire struct{}

// ConfirmClean adds assignments to the record's clean list: their resources are free from that commit.
type ConfirmClean struct{ IDs []string }

// NoteProofs stores proofs of releasing assignments that others must prove clean, too.
type NoteProofs struct{ Proofs []api.Proof }

// Quarantine moves an assignment that can't be cleaned from the cluster to quarantine, in one commit: it joins the record's clean
// list and the quarantines, and stays taken.
type Quarantine struct{ ID, Reason string }

// EndQuarantine frees what a quarantined assignment holds: its executor has confirmed it clean after all.
type EndQuarantine struct{ ID string }

// Forget removes intent, record and chunks: nothing of the cluster is held any more.
type Forget struct{}

// Emit records an event. Member and Node are empty when it is about neither.
type Emit struct{ Reason, Message, Member, Node string }

// WakeAt asks to be planned again at a time, even if nothing changes until then.
type WakeAt struct{ Time time.Time }

func (SetPhase) clusterOperation()              {}
func (Need) clusterOperation()                  {}
func (Hold) clusterOperation()                  {}
func (Drop) clusterOperation()                  {}
func (Shelve) clusterOperation()                {}
func (KeepFiles) clusterOperation()             {}
func (TakeOver) clusterOperation()              {}
func (Withdraw) clusterOperation()              {}
func (MoveEnd) clusterOperation()               {}
func (MoveReported) clusterOperation()          {}
func (Resize) clusterOperation()                {}
func (Resized) clusterOperation()               {}
func (ClaimVolumes) clusterOperation()          {}
func (VolumesClaimed) clusterOperation()        {}
func (NoteDetached) clusterOperation()          {}
func (NoteLayers) clusterOperation()            {}
func (GiveUp) clusterOperation()                {}
func (Warn) clusterOperation()                  {}
func (Expire) clusterOperation()                {}
func (Release) clusterOperation()               {}
func (ConfirmClean) clusterOperation()          {}
func (NoteProofs) clusterOperation()            {}
func (Quarantine) clusterOperation()            {}
func (Forget) clusterOperation()                {}
func (Emit) clusterOperation()                  {}
func (WakeAt) clusterOperation()                {}
func (HoldSnapshot) clusterOperation()          {}
func (NoteSnapshot) clusterOperation()          {}
func (ForgetSnapshots) clusterOperation()       {}
func (RestoreSnapshot) clusterOperation()       {}
func (RefuseSnapshotRestore) clusterOperation() {}

func (EndQuarantine) quarantineOperation() {}
func (Emit) quarantineOperation()          {}

// The reasons of events: fixed words for programs.
const (
	EventPlaced         = "Placed"
	EventQueued         = "Queued"
	EventRefused        = "Refused"
	EventMemberLost     = "MemberLost"
	EventMemberReplaced = "MemberReplaced"

	EventGPUServerLost   = "GPUServerLost"
	EventGPUServerPlaced = "GPUServerPlaced"
	EventGPUServerMoved  = "GPUServerMoved"

	EventScaling        = "Scaling"
	EventReleased       = "Released"
	EventPausing        = "Pausing"
	EventPaused         = "Paused"
	EventResuming       = "Resuming"
	EventSaving         = "Saving"
	EventSaved          = "Saved"
	EventSaveFailed     = "SaveFailed"
	EventRestoring      = "Restoring"
	EventRestored       = "Restored"
	EventRestoreFailed  = "RestoreFailed"
	EventSnapshotBegun  = "SnapshotBegun"
	EventSnapshotMade   = "SnapshotMade"
	EventSnapshotFailed = "SnapshotFailed"
	EventMoving         = "Moving"
	EventMemberMoved    = "MemberMoved"
	EventMoveFailed     = "MoveFailed"
	EventResizing       = "Resizing"
	EventResized        = "Resized"

	EventVolumesChanging = "VolumesChanging"
	EventVolumesChanged  = "VolumesChanged"
	EventVolumeDetached  = "VolumeDetached"
	EventLayersChanged   = "LayersChanged"
	EventExpiring        = "Expiring"
	EventExpired         = "Expired"
	EventReady           = "Ready"
	EventDegraded        = "Degraded"
	EventFailed          = "Failed"
	EventDeleting        = "Deleting"
	EventDeleted         = "Deleted"
	EventQuarantined     = "Quarantined"
	EventQuarantineOver  = "QuarantineEnded"
	EventJobTold         = "JobTold"
	EventJobRequeued     = "JobRequeued"
	EventJobLost         = "JobLost"
)

// MemberOperation is one step a node's agent is to take for one member. At most one of Start, Update, Stop,
// Pause, Resume, Save, Restore, TakeSnapshot, VerifySnapshot, LayDown, TakeBack, Reboot, ChangeSize, ChangeVolumes, ChangeLimits, ChangeCondition and Clean is in a list. The set is closed: the types below that have the method, which MemberOperations lists.
type MemberOperation interface{ memberOperation() }

// Start calls the driver's Start; an error is counted with Attempts.Fail.
type Start struct{}

// Update calls the driver's Update; an error is counted with Attempts.Fail.
type Update struct{}

// Stop calls the driver's Stop with this grace; an error is counted with Attempts.Fail.
type Stop struct{ Grace time.Duration }

// Pause calls that of the driver (driver.Pauser); an error is counted with Attempts.Fail.
type Pause struct{}

// Resume calls that of the driver; an error is counted with Attempts.Fail.
type Resume struct{}

// Save calls that of the driver (driver.Saver); an error is counted with Attempts.Fail.
type Save struct{}

// Restore calls that of the driver, so that the member goes on here; an error is counted with Attempts.Fail.
type Restore struct{}

// TakeSnapshot calls that of the driver (driver.Snapshotter). A failure is final.
type TakeSnapshot struct{}

// VerifySnapshot calls that of the driver (driver.Snapshotter), and reports the result under the name of the request.
type VerifySnapshot struct{}

// LayDown calls that of the driver (driver.Snapshotter), so that a member is saved with its state in a snapshot; an error is counted with Attempts.Fail.
type LayDown struct{}

// TakeBack calls that of the driver (driver.Mover); an error is counted with Attempts.Fail.
type TakeBack struct{}

// Reboot calls that of the driver (driver.Rebooter) with this grace; an error is counted with Attempts.Fail.
type Reboot struct{ Grace time.Duration }

// ChangeSize calls that of the driver (driver.Resizer), which gives a running member its new size, as far as it can take it without a reboot; an
// error is counted with Attempts.Fail.
type ChangeSize struct{}

// ChangeVolumes calls that of the driver (driver.Mounter), which mounts the volumes that a member is to have, and unmounts those that it is to let go of.
type ChangeVolumes struct{}

// ChangeLimits calls that of the driver (driver.IOLimiter), which holds a member to limits of I/O with its volumes.
type ChangeLimits struct{}

// ChangeCondition calls that of the driver (driver.Conditioner), which gives what a member sends a condition, or takes it away.
type ChangeCondition struct{}

// Clean calls the driver's Clean; an error is counted with Attempts.Fail.
type Clean struct{}

// Report reports the member's phase to the leader.
type Report struct {
	Phase   api.MemberPhase
	Message string
	// Failure is why what is asked of the member beyond its life (to be saved) failed; empty while it may yet succeed.
	Failure string
}

// ReportClean reports to the leader that nothing of the member is left, verified by looking.
type ReportClean struct{}

// Reject reports that the desired member is not obeyed, for the agent's log.
type Reject struct{ Reason string }

func (Start) memberOperation()           {}
func (Update) memberOperation()          {}
func (Stop) memberOperation()            {}
func (Pause) memberOperation()           {}
func (Resume) memberOperation()          {}
func (Save) memberOperation()            {}
func (Restore) memberOperation()         {}
func (TakeBack) memberOperation()        {}
func (Reboot) memberOperation()          {}
func (ChangeSize) memberOperation()      {}
func (ChangeVolumes) memberOperation()   {}
func (ChangeLimits) memberOperation()    {}
func (ChangeCondition) memberOperation() {}
func (Clean) memberOperation()           {}
func (Report) memberOperation()          {}
func (ReportClean) memberOperation()     {}
func (Reject) memberOperation()          {}
func (WakeAt) memberOperation()          {}
func (TakeSnapshot) memberOperation()    {}
func (VerifySnapshot) memberOperation()  {}
func (LayDown) memberOperation()         {}
