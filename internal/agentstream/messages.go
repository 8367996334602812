// Package agentstream is the bidirectional stream between a server and a node agent: changes down, observations up.
//
// Messages are JSON lines over one HTTP/2 request (POST /agent/v5/stream, RFC 9113), each with exactly one field set. Both sides are
// level-triggered: Desired is the whole desired state of the node, and Observed is the whole observed state. On the wire a state is sent
// in pieces of bounded size. A new stream begins with all pieces; later messages carry only the changed pieces. A receiver sees whole
// states only. The package must never decide anything. Start with Send and Receive in conn.go. The code in pieces.go takes states apart
// and puts them together.
package agentstream

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/changedfiles/choice"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// Down is a message from the server to the agent.
type Down struct {
	// Desired is sent and received in pieces.
	Desired *Desired `json:"-"`
	Piece   *piece   `json:"desired,omitempty"`
	LogAck  *LogAck  `json:"log_ack,omitempty"`
	// Ping is sent every second; the agent answers with the number of the last one it saw.
	Ping *Ping `json:"ping,omitempty"`
	// Tunnel asks the agent to connect a tunnel to a member (POST /agent/v1/tunnel/ID).
	Tunnel *Tunnel `json:"tunnel,omitempty"`
	// CountHome asks for what a cluster's shared home holds.
	CountHome *CountHome `json:"count_home,omitempty"`
	// CheckHost asks what the node's host lacks now.
	CheckHost *CheckHost `json:"check_host,omitempty"`
	// CheckNetwork asks whether a network is in force on the node, and hears its peers.
	CheckNetwork *CheckNetwork `json:"check_network,omitempty"`
	// Measure asks what is measured of GPUs that the node hands out.
	Measure *Measure `json:"measure,omitempty"`
	// Refused tells the agent why the server does not take it; the stream ends.
	Refused string `json:"refused,omitempty"`
}

// Up is a message from the agent to the server.
type Up struct {
	Hello *Hello `json:"hello,omitempty"`
	// Observed is sent and received in pieces.
	Observed  *Observed  `json:"-"`
	Piece     *piece     `json:"observed,omitempty"`
	Heartbeat *Heartbeat `json:"heartbeat,omitempty"`
	Log       *Log       `json:"log,omitempty"`
	// HomeCounted answers CountHome.
	HomeCounted *HomeCounted `json:"home_counted,omitempty"`
	// HostChecked answers CheckHost.
	HostChecked *HostChecked `json:"host_checked,omitempty"`
	// NetworkChecked answers CheckNetwork.
	NetworkChecked *NetworkChecked `json:"network_checked,omitempty"`
	// Measured answers Measure.
	Measured *Measured `json:"measured,omitempty"`
	Spans    []Span    `json:"spans,omitempty"`
	// Counts are the counters of ports.
	Counts *PortCounts `json:"counts,omitempty"`
	// Uses are what the members on the node have used, by assignment ID.
	Uses map[string]api.MemberUse `json:"uses,omitempty"`
	// Energy is what the node consumed, with its CPU time.
	Energy *api.EnergySample `json:"energy,omitempty"`
	// Faults are the errors that the node's hardware has counted.
	Faults *api.HardwareFaults `json:"faults,omitempty"`
}

// MaxSpans is how many spans one message has, at most.
const MaxSpans = 1024

// Span is a completed stage in the life of a member on the node. Each span is sent at most once. It carries ages instead of times, because
// clocks differ.
type Span struct {
	// ID and Parent are OpenTelemetry span identifiers, 16 hexadecimal digits.
	ID           string `json:"id"`
	Parent       string `json:"parent"`
	AssignmentID string `json:"assignment_id"`
	Name         string `json:"name"`
	// Seconds is how long it took, AgoSeconds how long ago it ended.
	Seconds    float64 `json:"seconds"`
	AgoSeconds float64 `json:"ago_seconds"`
	Failure    string  `json:"failure,omitempty"`
}

// Hello is the first message of a stream: who the agent is and what its node offers.
type Hello struct {
	// Run is made at each start of an agent: two that run at once with one identity differ in it.
	Run  string         `json:"run"`
	Node api.NodeRecord `json:"node"`
	// Term is the highest leader term the agent has obeyed; a server of a lower term is refused.
	Term int64 `json:"term"`
}

// Ping asks whether the agent hears the server: an agent whose words arrive but who hears nothing is not alive.
type Ping struct {
	Seq int64 `json:"seq"`
}

// Tunnel asks for a connection to a part of a member, to be spliced with the request that the agent makes for it.
type Tunnel struct {
	// ID names the tunnel; it is random, and good for one request.
	ID       string `json:"id"`
	MemberID string `json:"member_id"`
	Target   Target `json:"target"`
	// Port is that of TargetPort, Console what is asked of TargetConsole.
	Port    int                 `json:"port,omitempty"`
	Console *api.ConsoleRequest `json:"console,omitempty"`
	// Successor is the assignment that goes on from TargetState or TargetMove.
	Successor string `json:"successor,omitempty"`
	// FilesFor is what the files of TargetFiles are for.
	FilesFor choice.Use `json:"files_for,omitempty"`
	// Volume is that of TargetVolume and TargetContent, which are about no member.
	Volume *VolumeCopy `json:"volume,omitempty"`
}

// VolumeCopy names what a backup is made of, or the volume that is made of one.
type VolumeCopy struct {
	UID string `json:"uid"`
	// Snapshot is the UID of one of the volume's snapshots, or "" for what it holds now.
	Snapshot string `json:"snapshot,omitempty"`
}

// Target is what of a member a tunnel leads to.
type Target string

// The targets of tunnels.
const (
	TargetPort    Target = "port"    // a TCP port
	TargetConsole Target = "console" // the serial console
	TargetDisplay Target = "display" // the display
	TargetState   Target = "state"   // what it left on disk when it was saved (driver.Saver.Export)
	TargetMove    Target = "move"    // the running member itself (driver.Mover.Send)
	TargetVolume  Target = "volume"  // an archive of a volume (volume.Exporter)
	TargetContent Target = "content" // a volume that is made of the archive that comes (volume.Importer)
	TargetFiles   Target = "files"   // an archive of the files that it changed in its root (driver.FileSaver)
)

// CountHome asks for what the shared home of a member's cluster holds. Counting costs time, so it is done on request only.
type CountHome struct {
	// ID names the question on this stream.
	ID       int64  `json:"id"`
	MemberID string `json:"member_id"`
}

// Answer is common to all answers to a question of the server.
type Answer struct {
	// ID is the question's.
	ID int64 `json:"id"`
	// Failure is the reason why the agent has no answer. It is empty on success.
	Failure string `json:"failure,omitempty"`
}

// AnswerTo returns the answer to question id, which failed if err is not nil.
func AnswerTo(id int64, err error) Answer {
	if err != nil {
		return Answer{id, err.Error()}
	}
	return Answer{ID: id}
}

// Common returns the part that all answers have.
func (a Answer) Common() Answer { return a }

// HomeCounted is the answer to a CountHome.
type HomeCounted struct {
	Answer
	Usage api.HomeUsage `json:"usage"`
}

// CheckHost asks the agent to check its host.
type CheckHost struct {
	// ID names the question on this stream.
	ID int64 `json:"id"`
}

// MaxFindings is how many findings an answer has, at most.
const MaxFindings = 1024

// HostChecked is the answer to a CheckHost.
type HostChecked struct {
	Answer
	Findings []api.HostFinding `json:"findings,omitempty"`
}

// Heartbeat is the answer to a ping: nothing else that an agent says tells that it hears the server.
type Heartbeat struct {
	Time time.Time `json:"time"`
	// Ping is the number of the last ping seen on this stream, 0 for none.
	Ping int64 `json:"ping,omitempty"`
}

// Desired is everything that should be on the node, as decided by the leader of Term.
type Desired struct {
	Term int64
	// Revision is the state revision this was computed from; it grows within a term.
	Revision int64
	// Peers are the peers of networks, Groups the security groups of their ports, and Files the files that all members of a cluster have: each
	// is rendered once for many nodes. An agent never sees them: they are in its Networks and Members.
	Peers    []NodePeers
	Groups   []*Share
	Files    []*Share
	Networks []fabric.Network
	Members  []Member
	// Jobs of the members on this node that are rank 0 of their cluster.
	Jobs []Job
	// Images are those the node should hold: members here need them. What is not named may be dropped when room is needed.
	Images []Image
	// ImageKey is the site's public key (Ed25519), by which the signatures of Images are verified; without it none is taken.
	ImageKey []byte
	// Builds are those the node should carry out; one that is no longer named is ended.
	Builds []api.Build
	// Volumes are those that lie on the node. One that is no longer named stays as it is, without attachments.
	Volumes []volume.Volume
	// Sharings are how volumes cross from and to the node, by cluster. One that is no longer named ends once no member needs it.
	Sharings []volume.Sharing
	// Datasets are what the node is to do about datasets. A replica of one that is not named stays until room is needed.
	Datasets []dataset.Wanted
	// Caches are the datasets that members on the node read through its cache. One that is no longer named stays on the disk until room is needed.
	Caches []dataset.CacheOrder
	// Probes are sources of datasets whose distance the node should measure.
	Probes []string
	// PowerOff asks the node to power itself off, once nothing of its members runs.
	PowerOff *PowerOff
}

// Runs returns the names of the outputs that the node should send: of its jobs and of its builds.
func (d *Desired) Runs() map[string]bool {
	runs := make(map[string]bool, len(d.Jobs)+len(d.Builds))
	for i := range d.Jobs {
		runs[d.Jobs[i].RunID()] = true
	}
	for i := range d.Builds {
		runs[d.Builds[i].RunID()] = true
	}
	return runs
}

// Image is an image that a node should hold.
type Image struct {
	Digest image.Digest `json:"digest"`
	// Signature is the site's, of the manifest.
	Signature []byte `json:"signature"`
	// Peers are URLs of other nodes that hold it, below which blobs are by their digits; empty while few fetch it. The server has it always.
	Peers []string `json:"peers,omitempty"`
}

// PowerOff is an in-band order to power off. An agent of another boot generation does not obey it.
type PowerOff struct {
	BootGeneration int64 `json:"boot_generation"`
	// WithMembers: members that run end with the power, as their cluster is paused. Without it, their end is waited for.
	WithMembers bool `json:"with_members,omitempty"`
}

// Member is a member that should be, or should no longer be, on the node.
type Member struct {
	driver.Member
	// Release asks to stop and clean the member instead; the agent then reports it clean.
	Release bool `json:"release,omitempty"`
	// ReleaseHome means that the whole cluster is being deleted: its shared home goes with its members.
	ReleaseHome bool `json:"release_home,omitempty"`
	// PrivateHome means that the cluster has no home that its members share: each has a directory of its own that ends with it.
	PrivateHome bool `json:"private_home,omitempty"`
	// Paused asks for the member to be frozen.
	Paused bool `json:"paused,omitempty"`
	// Save asks for the member to be on the node's disk with its memory.
	Save bool `json:"save,omitempty"`
	// FromNode is the node of the member that a successor goes on from (Assignment.From), where that is another one; empty: this node. Live tells
	// that it runs there, and is to be moved; else its state is fetched.
	FromNode string `json:"from_node,omitempty"`
	Live     bool   `json:"live,omitempty"`
	// Move asks for the running member to be handed to its successor on another node. It stays set until the successor has taken over, or is
	// clean.
	Move *Move `json:"move,omitempty"`
	// TakeBack asks for a member that was handed over to go on here: it runs nowhere else, and never will.
	TakeBack bool `json:"take_back,omitempty"`
	// HardReboot resets the member where its boot is not the one requested (driver.Member.Boot), without asking its system to shut down.
	HardReboot bool `json:"hard_reboot,omitempty"`
	// Verify names a verification of the state that the assignment keeps for a snapshot; empty: none is requested.
	Verify string `json:"verify,omitempty"`
	// FilesDigest names the content of Files, with those of the share once that is in; the agent reports the digest of what the member has.
	FilesDigest string `json:"files_digest,omitempty"`
	// Checks are the group's own health checks, defaults filled in.
	Checks []api.Check `json:"checks,omitempty"`
	// Layers are those that the member has beside its root (driver.Member.LayersNumber).
	Layers []api.Layer `json:"layers,omitempty"`
	// ConditionNumber counts the changes of the member's condition (driver.Member.Condition); 0: it never had one.
	ConditionNumber int64 `json:"condition_number,omitempty"`
	// Datasets are those that the member reads.
	Datasets []dataset.Claim `json:"datasets,omitempty"`
	// GraceSeconds is how long a released member is asked politely before it is ended by force.
	GraceSeconds float64 `json:"grace_seconds,omitempty"`
}

// Move is how a member is handed to its successor while it runs.
type Move struct {
	// To is the successor's assignment ID.
	To     string            `json:"to"`
	Limits driver.MoveLimits `json:"limits,omitzero"`
}

// Job is a job to be supervised in a member of this node.
type Job struct {
	api.Job
	// MemberID is the assignment ID of rank 0's member.
	MemberID string `json:"member_id"`
}

// Observed is everything of this product found on the node.
type Observed struct {
	Term    int64
	Members []MemberObserved
	// Clean are IDs of released assignments of which nothing is left, verified by looking.
	Clean  []string
	Jobs   []JobObserved
	Drift  []string
	Images []ImageObserved
	Builds []BuildObserved
	// Volumes are those found on the node. PurgedVolumes are UIDs of volumes that should be removed and of which nothing is left, verified by looking.
	Volumes       []volume.State
	PurgedVolumes []string
	// Sharings are what was found of volumes that cross from and to the node.
	Sharings []volume.SharingState
	// Datasets are those that the node was told of, or has.
	Datasets []dataset.State
	// Caches are the datasets that the node reads, or has read, through its cache.
	Caches []dataset.CacheState
	// CacheRoom are the bounds of its caches; nil: it keeps none.
	CacheRoom *dataset.CacheRoom
	// DataPaths are what the node has seen last of the ways of data to it.
	DataPaths []dataset.Passage
	// PeerURL is where this node serves the images and datasets it holds to other nodes; empty when it does not.
	PeerURL string
	// PowerOffProblem is why the node can't obey an order to power off.
	PowerOffProblem string
}

// ImageObserved is an image on a node, whole or being fetched.
type ImageObserved struct {
	Digest image.Digest `json:"digest"`
	// Whole: everything of it is there, verified.
	Whole      bool   `json:"whole"`
	HeldBytes  int64  `json:"held_bytes"`
	TotalBytes int64  `json:"total_bytes"`
	Message    string `json:"message,omitempty"`
}

// BuildObserved is a build on a node.
type BuildObserved struct {
	ID      string         `json:"id"`
	Attempt int            `json:"attempt"`
	Phase   api.BuildPhase `json:"phase"`
	Step    string         `json:"step,omitempty"`
	Percent int            `json:"percent"`
	Message string         `json:"message,omitempty"`
	// Manifest is that of the image, stored on the server before this is said.
	Manifest  image.Digest `json:"manifest,omitempty"`
	StartedAt *time.Time   `json:"started_at,omitempty"`
	EndedAt   *time.Time   `json:"ended_at,omitempty"`
	// LogBytes is how much it has printed; the output itself goes as Log with JobID "build."+ID+"."+Attempt.
	LogBytes int64 `json:"log_bytes"`
}

// MemberObserved is a member as the agent sees it.
type MemberObserved struct {
	ID         string `json:"id"`
	Generation int64  `json:"generation"`
	// Phase is one that MayReport allows.
	Phase   api.MemberPhase `json:"phase"`
	Message string          `json:"message,omitempty"`
	// FilesDigest names the generated files it has: empty while that is not known.
	FilesDigest string `json:"files_digest,omitempty"`
	// Failure is why what is asked of it beyond its life, such as Save, failed; empty while it may yet succeed.
	Failure string `json:"failure,omitempty"`
	// StateBytes is the size of the member's state on disk. Verified names the verification of a snapshot's state that Failure is of
	// (Member.Verify).
	StateBytes int64  `json:"state_bytes,omitempty"`
	Verified   string `json:"verified,omitempty"`
	// Boot names the boot that the member runs (driver.Member.Boot); empty for its first.
	Boot string `json:"boot,omitempty"`
	// Size is the number of the size that the member has (api.Size.Number). Unsized says why a running member does not have the size of its
	// assignment; empty while that is not known.
	Size    int64  `json:"size,omitempty"`
	Unsized string `json:"unsized,omitempty"`
	// Volumes is the number of the volumes that the member has (api.Assignment.VolumesNumber). Unmounted says why it does not have those of its
	// assignment, or the layers of its cluster. Layers is the number of the layers that it has (driver.Member.LayersNumber).
	Volumes   int64  `json:"volumes,omitempty"`
	Layers    int64  `json:"layers,omitempty"`
	Unmounted string `json:"unmounted,omitempty"`
	// Condition is the number of the condition that is in force for what the member sends (Member.ConditionNumber); 0: none is known to be.
	// Unconditioned says why it is not that of its cluster.
	Condition     int64  `json:"condition,omitempty"`
	Unconditioned string `json:"unconditioned,omitempty"`
	// HandedOver: the member was sent to its successor, and stands still here, since whether that runs is unknown.
	HandedOver bool `json:"handed_over,omitempty"`
	// Arriving is how much of a successor has come from another node so far; nil before and afterwards.
	Arriving *Arriving `json:"arriving,omitempty"`
	// Moved is what it took to bring a successor here from another node; nil for others, and after a restart of the agent. It may follow a moment
	// after the successor runs. A downtime of 0 is unknown.
	Moved *driver.MoveReport `json:"moved,omitempty"`
}

// Arriving is the progress of what comes from another node.
type Arriving struct {
	Bytes int64 `json:"bytes"`
	// OfBytes is the member's memory. A state may be smaller, and a member that writes to its memory while it moves takes more.
	OfBytes int64 `json:"of_bytes"`
}

// MayReport reports whether an agent can know that a member is in a phase. The other phases are the leader's to decide.
func MayReport(phase api.MemberPhase) bool {
	switch phase {
	case api.MemberPreparing, api.MemberStarting, api.MemberReady, api.MemberUnhealthy, api.MemberPaused, api.MemberSaved, api.MemberFailed, api.MemberUnknown,
		api.MemberReleasing:
		return true
	default:
		return false
	}
}

// JobObserved is a job as the member agent tells it.
type JobObserved struct {
	// ID is the run's (api.Job.RunID).
	ID        string       `json:"id"`
	Phase     api.JobPhase `json:"phase"`
	ExitCode  *int         `json:"exit_code,omitempty"`
	Message   string       `json:"message,omitempty"`
	StartedAt *time.Time   `json:"started_at,omitempty"`
	EndedAt   *time.Time   `json:"ended_at,omitempty"`
	// LogBytes is how much output of the job there is to store.
	LogBytes int64 `json:"log_bytes"`
	// DiscardedBytes is how much more was printed and discarded. It may lag by half while the job runs.
	DiscardedBytes int64 `json:"discarded_bytes,omitempty"`
}

// Log is a piece of the output of a job's run.
type Log struct {
	// JobID is the run's (api.Job.RunID).
	JobID  string `json:"job_id"`
	Offset int64  `json:"offset"`
	Data   []byte `json:"data"`
}

// LogAck reports how much of a run's output the server has stored; the agent goes on from there.
type LogAck struct {
	JobID  string `json:"job_id"`
	Offset int64  `json:"offset"`
	// Discard: the server stores nothing from Offset on; the member throws that output away and counts it.
	Discard bool `json:"discard,omitempty"`
	// Again: the server could not store the output from Offset on when it came, and asks for it once more.
	Again bool `json:"again,omitempty"`
}
