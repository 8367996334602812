// Package decision turns operations on a cluster, a quarantine or a machine into the writes of one commit.
//
// The package is pure, and the only place where a cluster's record changes. The controller and the simulator both commit the result of
// Apply, so the rules of the record are in one place. A lost assignment leaves its chunk, and its name waits in Lost. A chunk that is
// wholly clean is removed. The commit that ends a stretch of use also records that use. The package must never decide which operations
// are needed. Start with Apply.
package decision

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Cluster is what is committed of one cluster.
type Cluster struct {
	Intent *api.ClusterIntent // nil when it is gone
	Record *api.ClusterRecord // nil before the first decision
	// Chunks are those that Record.Chunks names, in that order.
	Chunks []Chunk
	// Beside are assignments of other clusters that hold addresses on the project's networks which this one joins.
	Beside []api.Assignment
}

// Chunk is an assignment chunk with its content.
type Chunk struct {
	Ref         api.ChunkRef
	Assignments []api.Assignment
}

// Batch is new content of chunks: any number of assignments, cut into chunks by who writes them.
type Batch struct {
	Assignments []api.Assignment
	Releasing   bool
	ReleasedAt  *time.Time
}

// Change is the set of writes of one commit.
type Change struct {
	// Record is the record after the commit. Its Chunks are the old ones that stay; those of Add are appended by the writer.
	Record api.ClusterRecord
	// Add are new chunks, written ahead of the record.
	Add []Batch
	// Quarantines pass from the cluster to quarantine in the same commit.
	Quarantines []api.Quarantine
	// Networks are new, and stored with the record.
	Networks []api.Network
	// Joins are the UIDs of the project's networks on which the commit gives the cluster ports, in order.
	Joins []string
	// Usage is the record of the spans that end with this commit, nil for none.
	Usage *api.UsageRecord
	// Forget removes the cluster instead of writing Record; Usage is written all the same.
	Forget bool
	// Dirty: there is something to write.
	Dirty bool
	// Events are recorded after the commit; WakeAt asks for another look, zero for none.
	Events []api.Event
	WakeAt time.Time
	// Needs are passed on to admission.
	Needs []Need
}
