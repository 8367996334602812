// Package member is the member agent: the first process of every member, beside the tenant's root, and the messages it
// exchanges with the node agent over a Unix socket (/run/nearmetal/agent.sock).
//
// It reaps processes, runs sshd, reports readiness and supervises the jobs of rank 0. It holds only this member's
// credentials, and the node agent never believes it about cleanliness or hardware. Messages are JSON lines, each with
// exactly one field set; the member agent connects, and connects again when the node agent was restarted.
package member

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// ToMember is a message from the node agent.
type ToMember struct {
	// Jobs is the whole list of jobs this member should supervise.
	Jobs *[]api.Job `json:"jobs,omitempty"`
	// LogFrom asks for a job's output from an offset on; the member agent then keeps sending what is printed.
	LogFrom *LogFrom `json:"log_from,omitempty"`
	// Stop asks the member to end: jobs first, then sshd, then itself.
	Stop *Stop `json:"stop,omitempty"`
}

// LogFrom asks for a job's output.
type LogFrom struct {
	JobID  string `json:"job_id"`
	Offset int64  `json:"offset"`
}

// Stop asks the member to end.
type Stop struct{}

// FromMember is a message to the node agent.
type FromMember struct {
	// Ready tells that sshd answers on the member's own address.
	Ready *Ready `json:"ready,omitempty"`
	// Jobs is the state of every job this member knows.
	Jobs *[]JobState `json:"jobs,omitempty"`
	Log  *Log        `json:"log,omitempty"`
}

// Ready tells that the member can be used.
type Ready struct {
	At time.Time `json:"at"`
}

// JobState is a job as the member agent supervises it.
type JobState struct {
	ID        string       `json:"id"`
	Phase     api.JobPhase `json:"phase"`
	ExitCode  *int         `json:"exit_code,omitempty"`
	Message   string       `json:"message,omitempty"`
	StartedAt *time.Time   `json:"started_at,omitempty"`
	EndedAt   *time.Time   `json:"ended_at,omitempty"`
	LogBytes  int64        `json:"log_bytes"`
}

// Log is a piece of a job's output.
type Log struct {
	JobID  string `json:"job_id"`
	Offset int64  `json:"offset"`
	Data   []byte `json:"data"`
}
