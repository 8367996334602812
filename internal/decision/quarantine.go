package decision

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// QuarantineChange is the set of writes of one commit for a quarantined assignment.
type QuarantineChange struct {
	// End frees what the assignment with this ID holds; "" leaves it in quarantine. Spans are the use that ends with it.
	End   string
	Spans []api.UsageSpan
	// Events are recorded after the commit.
	Events []api.Event
}

// ApplyQuarantine turns operations on a quarantined assignment into what one commit writes. An operation that is not known here is an error,
// and nothing is to be written.
func ApplyQuarantine(q api.Quarantine, ops []lifecycle.QuarantineOperation, now time.Time) (QuarantineChange, error) {
	var c QuarantineChange
	for _, op := range ops {
		switch op := op.(type) {
		case lifecycle.EndQuarantine:
			c.End, c.Spans = op.ID, EndQuarantine(q, now).Spans
		case lifecycle.Emit:
			c.Events = append(c.Events, api.Event{
				Time: now, Cluster: q.Assignment.Cluster, Reason: op.Reason, Message: op.Message, Member: op.Member, Node: op.Node,
			})
		default:
			return QuarantineChange{}, &lifecycle.UnhandledOperation{Handler: "the quarantine's decision", Operation: op}
		}
	}
	return c, nil
}
