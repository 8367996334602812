// Package dataset is the contract between the leader and the nodes about datasets: what a node should have (Wanted), and what it has (State).
//
// It checks what users write of files (check.go), and decides which node fetches from where (plan.go). The package must never touch a file or a
// network: replica does that, and transfer. Start with Plan.
package dataset

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
)

// Wanted is what a node is to do about a dataset.
type Wanted struct {
	UID  string `json:"uid"`
	Name string `json:"name"`
	// Keep: the node should have a replica, and keep it. Without it, a replica may go when room is needed.
	Keep bool `json:"keep,omitempty"`
	// Purge: the dataset was deleted, and so is the replica.
	Purge bool `json:"purge,omitempty"`
	// Evictions: a replica that was made under a smaller number goes, unless members have it. Checks is the number of the last verification.
	Evictions int64 `json:"evictions,omitempty"`
	Checks    int64 `json:"checks,omitempty"`
	// Files are the dataset's, for a node that should have a replica.
	Files []api.DatasetFile `json:"files,omitempty"`
	// Credential is what the files' sources ask for; nil: nothing. Such a dataset does not go from node to node.
	Credential *api.DatasetCredential `json:"credential,omitempty"`
	// Wait: another node is fetching the dataset from its sources, and this one takes it from there.
	Wait bool `json:"wait,omitempty"`
	// Contents are the files as a node that holds them has read them, in the order of Files; empty: they come from the sources.
	Contents []Content `json:"contents,omitempty"`
	// Peers are the URLs of nodes that hold the dataset or take it from others.
	Peers []string `json:"peers,omitempty"`
}

// Content is what a verified file holds.
type Content struct {
	SizeBytes int64        `json:"size_bytes"`
	SHA256    image.Digest `json:"sha256"`
	// Chunks is the digest of its chunk list, and ListBytes that list's size.
	Chunks    image.Digest `json:"chunks"`
	ListBytes int64        `json:"list_bytes"`
}

// Root is the content as nodes pass it on.
func (c Content) Root() image.Root {
	return image.Root{
		Blob: image.Blob{Digest: c.SHA256, SizeBytes: c.SizeBytes}, ChunkBytes: image.ChunkBytes, Chunks: image.Blob{Digest: c.Chunks, SizeBytes: c.ListBytes},
	}
}

// State is a dataset on a node.
type State struct {
	UID string `json:"uid"`
	// Whole: all files are there, and were verified.
	Whole     bool  `json:"whole,omitempty"`
	HeldBytes int64 `json:"held_bytes"`
	// OfBytes is the size of all files, as far as it is known.
	OfBytes int64 `json:"of_bytes"`
	// InUse: members have it.
	InUse bool `json:"in_use,omitempty"`
	// Evictions and Checked are the numbers under which it was made, and verified last.
	Evictions int64 `json:"evictions,omitempty"`
	Checked   int64 `json:"checked,omitempty"`
	// FromSourceBytes and FromPeersBytes came since the agent started.
	FromSourceBytes int64 `json:"from_source_bytes,omitempty"`
	FromPeersBytes  int64 `json:"from_peers_bytes,omitempty"`
	// Failed: the last attempt to fetch it failed, and Message says why.
	Failed  bool   `json:"failed,omitempty"`
	Message string `json:"message,omitempty"`
	// Fetched is how a whole dataset came here, since the agent started; nil: it was here before.
	Fetched *Fetched `json:"fetched,omitempty"`
	// Contents are the files of a whole dataset that may go to other nodes.
	Contents []Content `json:"contents,omitempty"`
}

// CacheRoom are the bounds of a node's caches.
type CacheRoom struct {
	// Bytes are for all of them together.
	Bytes int64 `json:"bytes"`
	// BlockBytes is what is fetched at once, and Prefetch how many blocks ahead of readers.
	BlockBytes int64 `json:"block_bytes"`
	Prefetch   int   `json:"prefetch,omitempty"`
}

// Reading is what a member has read through the cache of its node since its agent started.
type Reading struct {
	// Member is its assignment ID.
	Member string `json:"member"`
	// Bytes were sent to it by connections that have ended. Open are those that have not.
	Bytes int64 `json:"bytes"`
	Open  int   `json:"open,omitempty"`
	// Waits is how often it asked for something and waited for the answer, and WaitedSeconds how long in all, added up over its connections.
	Waits         int64   `json:"waits,omitempty"`
	WaitedSeconds float64 `json:"waited_seconds,omitempty"`
	// At is when the last of its connections ended, by the clock of the node.
	At time.Time `json:"at"`
}

// Claim is a dataset that a member has.
type Claim struct {
	UID  string `json:"uid"`
	Name string `json:"name"`
	// Way is how the member reads it; empty: a copy.
	Way api.DatasetWay `json:"way,omitempty"`
	// Port is where the member reaches the cache of one that is cached, on its own loopback.
	Port int `json:"port,omitempty"`
	// Metered: what the member reads through the cache is counted, and how long it waits, for what was predicted to be compared with. That costs some of the speed.
	Metered bool `json:"metered,omitempty"`
}

// Copied reports whether the member has a copy.
func (c Claim) Copied() bool { return c.Way == "" || c.Way == api.DatasetCopy }
