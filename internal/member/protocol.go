// Package member is the member agent, the first process of every member beside the tenant's root, and the messages that it exchanges
// with the node agent over a link. Both ends are in this package and are tested together. Package memberlink defines a link, and how the
// link identifies the member at its other end.
//
// The member agent (Run, in agent.go) reaps processes, runs sshd, reports readiness, runs the group's health checks and supervises the
// jobs of rank 0. The node agent's end (Server, in server.go) trusts the member agent about nothing else: the tenant's root may replace
// the member agent at will. So Server bounds the size, rate and meaning of the messages that it reads. Server must never act on the host
// at a member's request.
//
// Messages are JSON lines, each with exactly one field set. Both ends ignore unknown messages, since a member keeps its binary when the
// node agent is upgraded. The member agent connects, and connects again after a restart of the node agent. Its first message is Hello.
// Both sides are level-triggered: each connection repeats the messages that matter.
package member

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// ProtocolVersion is told in Hello; it grows when an old member agent could misread a new node agent. Version 2 knows attempts of a
// job, failure signals and checks; a member of version 1 runs no checks and never says Health.
const ProtocolVersion = 2

// attemptsVersion is the first version that tells the attempts of a job apart.
const attemptsVersion = 2

const (
	// maxLine bounds one message, in bytes, newline included.
	maxLine = 1 << 20
	// maxLogPiece bounds the data of one Log, in bytes before base64.
	maxLogPiece = 64 << 10
	// logWindow is how far, in bytes, the member agent sends ahead of what was acknowledged.
	logWindow = 1 << 20
	// maxStates bounds the job states of one message; more go into further messages.
	maxStates = 512
)

// ToMember is a message from the node agent.
type ToMember struct {
	// Jobs is the whole list of jobs this member should supervise. A running job that is missing from it goes on; only
	// CancelRequested, Stop and a later attempt of the same job end jobs. Everywhere else a job is named by its RunID.
	Jobs *[]api.Job `json:"jobs,omitempty"`
	// Checks is the whole list of the group's health checks, every default filled in.
	Checks *[]api.Check `json:"checks,omitempty"`
	// LogFrom asks for a job's output from an offset on; the member agent then keeps sending what is printed.
	LogFrom *LogFrom `json:"log_from,omitempty"`
	// LogAck reports how much output is stored for good; the member agent drops that.
	LogAck *LogAck `json:"log_ack,omitempty"`
	// Stop asks the member to end: jobs first, then sshd, then itself.
	Stop *Stop `json:"stop,omitempty"`
}

// LogFrom asks for a job's output. It acknowledges what lies before Offset. The pieces that answer it carry Request, so that they
// are told from those which were under way to an earlier one.
type LogFrom struct {
	// JobID is the run's (api.Job.RunID), here and in the other messages about output.
	JobID   string `json:"job_id"`
	Offset  int64  `json:"offset"`
	Request int64  `json:"request,omitempty"`
}

// LogAck acknowledges a job's output before Offset.
type LogAck struct {
	JobID  string `json:"job_id"`
	Offset int64  `json:"offset"`
	// Discard: nothing from Offset on is stored; the member agent throws it away and counts it. It stays so for the run.
	Discard bool `json:"discard,omitempty"`
}

// Stop asks the member to end.
type Stop struct{}

// FromMember is a message to the node agent.
type FromMember struct {
	// Hello is the first message of a connection.
	Hello *Hello `json:"hello,omitempty"`
	// Ready reports that sshd answers on the member's own address.
	Ready *Ready `json:"ready,omitempty"`
	// Jobs are states of jobs: those of all after connecting, then those that changed.
	Jobs *[]JobState `json:"jobs,omitempty"`
	Log  *Log        `json:"log,omitempty"`
	// Problem says why the member is not ready.
	Problem *Problem `json:"problem,omitempty"`
	// Health reports whether a ready member can still be used: after connecting, and when it changes.
	Health *Health `json:"health,omitempty"`
}

// Hello introduces a member agent.
type Hello struct {
	// Instance is random for every start of the member agent: jobs given to another instance are lost.
	Instance string `json:"instance"`
	Version  int    `json:"version"`
}

// Ready reports that the member can be used.
type Ready struct {
	At time.Time `json:"at"`
}

// Problem is a sentence for people about what keeps the member from being ready.
type Problem struct {
	Message string `json:"message"`
}

// Health reports whether a member that was ready can be used.
type Health struct {
	Healthy bool `json:"healthy"`
	// Message tells, for people, why not.
	Message string `json:"message,omitempty"`
}

// JobState is a run of a job as the member agent supervises it.
type JobState struct {
	// ID is the run's (api.Job.RunID).
	ID        string       `json:"id"`
	Phase     api.JobPhase `json:"phase"`
	ExitCode  *int         `json:"exit_code,omitempty"`
	Message   string       `json:"message,omitempty"`
	StartedAt *time.Time   `json:"started_at,omitempty"`
	EndedAt   *time.Time   `json:"ended_at,omitempty"`
	// LogBytes is how much output there is; once the phase is final it no longer grows.
	LogBytes int64 `json:"log_bytes"`
	// DiscardedBytes is how much more was printed and discarded. It may lag by half while the job runs.
	DiscardedBytes int64 `json:"discarded_bytes,omitempty"`
}

// Log is a piece of a job's output. Pieces follow each other without gap or overlap; output that was discarded because it was not fetched in
// time is replaced by a line that says so.
type Log struct {
	JobID  string `json:"job_id"`
	Offset int64  `json:"offset"`
	Data   []byte `json:"data"`
	// Request is that of the LogFrom this answers.
	Request int64 `json:"request,omitempty"`
}
