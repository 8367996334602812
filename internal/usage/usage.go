// Package usage adds up who used what, and when.
//
// It is pure: spans, written by the commits that end them, and what is held now give totals for any period, exact to the nanosecond.
// Nothing is counted while time passes, so nothing is lost with a crash. Capacity is conserved: allocated + cleaning + idle + down.
// Start with Report, which goes through the records; Decay is what fair share orders by, from sums of them (Past).
package usage

import (
	"errors"
	"iter"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Open is an assignment that still holds its room.
type Open struct {
	Cluster, UID, Project, User string
	Assignment                  *api.Assignment
	// ReleasedAt is set when it is being cleaned; quarantined ones are such, too.
	ReleasedAt *time.Time
}

// Held is a volume that holds room now. Of one without an intent, the name says the project.
type Held struct {
	Volume *api.VolumeIntent
	Record *api.VolumeRecord
}

// Input is everything totals depend on.
type Input struct {
	// Project limits the rows of a report to those of a project; "": all.
	Project string
	// Cluster tells of which clusters, by their full names, a report has rows; nil: of all.
	Cluster func(full string) bool
	Now     time.Time
	// Records may be many: they are gone through, more than once if need be, and not kept. nil: there are none.
	Records iter.Seq2[*api.UsageRecord, error]
	Open    []Open
	Volumes []Held
	// Nodes are the present node spans. Former are those that ended after a time, and may be many; nil: there are none.
	Nodes  []*api.NodeSpan
	Former func(since time.Time) iter.Seq2[*api.NodeSpan, error]
	// Energy are the records of nodes' energy that may be of a time; nil: there are none.
	Energy func(from, to time.Time) iter.Seq2[*api.EnergyRecord, error]

	atOnce int // for tests: instead of stretchesAtOnce
}

// counts reports whether use is among what the rows of a report are of.
func (in *Input) counts(o *owner) bool {
	return (in.Project == "" || o.project == in.Project) && (in.Cluster == nil || o.cluster != "" && in.Cluster(o.cluster))
}

// ErrRecords: the records could not be read; nothing is wrong with what was asked for.
var ErrRecords = errors.New("the records of usage can't be read")
