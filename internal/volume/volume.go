// Package volume is the contract between a node's agent and what keeps volumes on that node: file systems of a bounded size, which outlive the
// clusters that have them attached.
//
// A pool is whole-config, idempotent and restart-safe: Apply brings one volume to what is wanted, may be repeated at any time, and Observe finds
// volumes by looking at the disk, never by memory. A pool must never decide anything. On the disk, files have the user and group IDs that members
// see: each attachment is a mount of its own that maps them to those of a cluster on this host. Package volumetest is the conformance suite.
package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// The errors by which an agent tells what it can't get over by trying again.
var (
	// ErrFull reports that the pool has too little room. The message says how much is wanted and how much is left.
	ErrFull = errors.New("the pool has too little room")
	// ErrTooSmall reports that a volume holds more than the size that it should shrink to.
	ErrTooSmall = errors.New("the volume holds more than that")
	// ErrStale reports a config of an older generation than one that was obeyed.
	ErrStale = errors.New("a newer decision about the volume was obeyed")
	// ErrInUse reports that a volume is attached and must not be for what is asked.
	ErrInUse = errors.New("the volume is attached")
	// ErrLost reports that a volume was there before and is not now.
	ErrLost = errors.New("the volume was there before and is lost")
	// ErrNoContent reports a volume that is made by Import and by nothing else.
	ErrNoContent = errors.New("the volume waits for a backup")
)

// Volume is everything that is wanted of a volume on its node.
type Volume struct {
	UID        string `json:"uid"`
	Generation int64  `json:"generation"`
	// SizeBytes bounds what it holds, MaxFiles the number of its files and directories.
	SizeBytes int64 `json:"size_bytes"`
	MaxFiles  int64 `json:"max_files"`
	// Block: it is a block device without a file system of ours, and has no number of files.
	Block bool `json:"block,omitempty"`
	// IOBytesPerSecond bounds what each member reads from it, and what each writes to it; 0: no limit. A pool holds block volumes to it;
	// for others it is for the agent.
	IOBytesPerSecond int64 `json:"io_bytes_per_second,omitempty"`
	// Made: it was there, whole, before. If nothing is there now, it was lost: it must not be made anew, which would pass for what was lost.
	Made bool `json:"made,omitempty"`
	// Origin is what it begins as: a snapshot on the same node, or a backup, and then Import makes it. It matters only when the volume is made.
	Origin *api.VolumeOrigin `json:"origin,omitempty"`
	// Snapshots are the UIDs of those that should exist; others are removed.
	Snapshots []string `json:"snapshots,omitempty"`
	// Restore is the last request to go back to a snapshot. It is carried out once, while nothing is attached.
	Restore *api.VolumeRestoreIntent `json:"restore,omitempty"`
	// Attachments are those that should exist, one for each cluster; others are removed.
	Attachments []Attachment `json:"attachments,omitempty"`
	// Purge asks for all of it to be removed.
	Purge bool `json:"purge,omitempty"`
}

// Attachment gives a cluster access to a volume on this node.
type Attachment struct {
	ClusterUID string      `json:"cluster_uid"`
	UserIDs    api.IDRange `json:"user_ids"`
	ReadOnly   bool        `json:"read_only,omitempty"`
}

// State is a volume that a pool found on the node.
type State struct {
	UID        string `json:"uid"`
	Generation int64  `json:"generation"`
	// Ready: it has been made whole. Without it, what is there is debris, or is being made.
	Ready     bool  `json:"ready"`
	SizeBytes int64 `json:"size_bytes"`
	UsedBytes int64 `json:"used_bytes"`
	MaxFiles  int64 `json:"max_files"`
	UsedFiles int64 `json:"used_files"`
	// Snapshots are those that are there, whole.
	Snapshots []SnapshotState `json:"snapshots,omitempty"`
	// Restored is the number of the last restore that was carried out.
	Restored int64 `json:"restored,omitempty"`
	// Attached are the UIDs of the clusters that have access.
	Attached []string `json:"attached,omitempty"`
	// Import is how far the agent is with a backup that the volume is made of; nil: it neither waits for one nor reads one. A pool leaves it nil.
	Import *ImportState `json:"import,omitempty"`
	// Problem is why it is not as wanted; empty otherwise. A pool leaves it empty; the agent fills it in.
	Problem string `json:"problem,omitempty"`
}

// ImportState is how far an agent is with a backup that a volume is made of.
type ImportState struct {
	// Receiving: a backup is being read. ReceivedBytes is how much of it.
	Receiving     bool  `json:"receiving,omitempty"`
	ReceivedBytes int64 `json:"received_bytes,omitempty"`
	// Failure is why the last backup that was sent did not become the volume.
	Failure string `json:"failure,omitempty"`
}

// SnapshotState is a snapshot that a pool found.
type SnapshotState struct {
	UID string `json:"uid"`
	// HeldBytes is the room that the pool keeps for it: as much as its volume may still change of what both share.
	HeldBytes int64 `json:"held_bytes"`
}

// Pool keeps the volumes of a node. Calls for different volumes may be concurrent; calls for one volume never are.
type Pool interface {
	// Describe tells what the node has for volumes. It makes nothing.
	Describe(ctx context.Context) api.VolumePool
	// Apply makes the volume, or changes it, until it is as v wants. The order is: detach, restore or resize, snapshots, attach. On error what was
	// done stays, and Apply may be repeated. A size or a snapshot that can't be had keeps nothing else from being done. It returns ErrFull,
	// ErrTooSmall, ErrStale or ErrInUse as it says there, and ErrLost or ErrNoContent for a volume that is not there and that it must not make.
	Apply(ctx context.Context, v Volume) error
	// Observe returns every volume found on the node, debris included.
	Observe(ctx context.Context) ([]State, error)
	// Dir returns the directory by which members of a cluster have the volume, while it is attached. Root returns that by which the host has it then,
	// with the IDs of the disk. A block volume has neither: Socket returns where machines of the cluster have it, by NBD. One has it at a time.
	Dir(uid, clusterUID string) string
	Root(uid string) string
	Socket(uid, clusterUID string) string
	// Purge removes everything of a volume and verifies by looking that nothing is left. It returns ErrInUse while the volume is attached, or has
	// snapshots that a volume which began as one still needs.
	Purge(ctx context.Context, uid string, generation int64) error
	// Close gives back what the host holds for volumes in memory: mounts and devices. Volumes stay on the disk. It returns ErrInUse while a member has
	// one. An agent that is followed by another, while its members go on, does not call it.
	Close(ctx context.Context) error
}

// Exporter is a pool that writes what a volume holds as an archive (package archive).
type Exporter interface {
	// Export writes an archive of a snapshot, or for "" of what the volume holds at this moment. Other calls may change the volume meanwhile, but for
	// one that purges it and for another Export of it, which end with ErrInUse. Nothing of the copy that it reads is left when it returns, or after a
	// crash once Observe was called. It returns ErrFull if there is no room for as much as a snapshot takes.
	Export(ctx context.Context, uid, snapshot string, out io.Writer) error
}

// Importer is a pool that makes volumes of archives.
type Importer interface {
	// Import makes a volume with what is in an archive. The volume must not be there. It returns once the volume is on the disk, as ready as one that
	// Apply makes, and attached nowhere; after an error nothing of it is ready, and Import may be repeated. It returns ErrFull, ErrTooSmall if the
	// volume can't hold what is in the archive, ErrStale, or the errors of package archive.
	Import(ctx context.Context, v Volume, in io.Reader) error
}

// nameText is how UIDs are written: they become names of files and of devices.
var nameText = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Check returns what keeps a pool from using the names and numbers of v as they are.
func (v *Volume) Check() error {
	if err := CheckUID(v.UID); err != nil {
		return fmt.Errorf("volume: %w", err)
	}
	if !v.Purge && (v.SizeBytes <= 0 || (v.MaxFiles <= 0) != v.Block) {
		return fmt.Errorf("volume %s: a size of %d bytes and %d files", v.UID, v.SizeBytes, v.MaxFiles)
	}
	names := slices.Clone(v.Snapshots)
	if v.Origin.IsSnapshot() {
		names = append(names, v.Origin.VolumeUID, v.Origin.SnapshotUID)
	}
	if v.Restore != nil {
		names = append(names, v.Restore.SnapshotUID)
	}
	for _, a := range v.Attachments {
		names = append(names, a.ClusterUID)
		if a.UserIDs.First == 0 || a.UserIDs.Count == 0 {
			return fmt.Errorf("volume %s: cluster %s has the IDs %d+%d on this host", v.UID, a.ClusterUID, a.UserIDs.First, a.UserIDs.Count)
		}
	}
	for _, name := range names {
		if err := CheckUID(name); err != nil {
			return fmt.Errorf("volume %s: %w", v.UID, err)
		}
	}
	return nil
}

// MayMake returns what keeps a pool from making v by Apply, if nothing of it is there: nil, ErrLost or ErrNoContent. An empty volume would pass for one
// with content.
func (v *Volume) MayMake() error {
	switch {
	case v.Made:
		return ErrLost
	case v.Origin.IsUpload():
		return ErrNoContent
	}
	return nil
}

// CheckUID returns an error for a UID that can't be the name of a file or of a device.
func CheckUID(uid string) error {
	if !nameText.MatchString(uid) {
		return fmt.Errorf("%q is not a UID", uid)
	}
	return nil
}
