package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/member"
	"github.com/nearmetal/nearmetal/internal/tracing"
)

// outbox is what waits to go up: the newest observation, and pieces of job output in order.
type outbox struct {
	changed chan struct{}

	mu     sync.Mutex
	newest *agentstream.Observed
	stream *agentstream.ClientConn
	number int64 // of the stream, counted from 1
	spans  []tracing.Span
}

func (o *outbox) set(observed agentstream.Observed) {
	o.mu.Lock()
	same := o.newest != nil && reflect.DeepEqual(*o.newest, observed)
	o.newest = &observed
	o.mu.Unlock()
	if same {
		return
	}
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// sendLog sends a piece of output on the present stream. It blocks while the server does not read, which holds up the member
// that prints. A piece that was not asked for on this very stream is dropped: the server has yet to say where its stored
// output ends, pieces before this one may have gone with the former stream, and it would take the gap for lost output.
func (o *outbox) sendLog(log member.Log) {
	o.mu.Lock()
	stream := o.stream
	if log.Request != o.number {
		stream = nil
	}
	o.mu.Unlock()
	if stream != nil {
		_ = stream.Send(agentstream.Up{Log: &agentstream.Log{JobID: log.JobID, Offset: log.Offset, Data: log.Data}})
	}
}

// attach makes this the present stream and returns its number.
func (o *outbox) attach(stream *agentstream.ClientConn) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stream = stream
	o.number++
	return o.number
}

// connect keeps a stream to the server, without end and with growing pauses.
func (a *Agent) connect(ctx context.Context) {
	pause, trouble := reconnectMin, trouble{}
	for ctx.Err() == nil {
		began := time.Now()
		taken, err := a.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if taken {
			trouble.reset()
		}
		if time.Since(began) > 10*reconnectMax {
			pause = reconnectMin
		}
		a.mind(ctx, err)
		if times := trouble.worthSaying(err, time.Now()); times > 0 {
			level := slog.LevelWarn
			if refused := new(agentstream.Refusal); errors.As(err, &refused) {
				level = slog.LevelError // somebody has to do something
			}
			a.cfg.Log.Log(ctx, level, "not connected to the server; trying again", "server", a.cfg.Server, "error", err, "attempts", times)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, reconnectMax)
	}
}

// mind does what can be done about the end of a stream before the next one is opened.
func (a *Agent) mind(ctx context.Context, err error) {
	refused := new(agentstream.Refusal)
	if !errors.As(err, &refused) || a.cfg.Refused == nil {
		return
	}
	if err := a.cfg.Refused(ctx, refused); err != nil {
		a.cfg.Log.WarnContext(ctx, "the node can't get a certificate", "error", err)
	}
}

// errRenewed ends a stream that goes by a connection of the former certificate.
var errRenewed = errors.New("the node's certificate was renewed")

// session is the life of one stream. It always returns an error, and whether the server took the agent before.
func (a *Agent) session(agentCtx context.Context) (taken bool, err error) {
	ctx, cancel := context.WithCancelCause(agentCtx)
	defer cancel(nil)
	stream, err := a.open(agentCtx, ctx, cancel)
	if err != nil {
		return false, err
	}
	defer stream.Close()
	number, silence := a.outbox.attach(stream), a.hearing.begin()
	defer a.outbox.attach(nil)
	pings, heard, sends := make(chan int64, 1), newInbox(), &pace{}
	go func() { cancel(a.sendObservations(ctx, stream, sends, pings)) }()
	go func() { cancel(a.listenFor(ctx, stream, silence)) }()
	a.watchNode(ctx, stream, cancel)
	go a.deliver(ctx, heard, number, silence, cancel)
	go func() {
		select {
		case <-a.cfg.Renewed:
			cancel(errRenewed)
		case <-ctx.Done():
		}
	}()
	requested, wanted := map[string]bool{}, map[string]bool{} // runs of jobs
	for {
		down, err := stream.Receive()
		if err != nil {
			return taken, fmt.Errorf("the stream to the server ended: %w", causeOf(ctx, err))
		}
		if !a.hearing.heard(silence) {
			return taken, errSilence // what is read now was said before it
		}
		if down.Refused != "" {
			return taken, &agentstream.Refusal{Reason: down.Refused}
		}
		if !taken { // a server that refuses an agent says so before anything else
			taken = true
			a.cfg.Log.InfoContext(ctx, "connected to the server", "server", a.cfg.Server)
		}
		switch {
		case down.Desired != nil:
			if runs := down.Desired.Runs(); !maps.Equal(runs, wanted) {
				wanted = runs
				sends.pay()
			}
			forgetEnded(requested, wanted)
			heard.order(down.Desired)
		case down.Ping != nil:
			select {
			case <-pings: // an answer to the newest answers those before it
			default:
			}
			pings <- down.Ping.Seq
		case down.Tunnel != nil:
			go a.tunnel(agentCtx, *down.Tunnel)
		case down.CountHome != nil:
			go a.countHome(ctx, stream, *down.CountHome)
		case down.CheckHost != nil:
			go a.checkHost(ctx, stream, *down.CheckHost)
		case down.CheckNetwork != nil:
			go a.checkNetwork(ctx, stream, *down.CheckNetwork)
		case down.Measure != nil:
			go a.measure(ctx, stream, *down.Measure)
		case down.LogAck != nil:
			first := !requested[down.LogAck.JobID]
			requested[down.LogAck.JobID] = true
			heard.ack(*down.LogAck, first)
		}
	}
}

// watchNode sends what is measured on a stream, and ends it when what was reported at its beginning is no longer true.
func (a *Agent) watchNode(ctx context.Context, stream *agentstream.ClientConn, cancel context.CancelCauseFunc) {
	go func() { cancel(a.sendCounts(ctx, stream)) }()
	go func() { cancel(a.sendUses(ctx, stream)) }()
	if a.cfg.Faults != nil {
		go func() { cancel(a.sendFaults(ctx, stream)) }()
	}
	if a.cfg.Underlay != nil {
		reported := a.opening.underlay
		go func() { cancel(a.watchUnderlay(ctx, reported)) }()
	}
	if a.cfg.Adapters != nil {
		devices, reported := a.opening.devices, a.opening.adapters
		go func() { cancel(a.watchAdapters(ctx, devices, reported)) }()
	}
	if a.cfg.GPUs != nil {
		reported := a.opening.gpus
		go func() { cancel(a.watchGPUs(ctx, reported)) }()
	}
}

// forgetEnded drops the runs that are no longer wanted from those whose output was asked for: a stream may outlive any number of them.
func forgetEnded(requested, wanted map[string]bool) {
	maps.DeleteFunc(requested, func(run string, _ bool) bool { return !wanted[run] })
}

// Observations follow what members say, and there a tenant is root: beyond a burst they are sent at a steady pace, the newest only. Jobs are
// asked for by users, who wait for them: a desired state that begins or ends some pays for what is said of them.
const (
	observationBurst      = 50
	observationsPerSecond = 20
	observationsForRuns   = 2
)

// pace bounds how often something is done. The zero value has a whole burst.
type pace struct {
	mu    sync.Mutex
	spent float64
	last  time.Time
}

// pay takes back what is spent on a desired state with other runs of jobs.
func (p *pace) pay() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spent = max(0, p.spent-observationsForRuns)
}

// take returns 0 and counts once, or how long to wait before asking again.
func (p *pace) take(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spent = max(0, p.spent-now.Sub(p.last).Seconds()*observationsPerSecond)
	p.last = now
	if wait := p.spent + 1 - observationBurst; wait > 0 {
		return time.Duration(wait / observationsPerSecond * float64(time.Second))
	}
	p.spent++
	return 0
}

// listenFor returns when nothing was heard on the stream for too long. Bytes of a long message count, too.
func (a *Agent) listenFor(ctx context.Context, stream *agentstream.ClientConn, number int64) error {
	look := time.NewTicker(min(time.Second, a.hearing.patience/5))
	defer look.Stop()
	reads := stream.Reads()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
		}
		before := reads
		if reads = stream.Reads(); reads != before {
			a.hearing.heard(number)
		}
		if !a.hearing.goesOn(number) {
			return errSilence
		}
	}
}

// sendObservations sends the newest observation when it changed, and answers pings.
func (a *Agent) sendObservations(ctx context.Context, stream *agentstream.ClientConn, sends *pace, pings <-chan int64) error {
	fresh := true // everything is said anew on every stream
	answer := func(seq int64) error {
		return stream.Send(agentstream.Up{Heartbeat: &agentstream.Heartbeat{Time: time.Now(), Ping: seq}})
	}
	answerWaiting := func() error {
		select {
		case seq := <-pings:
			return answer(seq)
		default:
			return nil
		}
	}
	for {
		var again <-chan time.Time
		a.outbox.mu.Lock()
		newest := a.outbox.newest
		a.outbox.mu.Unlock()
		if fresh && newest != nil {
			if wait := sends.take(time.Now()); wait > 0 {
				again = time.After(wait)
			} else if err := a.sendSpans(stream); err != nil { // before the word that a member is clean, after which nobody knows it
				return err
			} else if err := stream.SendObserved(newest, answerWaiting); err != nil {
				return err
			} else {
				fresh = false
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again:
		case <-a.outbox.changed:
			fresh = true
		case seq := <-pings:
			if err := answer(seq); err != nil {
				return err
			}
		}
	}
}
