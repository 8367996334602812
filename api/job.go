package api

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// JobPhase is a phase in the life of a job.
type JobPhase string

// The phases of a job.
const (
	JobPending   JobPhase = "pending" // stored; it waits for others of its cluster, or rank 0's member has not started it
	JobRunning   JobPhase = "running"
	JobSucceeded JobPhase = "succeeded" // exit code 0
	JobFailed    JobPhase = "failed"    // another exit code, or it could not be started
	JobCancelled JobPhase = "cancelled" // ended at a user's request
	JobLost      JobPhase = "lost"      // its member or cluster went away under it
)

// Ended reports whether the phase is final.
func (p JobPhase) Ended() bool {
	switch p {
	case JobSucceeded, JobFailed, JobCancelled, JobLost:
		return true
	default:
		return false
	}
}

// JobRequest is the body of a job submission.
type JobRequest struct {
	Command []string `json:"command"`
	// Ranks is the number of MPI ranks; mpirun starts them over the cluster's hostfile. 0 runs the command once, on rank 0's
	// member, without mpirun.
	Ranks int               `json:"ranks,omitempty"`
	Env   map[string]string `json:"env,omitempty"`
	// Directory is the working directory, by default the shared home.
	Directory string `json:"directory,omitempty"`
	// Requeue asks to run the job again, from its start, when a member of its cluster is lost while it runs.
	Requeue bool `json:"requeue,omitempty"`
	// FailureSignal is sent to the job's processes when a member of its cluster is lost, such as "USR1"; it defaults to "URG", which
	// programs that don't know of it ignore (signal(7)). A job that is to be requeued is ended then, and gets no signal before that
	// unless one is named here.
	FailureSignal string `json:"failure_signal,omitempty"`
}

// TextBytes returns the size of the request's text as JSON, in which it is stored and sent: its command, environment and directory.
func (r *JobRequest) TextBytes() int {
	n := textBytes(r.Directory)
	for _, word := range r.Command {
		n += textBytes(word)
	}
	for name, value := range r.Env {
		n += textBytes(name) + textBytes(value)
	}
	return n
}

// textBytes is how long a text is as JSON (RFC 8259, section 7), without its quotes. What has no short form takes six bytes.
func textBytes(text string) int {
	n := 0
	for _, r := range text {
		switch {
		case strings.ContainsRune("\"\\\b\f\n\r\t", r):
			n += 2
		case r < ' ' || r == utf8.RuneError || r == '\u2028' || r == '\u2029':
			n += 6
		default:
			n += utf8.RuneLen(r)
		}
	}
	return n
}

// Job is a command run on a cluster: a stored object, supervised in rank 0's member.
type Job struct {
	ID         string `json:"id"`
	Cluster    string `json:"cluster"`
	ClusterUID string `json:"cluster_uid"`
	JobRequest
	Phase JobPhase `json:"phase"`
	// ExitCode is set when the command ended by itself: its code, or 128 + N when signal N ended it.
	ExitCode        *int   `json:"exit_code,omitempty"`
	Message         string `json:"message,omitempty"`
	CancelRequested bool   `json:"cancel_requested,omitempty"`
	// Attempt counts how often it was run again, 0 for the first run.
	Attempt int `json:"attempt,omitempty"`
	// MemberID is the assignment that carries out this attempt, decided before it is told: no other ever starts it.
	MemberID string `json:"member_id,omitempty"`
	// DispatchedAt is the time of that decision, by the site's clock. StartedAt and EndedAt are by the clock of the member's machine.
	DispatchedAt *time.Time `json:"dispatched_at,omitempty"`
	// LostMembers are the assignments of members lost under this attempt; Failures counts those told to it by FailureSignal, once each.
	Failures    int      `json:"failures,omitempty"`
	LostMembers []string `json:"lost_members,omitempty"`
	// RemovedMembers are the names of members that scaling down removed from the cluster under this attempt.
	RemovedMembers []string `json:"removed_members,omitempty"`
	// GraceSeconds is the time between SIGTERM and SIGKILL for a job that its cluster's time limit ends. It is 0 for a job that a user
	// ends, which is interrupted first (SIGINT).
	GraceSeconds float64 `json:"grace_seconds,omitempty"`
	// Requeueing: a member was lost under this attempt, which is being ended to be run again.
	Requeueing bool `json:"requeueing,omitempty"`
	// LogBytes is the size of this attempt's stored output.
	LogBytes int64 `json:"log_bytes"`
	// DiscardedBytes is the size of this attempt's output that was printed and not stored: it was over the site's limit, or could not be
	// stored in time. It may lag by half while the job runs.
	DiscardedBytes int64      `json:"discarded_bytes,omitempty"`
	CreatedAt      time.Time  `json:"created_at"`
	StartedAt      *time.Time `json:"started_at,omitempty"`
	EndedAt        *time.Time `json:"ended_at,omitempty"`
}

// Event is something that happened to a cluster, in the order the leader saw it.
type Event struct {
	Seq     int64     `json:"seq"`
	Time    time.Time `json:"time"`
	Cluster string    `json:"cluster"`
	// Reason is a fixed word for programs ("Placed", "Ready", ...), Message a sentence for people.
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Member  string `json:"member,omitempty"`
	Node    string `json:"node,omitempty"`
	// Fabric is the cell that the event is of, and Alarm which alarm began or ended there, by its kind and subject; else both are empty.
	Fabric string `json:"fabric,omitempty"`
	Alarm  string `json:"alarm,omitempty"`
}

// The reasons of a fabric's events.
const (
	ReasonAlarm      = "Alarm"
	ReasonAlarmEnded = "AlarmEnded"
)

// ReasonCacheTooSmall is the reason of a cluster's event that a node's cache is too small for what members read of a dataset through it.
const ReasonCacheTooSmall = "CacheTooSmall"

// RunID names one attempt of a job: the job's ID, and from the second attempt on ".N". Output is stored by it.
func (j *Job) RunID() string {
	if j.Attempt == 0 {
		return j.ID
	}
	return j.ID + "." + strconv.Itoa(j.Attempt)
}
