package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/gpu"
)

const (
	// openPatience bounds the opening of a stream: the connection, the inspection of the environments and the greeting.
	openPatience = 30 * time.Second
	// inspectPatience bounds the wait for an inspection when an earlier one has found something to report instead.
	inspectPatience = 5 * time.Second
)

// opening is what the goroutine that keeps a stream knows of the opening of streams. Nothing is heard on a stream that is being opened, so
// its silence means nothing, and it has a patience of its own.
type opening struct {
	patience, inspectPatience time.Duration
	// underlay is what was last reported of the data network, and underlayEvery how often it is read again.
	underlay      fabric.Underlay
	underlayEvery time.Duration
	// devices and adapters are what was last reported of the node's adapters.
	devices  []api.Device
	adapters []api.Adapter
	// gpus are what was last reported of the node's GPUs. readingGPUs receives what a reading that is under way finds; nil: none is.
	gpus        gpu.Found
	readingGPUs chan gpu.Found
	// inspected receives what an inspection that is under way finds; nil: none is.
	inspected chan []api.EnvironmentOnNode
	// known is what the last one found, valid when there was one.
	known []api.EnvironmentOnNode
	valid bool
}

func newOpening() opening {
	return opening{patience: openPatience, inspectPatience: inspectPatience, underlayEvery: underlayEvery}
}

// errNotOpened ends the opening of a stream.
var errNotOpened = errors.New("the connection to the server was not ready in time; this machine or the server may be overloaded")

// open opens a stream and greets the server on it. The stream ends with ctx, which cancel ends when the opening takes too long.
func (a *Agent) open(agentCtx, ctx context.Context, cancel context.CancelCauseFunc) (*agentstream.ClientConn, error) {
	late := time.AfterFunc(a.opening.patience, func() { cancel(errNotOpened) })
	defer late.Stop()
	stream, err := agentstream.Dial(ctx, a.cfg.Client, a.cfg.Server)
	if err != nil {
		return nil, causeOf(ctx, err)
	}
	context.AfterFunc(ctx, stream.Close) // unblocks Send and Receive
	node := a.cfg.Node
	a.measureUnderlay(ctx, &node)
	a.measureAdapters(ctx, &node)
	a.measureGPUs(agentCtx, ctx, &node)
	if a.cfg.Volumes != nil {
		pool := a.cfg.Volumes.Describe(ctx)
		pool.UnlimitedIO = a.cfg.UnlimitedIO
		node.VolumePool = &pool
	}
	if a.cfg.Sharer != nil {
		sharing := a.cfg.Sharer.Describe(ctx)
		node.VolumeSharing = &sharing
	}
	if node.Environments, err = a.environments(agentCtx, ctx); err == nil {
		err = stream.Send(agentstream.Up{Hello: &agentstream.Hello{Run: a.id, Node: node}})
	}
	if err != nil {
		stream.Close()
		return nil, fmt.Errorf("greet the server: %w", causeOf(ctx, err))
	}
	return stream, nil
}

// causeOf returns why ctx has ended, or err while it has not.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// environments returns which environments can run here. An inspection reads the machine's root, and a read from a lost disk or an overloaded
// root server may hang, which nothing can end. So it runs by itself, one at a time. While it hangs, what the one before has found is
// reported again: the members of this node run on, and must not be given up for it.
func (a *Agent) environments(agentCtx, ctx context.Context) ([]api.EnvironmentOnNode, error) {
	o := &a.opening
	if o.inspected == nil {
		inspected := make(chan []api.EnvironmentOnNode, 1)
		o.inspected = inspected
		go func() { inspected <- a.cfg.Inspect(agentCtx) }()
	}
	var late <-chan time.Time // the first has nothing to fall back on
	if o.valid {
		late = time.After(o.inspectPatience)
	}
	select {
	case o.known = <-o.inspected:
		o.inspected, o.valid = nil, true
	case <-late:
		a.cfg.Log.WarnContext(ctx, "the environments can't be inspected in time; reporting the earlier result", "patience", o.inspectPatience)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return o.known, nil
}
