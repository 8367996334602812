package apiserver

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/situation"
)

// Live is what the node agents last reported. It is memory, not state: a new leader's is empty until the agents re-report.
type Live interface {
	situation.HeardVolumes
	// Member returns what the executors of an assignment last said about it, and false when they have said nothing yet.
	Member(a *api.Assignment) (phase api.MemberPhase, message string, ok bool)
	// OnMachine returns what the record of a whole machine tells of its member, until the machine's own agent speaks for that; false from then on.
	OnMachine(a *api.Assignment) (phase api.MemberPhase, message string, told bool)
	// Boot returns the name of the boot that a member runs, "" for its first and for one that is not heard of.
	Boot(a *api.Assignment) string
	// Size tells the number of the size that an assignment's member has, and why it does not have the size that it is to have.
	Size(a *api.Assignment) (number int64, unsized string)
	// Mounted tells the number of the volumes that an assignment's member has, and why it does not have those that it is to have.
	Mounted(a *api.Assignment) (number int64, unmounted string)
	// Layers returns the number of the layers that an assignment's member has (api.ClusterIntent.LayersNumber).
	Layers(a *api.Assignment) int64
	// Condition tells the number of the network condition that an assignment's member has (api.ClusterIntent.ConditionNumber), and why it does not have that
	// of its cluster.
	Condition(a *api.Assignment) (number int64, missing string)
	// Arriving returns how many bytes of a successor have come from another node, of about how many; 0, 0: that is not known.
	Arriving(a *api.Assignment) (bytes, ofBytes int64)
	// Node returns a node's phase, the time its agent was last heard (zero: never) and what is wrong, if anything is.
	Node(name string) (phase api.NodePhase, lastSeen time.Time, message string)
	// Datasets returns what nodes say of datasets.
	Datasets() []plan.Node
	// Changed returns a channel that is closed at the next change of what Member or Node return. Take the channel first,
	// then read: so no change is missed.
	Changed() <-chan struct{}
	// ChangedNodes returns the nodes that were told about or from after a serial number, and the number that this is current to; after 0
	// come all. Phases that change by the clock alone are not among them.
	ChangedNodes(after uint64) (nodes []string, now uint64)
}

// Logs is the stored output of jobs, by the ID of the run (api.Job.RunID).
type Logs interface {
	// ReadLog copies stored output of the run, from offset on, into p. It returns 0 and no error when there is none (yet).
	ReadLog(runID string, p []byte, offset int64) (int, error)
	// LogChanged returns a channel that is closed when more output of the run is stored. Take the channel first, then read.
	LogChanged(runID string) <-chan struct{}
	// LogRemoved reports whether the stored output of the run was removed to make room for that of others.
	LogRemoved(runID string) bool
}
