package agent

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// inbox is what was heard on a stream and loop has not come to yet: the newest desired state, and what was acknowledged last of each run.
// However long loop takes, the stream is read on: else the server's pings would stay unanswered, and a node be given up that hears everything.
type inbox struct {
	filled chan struct{}

	mu      sync.Mutex
	desired *agentstream.Desired
	acks    map[string]heardAck
}

// heardAck is an acknowledgement; first: it is that of a run whose output was not asked for on this stream before.
type heardAck struct {
	agentstream.LogAck
	first bool
}

func newInbox() *inbox {
	return &inbox{filled: make(chan struct{}, 1), acks: map[string]heardAck{}}
}

func (i *inbox) fill() {
	select {
	case i.filled <- struct{}{}:
	default:
	}
}

// order puts a desired state in the place of those before it.
func (i *inbox) order(desired *agentstream.Desired) {
	i.mu.Lock()
	i.desired = desired
	i.mu.Unlock()
	i.fill()
}

// ack puts an acknowledgement in the place of the one before of its run. A request in it stays one, as it does at the server.
func (i *inbox) ack(ack agentstream.LogAck, first bool) {
	i.mu.Lock()
	before := i.acks[ack.JobID]
	ack.Again = ack.Again || before.Again
	i.acks[ack.JobID] = heardAck{ack, first || before.first}
	i.mu.Unlock()
	i.fill()
}

// take empties the inbox. The acknowledgements are in the order of their runs.
func (i *inbox) take() (*agentstream.Desired, []heardAck) {
	i.mu.Lock()
	defer i.mu.Unlock()
	desired, acks := i.desired, make([]heardAck, 0, len(i.acks))
	for _, run := range slices.Sorted(maps.Keys(i.acks)) {
		acks = append(acks, i.acks[run])
	}
	i.desired = nil
	clear(i.acks)
	return desired, acks
}

// deliver hands loop what arrives in the inbox of a stream, until ctx ends. number is the stream's, silence what it is heard under; fail ends
// the stream.
func (a *Agent) deliver(ctx context.Context, in *inbox, number, silence int64, fail context.CancelCauseFunc) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-in.filled:
		}
		a.post(ctx, func() {
			desired, acks := in.take()
			if desired != nil {
				if err := a.hear(ctx, desired, silence); err != nil {
					fail(err) // on the next stream everything is said again
				}
			}
			for i := range acks {
				a.ackLog(&acks[i].LogAck, number, acks[i].first)
			}
		})
	}
}
