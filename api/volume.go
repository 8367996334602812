package api

import (
	"net/netip"
	"time"
)

// VolumeAccess says which clusters may have a volume attached at one time.
type VolumeAccess string

// The kinds of access.
const (
	// VolumeOneWriter lets one cluster write. Others may read at the same time.
	VolumeOneWriter VolumeAccess = "one-writer"
	// VolumeManyReaders lets every cluster read, and none write.
	VolumeManyReaders VolumeAccess = "many-readers"
	// VolumeShared lets every cluster write.
	VolumeShared VolumeAccess = "shared"
)

// VolumeKind says what a volume is.
type VolumeKind string

// The kinds of volumes.
const (
	// VolumeFiles is a file system, which members have as a directory. It is "" in what is stored.
	VolumeFiles VolumeKind = "files"
	// VolumeBlock is a block device, which one virtual machine at a time has as a disk.
	VolumeBlock VolumeKind = "block"
)

// The bounds of volumes.
const (
	MinVolumeBytes = 64 << 20
	MaxVolumeBytes = 16 << 40
	// VolumeBytesPerFile is how much of a volume there is for each file that it may hold, unless its user says how many.
	VolumeBytesPerFile = 16 << 10
	// MinVolumeIOLimit and MaxVolumeIOLimit bound what each member may read and write in a second.
	MinVolumeIOLimit = 1 << 20
	MaxVolumeIOLimit = 1 << 40
	// MaxVolumeSnapshots is the number of snapshots that a volume may have.
	MaxVolumeSnapshots = 32
	// MaxVolumeClaims is the number of volumes that a group may have attached, its home not counted.
	MaxVolumeClaims = 8
)

// DefaultVolumeRetention is how long a deleted volume is kept, unless its user says otherwise.
const DefaultVolumeRetention = Duration(24 * time.Hour)

// VolumeIntent is the user's side of a volume; only the API writes it.
type VolumeIntent struct {
	// Name is NAME, or PROJECT.NAME outside the default project.
	Name    string `json:"name"`
	UID     string `json:"uid"`
	Project string `json:"project"`
	User    string `json:"user,omitempty"`
	// Home marks the home of User in the project.
	Home bool `json:"home,omitempty"`
	// Cluster is the full name of the cluster of which it is the home, ClusterUID that cluster's UID; "": it is none's. Such a volume ends with its
	// cluster, and no other has it.
	Cluster    string `json:"cluster,omitempty"`
	ClusterUID string `json:"cluster_uid,omitempty"`
	// Kind is what it is; "": a file system.
	Kind VolumeKind `json:"kind,omitempty"`
	// SizeBytes bounds what it holds, MaxFiles the number of its files and directories, which a block volume does not know.
	SizeBytes int64        `json:"size_bytes"`
	MaxFiles  int64        `json:"max_files"`
	Access    VolumeAccess `json:"access"`
	// IOBytesPerSecond bounds what each member reads from it, and what each member writes to it; 0: no limit.
	IOBytesPerSecond int64 `json:"io_bytes_per_second,omitempty"`
	// Node is the requested node; "": any that has room.
	Node string `json:"node,omitempty"`
	// Retention is how long it is kept after its deletion.
	Retention Duration `json:"retention"`
	// Origin is what it began as; nil: it began empty.
	Origin *VolumeOrigin `json:"origin,omitempty"`
	// Snapshots are the snapshots that are wanted, the oldest first. Restore is the last request to go back to one; nil: none.
	Snapshots []VolumeSnapshotIntent `json:"snapshots,omitempty"`
	Restore   *VolumeRestoreIntent   `json:"restore,omitempty"`
	CreatedAt time.Time              `json:"created_at"`
	// DeleteRequestedAt is when it was deleted. It can be undeleted until PurgeAt.
	DeleteRequestedAt *time.Time `json:"delete_requested_at,omitempty"`
	PurgeAt           *time.Time `json:"purge_at,omitempty"`
}

// VolumeOrigin names what a volume begins as: a snapshot, or a backup that somebody sends.
type VolumeOrigin struct {
	VolumeUID   string `json:"volume_uid"`
	SnapshotUID string `json:"snapshot_uid"`
	// Upload: a backup, and no snapshot. Its node waits for it, and must not make the volume of anything else. An agent that does not know this refuses
	// the origin, since it names no snapshot.
	Upload bool `json:"upload,omitempty"`
}

// IsUpload reports whether a volume begins as a backup that somebody sends.
func (o *VolumeOrigin) IsUpload() bool { return o != nil && o.Upload }

// IsSnapshot reports whether a volume begins as a snapshot.
func (o *VolumeOrigin) IsSnapshot() bool { return o != nil && !o.Upload }

// VolumeSnapshotIntent is a snapshot of a volume that its user wants to exist.
type VolumeSnapshotIntent struct {
	// Name is a DNS label, unique in its volume.
	Name      string    `json:"name"`
	UID       string    `json:"uid"`
	CreatedAt time.Time `json:"created_at"`
}

// VolumeRestoreIntent asks for a volume to hold again what it held in a snapshot.
type VolumeRestoreIntent struct {
	SnapshotUID string `json:"snapshot_uid"`
	// Number counts the requests of the volume, from 1.
	Number int64 `json:"number"`
}

// VolumePhase is where a volume is in its life.
type VolumePhase string

// The phases of a volume.
const (
	VolumePending     VolumePhase = "pending"     // no node has room for it; the message gives the reason
	VolumeCreating    VolumePhase = "creating"    // has a node, which makes it
	VolumeImporting   VolumePhase = "importing"   // has a node, which waits for the backup that it is made of, or reads it
	VolumeReady       VolumePhase = "ready"       // can be attached
	VolumeUnavailable VolumePhase = "unavailable" // its node is not heard of, or can't give access to it; the message gives the reason
	VolumeDeleted     VolumePhase = "deleted"     // can be undeleted until its time is over
	VolumePurging     VolumePhase = "purging"     // being wiped on its node; holds its room until that is confirmed
)

// VolumeRecord is the leader's side of a volume: where it lies. It is written before a node makes anything, and goes once the node has
// confirmed that nothing is left.
type VolumeRecord struct {
	UID  string `json:"uid"`
	Name string `json:"name"`
	Node string `json:"node"`
	// SizeBytes is the room that it holds on its node. It follows the intent when it grows, and the node when it has shrunk.
	SizeBytes int64 `json:"size_bytes"`
	// HeldSince is when it was decided that it holds that much; zero in a record of an older version.
	HeldSince time.Time `json:"held_since,omitzero"`
	// Generation is new with each decision about the volume; nodes reject an older one.
	Generation int64 `json:"generation"`
	// Made is set for good once its node has reported it whole. A node that lacks a volume which was made has lost it, and must not make an empty one
	// in its place.
	Made bool `json:"made,omitempty"`
	// Purging is set for good once its room is being given back.
	Purging bool `json:"purging,omitempty"`
}

// VolumeClaim is a volume that a member has attached.
type VolumeClaim struct {
	UID string `json:"uid"`
	// Name is that within its project.
	Name string `json:"name"`
	// Path is where the member has it: an absolute path. A block volume has none.
	Path     string `json:"path"`
	ReadOnly bool   `json:"read_only,omitempty"`
	// Block: it is a block volume, and a disk of the member.
	Block bool `json:"block,omitempty"`
	// Node is where it lies.
	Node string `json:"node"`
	// Number is the assignment's VolumesNumber with which the claim was made, or became Detaching, until the member's node reports that number. 0: the
	// member has the volume, or gets it when it starts.
	Number int64 `json:"number,omitempty"`
	// Detaching: the member is to let go of it. It is claimed until the member's node reports that the member has.
	Detaching bool `json:"detaching,omitempty"`
	// Server is where Node serves the volume to members that have whole machines: an address on the cluster's own network that is no member's. It is not
	// valid in a cluster without such members.
	Server netip.Addr `json:"server,omitzero"`
}

// VolumePlace is where the volumes of a group lie: its members go there, or to nodes that reach them there. The zero value is of a group without
// volumes. Volumes have the names within their project.
type VolumePlace struct {
	// Volume lies on Node. Problem is why it is not served to other nodes, "" where it is. Block: the group has only block volumes there.
	Volume, Node, Problem string
	Block                 bool
	// Other lies on OtherNode, which is another node; OtherProblem is as Problem. Of volumes on three nodes, those that are not served are these.
	Other, OtherNode, OtherProblem string
	OtherBlock                     bool
	// Unplaced can't be had now, and Why is the reason. Away: its node is not heard of.
	Unplaced, Why string
	Away          bool
	// Machines: the members have whole machines, each of which reaches what is served.
	Machines bool
}

// VolumeAttachment is a volume that a cluster asks for.
type VolumeAttachment struct {
	// Name is that of a volume of the cluster's project.
	Name string `json:"name"`
	// Path is where members have it, an absolute path; it defaults to /volumes/NAME.
	Path     string `json:"path,omitempty"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// MountPath is where members have the volume.
func (a VolumeAttachment) MountPath() string {
	if a.Path == "" {
		return "/volumes/" + a.Name
	}
	return a.Path
}

// The kinds of homes that are no volume of their own name.
const (
	// HomeOfCluster is a home that is made with the cluster and deleted with it.
	HomeOfCluster = "cluster"
	// HomeOfUser is the persistent home of the cluster's user in its project: a volume.
	HomeOfUser = "user"
	// HomeNone is no home: each member has a private directory.
	HomeNone = "none"
)

// ClusterHome is what members of a cluster have as /home.
type ClusterHome struct {
	// Kind is cluster, user or none; "" is cluster.
	Kind string `json:"kind,omitempty"`
	// Size bounds the home. For the kind cluster, the home then is a volume that is made and deleted with the cluster; 0 is a directory without a bound
	// of its own. For the kind user, it is the size that a home has which does not exist yet.
	Size Bytes `json:"size,omitempty"`
}

// VolumePool is the room that a node has for volumes.
type VolumePool struct {
	// Kind is xfs, btrfs, loop or lvm; "" on a node that has none.
	Kind string `json:"kind"`
	// CapacityBytes is for all volumes and their snapshots. HeldBytes is what those take that are there.
	CapacityBytes int64 `json:"capacity_bytes"`
	HeldBytes     int64 `json:"held_bytes"`
	// UnlimitedIO is what limits of I/O do not bound on the node, and why; "": they bound all that its members read and write.
	UnlimitedIO string `json:"unlimited_io,omitempty"`
	// Problems are why there is no pool, or why it can't be used, one a line.
	Problems []string `json:"problems,omitempty"`
}

// VolumeSharing is what a node can do so that volumes cross between nodes.
type VolumeSharing struct {
	// ServeProblem is why the node can't serve its volumes to others, ReachProblem why its members can't have those of others; "" where they can.
	ServeProblem string `json:"serve_problem,omitempty"`
	ReachProblem string `json:"reach_problem,omitempty"`
	// Blocks: block volumes cross from and to the node, whatever the problems with others.
	Blocks bool `json:"blocks,omitempty"`
	// Encrypts: the agent can have volumes cross within WireGuard, as a site with an encrypted underlay wants.
	Encrypts bool `json:"encrypts,omitempty"`
	// Machines: the agent can serve volumes to members with whole machines, on the VLANs of their networks.
	Machines bool `json:"machines,omitempty"`
}
