package api

import "time"

// VolumeRequest is the body of a create.
type VolumeRequest struct {
	// Name is a DNS label, unique among the volumes of the project.
	Name string `json:"name"`
	// Project owns it; it defaults to the token's.
	Project string `json:"project,omitempty"`
	// Kind is files, the default, or block. A clone is what its origin is.
	Kind VolumeKind `json:"kind,omitempty"`
	// Size bounds what it holds. For a clone it defaults to that of its origin, and is no less.
	Size Bytes `json:"size,omitempty"`
	// Files bounds the number of its files and directories; 0: one for each 16KiB of its size.
	Files int64 `json:"files,omitempty"`
	// Access defaults to one-writer.
	Access VolumeAccess `json:"access,omitempty"`
	// IOLimit is how many bytes each member may read from it in a second, and how many each may write to it; 0: no limit.
	IOLimit Bytes `json:"io_limit,omitempty"`
	// Node is the node that it is to lie on; "": any that has room.
	Node string `json:"node,omitempty"`
	// Retention is how long it is kept after its deletion; it defaults to a day.
	Retention *Duration `json:"retention,omitempty"`
	// From is what it begins as: VOLUME@SNAPSHOT, or VOLUME for what that holds now; "": it begins empty.
	From string `json:"from,omitempty"`
	// FromBackup: it begins as a backup, which is sent once its node waits for it.
	FromBackup bool `json:"from_backup,omitempty"`
}

// VolumeChange is the body of a change. What is omitted stays.
type VolumeChange struct {
	Size   *Bytes        `json:"size,omitempty"`
	Files  *int64        `json:"files,omitempty"`
	Access *VolumeAccess `json:"access,omitempty"`
	// IOLimit is as in a create; 0 lifts the limit.
	IOLimit   *Bytes    `json:"io_limit,omitempty"`
	Retention *Duration `json:"retention,omitempty"`
}

// VolumeSnapshotRequest is the body of a snapshot's creation.
type VolumeSnapshotRequest struct {
	// Name is a DNS label, unique in the volume.
	Name string `json:"name"`
}

// VolumeStatus is a volume as the API shows it.
type VolumeStatus struct {
	// Name is NAME, without the project.
	Name    string `json:"name"`
	UID     string `json:"uid"`
	Project string `json:"project"`
	User    string `json:"user,omitempty"`
	// Home marks the home of User in the project.
	Home bool `json:"home,omitempty"`
	// Cluster is the cluster of which it is the home; "": it is none's. It is deleted with that cluster.
	Cluster string `json:"cluster,omitempty"`

	// Kind is files or block. A block volume has no number of files.
	Kind      VolumeKind   `json:"kind"`
	Size      Bytes        `json:"size"`
	Files     int64        `json:"files"`
	Access    VolumeAccess `json:"access"`
	Retention Duration     `json:"retention"`
	// IOLimit is how many bytes each member may read from it in a second, and how many each may write to it; 0: no limit. IOUnlimited is what it does
	// not bound on the volume's node, and why; "": nothing.
	IOLimit     Bytes  `json:"io_limit,omitempty"`
	IOUnlimited string `json:"io_unlimited,omitempty"`
	// WantedNode is the node that was asked for; "": any.
	WantedNode string `json:"wanted_node,omitempty"`
	// From is what it began as: VOLUME@SNAPSHOT, or VOLUME; "": it began empty, or as a backup.
	From string `json:"from,omitempty"`
	// FromBackup: it began as a backup, or waits for one.
	FromBackup bool `json:"from_backup,omitempty"`

	Phase   VolumePhase `json:"phase"`
	Message string      `json:"message,omitempty"`
	// Undecided: it has no place, and may get one as soon as a node is heard of.
	Undecided bool `json:"undecided,omitempty"`
	// Node is where it lies, "" while it has no place. Held is the room that it takes there, snapshots not counted.
	Node string `json:"node,omitempty"`
	Held Bytes  `json:"held"`
	// Import is how far its node is with the backup that it is made of; nil: the node neither waits for one nor reads one.
	Import *VolumeImport `json:"import,omitempty"`
	// Resizing: its node is still to give it its size. Message then is why it can't now.
	Resizing bool `json:"resizing,omitempty"`
	// Used and UsedFiles are what it holds now; nil: not known.
	Used      *Bytes `json:"used,omitempty"`
	UsedFiles *int64 `json:"used_files,omitempty"`
	// Snapshots are the oldest first.
	Snapshots []VolumeSnapshot `json:"snapshots"`
	// Restore is the last request to go back to a snapshot; nil: none.
	Restore *VolumeRestore `json:"restore,omitempty"`
	// Clusters are those that ask for it. Clusters that the token may not see are not among them.
	Clusters  []VolumeCluster `json:"clusters"`
	CreatedAt time.Time       `json:"created_at"`
	// DeletedAt is when it was deleted, PurgeAt until when it can be undeleted.
	DeletedAt *time.Time `json:"deleted_at,omitempty"`
	PurgeAt   *time.Time `json:"purge_at,omitempty"`
}

// VolumeImport is how far a node is with the backup that a volume is made of.
type VolumeImport struct {
	// Receiving: a backup is being read. Received is how much of it, compressed.
	Receiving bool  `json:"receiving"`
	Received  Bytes `json:"received"`
	// Failure is why the last backup that was sent did not become the volume; "" if none was sent.
	Failure string `json:"failure,omitempty"`
}

// VolumeSnapshot is a snapshot of a volume as the API shows it.
type VolumeSnapshot struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
	// Ready: it is there, whole. Bytes is the room that is kept for it: as much as its volume may still change of what both share.
	Ready     bool      `json:"ready"`
	Bytes     Bytes     `json:"bytes"`
	CreatedAt time.Time `json:"created_at"`
}

// VolumeRestore is a request to go back to a snapshot.
type VolumeRestore struct {
	// Snapshot is its name, "" if it was deleted since.
	Snapshot string `json:"snapshot,omitempty"`
	Done     bool   `json:"done"`
}

// VolumeCluster is a cluster that asks for a volume.
type VolumeCluster struct {
	Cluster  string `json:"cluster"`
	ReadOnly bool   `json:"read_only,omitempty"`
	// Attached: its members on the volume's node have access.
	Attached bool `json:"attached"`
	// Detaching: its members are to let go of the volume.
	Detaching bool `json:"detaching,omitempty"`
}

// CloneSnapshotUID is the UID of the snapshot that is made of a volume for one clone, if its user names none. It goes once the clone is made.
func CloneSnapshotUID(cloneUID string) string { return "clone-" + cloneUID }
