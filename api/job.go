package api

import "time"

// JobPhase is where a job is in its life.
type JobPhase string

// The phases of a job.
const (
	JobPending   JobPhase = "pending" // stored, rank 0's member has not started it
	JobRunning   JobPhase = "running"
	JobSucceeded JobPhase = "succeeded" // exit code 0
	JobFailed    JobPhase = "failed"    // another exit code, or it could not be started
	JobCancelled JobPhase = "cancelled" // ended at a user's request
	JobLost      JobPhase = "lost"      // its member or cluster went away under it
)

// Ended tells whether the phase is final.
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
}

// Job is a command run on a cluster: a stored object, supervised in rank 0's member.
type Job struct {
	ID         string `json:"id"`
	Cluster    string `json:"cluster"`
	ClusterUID string `json:"cluster_uid"`
	JobRequest
	Phase JobPhase `json:"phase"`
	// ExitCode is set when the command ended by itself: its code, or 128 + N when signal N ended it.
	ExitCode        *int       `json:"exit_code,omitempty"`
	Message         string     `json:"message,omitempty"`
	CancelRequested bool       `json:"cancel_requested,omitempty"`
	LogBytes        int64      `json:"log_bytes"`
	CreatedAt       time.Time  `json:"created_at"`
	StartedAt       *time.Time `json:"started_at,omitempty"`
	EndedAt         *time.Time `json:"ended_at,omitempty"`
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
}
