package api

import "time"

// MaxSnapshots is the number of snapshots that a cluster may have.
const MaxSnapshots = 8

// SnapshotClaim describes the state of a member in a snapshot, which an assignment of its own keeps on a node's disk.
type SnapshotClaim struct {
	// Name is the name of the snapshot. AskedAt names the request that made the snapshot.
	Name    string    `json:"name"`
	AskedAt time.Time `json:"asked_at"`
	// Of is the assignment ID that the member had. Ports, Cores and MemoryBytes are that member's: its state fits no other.
	Of          string      `json:"of"`
	Ports       []PortClaim `json:"ports"`
	Cores       int         `json:"cores"`
	MemoryBytes int64       `json:"memory_bytes"`
}

// SnapshotIntent is a snapshot that the user of a cluster wants to exist.
type SnapshotIntent struct {
	Name string `json:"name"`
	// AskedAt names the request.
	AskedAt time.Time `json:"asked_at"`
}

// SnapshotRecord is the outcome of a request for a snapshot.
type SnapshotRecord struct {
	Name    string    `json:"name"`
	AskedAt time.Time `json:"asked_at"`
	// MadeAt is when the snapshot became true; nil for a snapshot that failed.
	MadeAt *time.Time `json:"made_at,omitempty"`
	// Bytes is the size of all members' states.
	Bytes int64 `json:"bytes,omitempty"`
	// Failed is why there is no such snapshot.
	Failed string `json:"failed,omitempty"`
}

// SnapshotRestoreRecord is the outcome of the last request to restore a snapshot.
type SnapshotRestoreRecord struct {
	Name    string    `json:"name"`
	AskedAt time.Time `json:"asked_at"`
	// MadeAt is when the snapshot was made that the members went back to, DecidedAt when they did. Both are zero for a request that failed.
	MadeAt    time.Time `json:"made_at,omitzero"`
	DecidedAt time.Time `json:"decided_at,omitzero"`
	// Failed is why nothing was restored.
	Failed string `json:"failed,omitempty"`
}

// SnapshotRequest is the body of a request for a snapshot.
type SnapshotRequest struct {
	// Name is the name of the snapshot, unique in its cluster.
	Name string `json:"name"`
}

// SnapshotPhase is the progress of a snapshot.
type SnapshotPhase string

// The phases of a snapshot.
const (
	SnapshotWaiting  SnapshotPhase = "waiting"  // requested; its cluster is not ready for it yet
	SnapshotCreating SnapshotPhase = "creating" // the members stand still and are written to disk
	SnapshotReady    SnapshotPhase = "ready"    // complete; the cluster can be restored to it
	SnapshotFailed   SnapshotPhase = "failed"   // not made; the message gives the reason
	SnapshotDeleting SnapshotPhase = "deleting" // its states are being removed from the nodes' disks
)

// Snapshot is the state of all members of a cluster at one moment.
type Snapshot struct {
	Name  string        `json:"name"`
	Phase SnapshotPhase `json:"phase"`
	// Message is why the snapshot failed; empty otherwise.
	Message     string    `json:"message,omitempty"`
	RequestedAt time.Time `json:"requested_at"`
	// CreatedAt is when the snapshot was complete.
	CreatedAt *time.Time `json:"created_at,omitempty"`
	// Bytes is the room that it takes on the disks of all nodes.
	Bytes   Bytes            `json:"bytes"`
	Members []SnapshotMember `json:"members"`
}

// SnapshotMember is the state of one member in a snapshot.
type SnapshotMember struct {
	Member string `json:"member"`
	Node   string `json:"node"`
	Bytes  Bytes  `json:"bytes"`
}

// SnapshotRestorePhase is the progress of a request to restore a snapshot.
type SnapshotRestorePhase string

// The phases of a restore of a snapshot.
const (
	SnapshotVerifying SnapshotRestorePhase = "verifying" // the nodes verify the states; nothing has changed
	SnapshotRestored  SnapshotRestorePhase = "restored"  // the members go back; the cluster's phase says when they are ready
	SnapshotRefused   SnapshotRestorePhase = "failed"    // nothing was changed; the message gives the reason
)

// SnapshotRestoreStatus is the last request to restore a snapshot, and its progress.
type SnapshotRestoreStatus struct {
	Name        string               `json:"name"`
	RequestedAt time.Time            `json:"requested_at"`
	Phase       SnapshotRestorePhase `json:"phase"`
	Message     string               `json:"message,omitempty"`
}
