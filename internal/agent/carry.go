package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
)

// A successor may go on from a member on another node. Its agent asks the server for that member's state, or for the member itself, and the server
// connects it with the other agent, which gives what it was asked for if its leader wants that, too. Neither agent decides who has the member:
// that is between the two drivers, and what they can't decide is the leader's.

const (
	// maxCarries bounds how many members a node fetches at once: they share its network, and one that moves alone stands still for less long.
	maxCarries = 2
	// carryDeadline bounds a transfer that goes on, carrySilence one that does not.
	carryDeadline = 24 * time.Hour
	carrySilence  = 2 * time.Minute
	// carryLook is how often the progress of a transfer is reported.
	carryLook = time.Second
	// reportPatience is for the report of a move, which comes after the member.
	reportPatience = 20 * time.Second
)

// elsewhere reports whether a member goes on from one on another node than this.
func (m *memberState) elsewhere(node string) bool {
	return m.want != nil && m.want.Assignment.IsSuccessor() && m.want.FromNode != "" && m.want.FromNode != node
}

// left reports whether a member has gone to another node, and nothing of it stands by here.
func (m *memberState) left() bool {
	return m.departed && !m.busy && !alive(m.state) && m.state != driver.StateHandedOver
}

// reconsider ends an operation that the leader no longer wants.
func (m *memberState) reconsider() {
	if m.revocable != nil && !m.revocable.wanted(m.want) {
		m.revocable.end()
	}
}

// revocable is an operation on a member that ends early once the leader no longer wants it, such as a transfer.
type revocable struct {
	// wanted reports whether the leader still wants the operation.
	wanted func(*agentstream.Member) bool
	end    context.CancelFunc
}

// revocably returns the context of an operation that ends early once wanted reports false.
func (m *memberState) revocably(ctx context.Context, wanted func(*agentstream.Member) bool) context.Context {
	ctx, end := context.WithCancel(ctx)
	m.revocable = &revocable{wanted: wanted, end: end}
	return ctx
}

// offer gives what another node's agent asks for: the end of a pipe that a driver writes to. It asks loop.
func (a *Agent) offer(ctx, life context.Context, asked agentstream.Tunnel) (io.ReadWriteCloser, error) {
	type answer struct {
		conn net.Conn
		err  error
	}
	answered := make(chan answer, 1)
	a.post(ctx, func() {
		conn, err := a.give(life, asked)
		answered <- answer{conn, err}
	})
	select {
	case got := <-answered:
		if got.err != nil {
			return nil, got.err
		}
		return got.conn, nil
	case <-ctx.Done():
		return nil, ctx.Err() // what is given meanwhile finds nobody, and ends
	}
}

// give begins to give a member's state, or the member itself, if its leader wants that. Loop calls it.
func (a *Agent) give(ctx context.Context, asked agentstream.Tunnel) (net.Conn, error) {
	m := a.members[asked.MemberID]
	switch {
	case m == nil || m.want == nil || m.want.Release || m.driver == nil:
		return nil, errNoMember
	case !a.hearing.current():
		return nil, errNotKnown
	case m.left() || m.state == driver.StateHandedOver:
		return nil, fmt.Errorf("%w: the member has been sent already", agentstream.ErrOver)
	case m.busy:
		return nil, errors.New("the member is being worked on")
	case asked.Target == agentstream.TargetState:
		return a.giveState(ctx, m)
	default:
		return a.giveMember(ctx, m, asked.Successor)
	}
}

var errNoMember = errors.New("this node has no such member")

// giveState begins to write a saved member to the returned connection.
func (a *Agent) giveState(ctx context.Context, m *memberState) (net.Conn, error) {
	saver, ok := m.driver.(driver.Saver)
	if !ok {
		return nil, noSaver(m.driver)
	}
	if m.state != driver.StateSaved {
		return nil, fmt.Errorf("the member is %s here, not saved", m.state)
	}
	here, there := net.Pipe()
	id := m.id
	life := m.revocably(ctx, func(w *agentstream.Member) bool { return w != nil && !w.Release })
	a.perform(ctx, m, task{what: "export", life: life, deadline: carryDeadline, call: func(ctx context.Context) error {
		defer context.AfterFunc(ctx, func() { _ = here.Close() })()
		return errors.Join(saver.Export(ctx, id, here), here.Close())
	}}, func(err error) {
		if err != nil {
			a.cfg.Log.WarnContext(ctx, "the state of a member was not carried to its new node", "member", id, "error", err)
		}
	})
	return there, nil
}

// giveMember begins to move a running member to its successor at the returned connection's other end.
func (a *Agent) giveMember(ctx context.Context, m *memberState, successor string) (net.Conn, error) {
	mover, ok := m.driver.(driver.Mover)
	if !ok {
		return nil, fmt.Errorf("%w: members of stack %q can't be moved", agentstream.ErrOver, m.driver.Stack())
	}
	switch move := m.want.Move; {
	case move == nil || move.To != successor:
		return nil, fmt.Errorf("this node has no order to move the member to %s", successor)
	case m.state != driver.StateRunning:
		return nil, fmt.Errorf("the member is %s here, not running", m.state)
	}
	here, there := net.Pipe()
	id, limits := m.id, m.want.Move.Limits
	life := m.revocably(ctx, func(w *agentstream.Member) bool {
		return w != nil && !w.Release && w.Move != nil && w.Move.To == successor
	})
	m.departed = true // its end on this node is none, from now on
	a.perform(ctx, m, task{what: "send", life: life, deadline: carryDeadline, call: func(ctx context.Context) error {
		return errors.Join(a.send(ctx, mover, id, here, limits), here.Close())
	}}, func(err error) {
		switch {
		case err == nil:
			m.state, m.ready, m.digest = driver.StatePrepared, false, ""
			return
		case !errors.Is(err, driver.ErrUndecided):
			m.departed = false
		}
		a.cfg.Log.WarnContext(ctx, "a member was not moved", "member", id, "to", successor, "error", err)
		a.look(ctx, m)
	})
	return there, nil
}

// send moves a member, and reports to its receiver what that took. That it was sent, or may have been, is noted before: this node must not start it
// again.
func (a *Agent) send(ctx context.Context, mover driver.Mover, id string, conn net.Conn, limits driver.MoveLimits) error {
	if err := a.noteDeparture(id); err != nil {
		return err
	}
	failpoint.Hit("agent.after-departure")
	report, err := mover.Send(ctx, id, conn, limits)
	failpoint.Hit("agent.after-send")
	switch {
	case errors.Is(err, driver.ErrUndecided):
		return err
	case err != nil:
		return errors.Join(err, a.forgetDeparture(id))
	}
	_ = conn.SetDeadline(time.Now().Add(reportPatience))
	if err := json.NewEncoder(conn).Encode(report); err != nil { // the member runs there all the same
		a.cfg.Log.WarnContext(ctx, "what a move took can't be reported to the member's new node", "member", id, "error", err)
	}
	return nil
}

// takeBack lets a member go on here that was handed over in vain.
func (a *Agent) takeBack(ctx context.Context, m *memberState) {
	a.run(ctx, m, "take back", pauseDeadline, a.ifKnown(m, func(ctx context.Context) error {
		mover, ok := m.driver.(driver.Mover)
		if !ok {
			return fmt.Errorf("members of stack %q can't be taken back", m.driver.Stack())
		}
		return errors.Join(mover.TakeBack(ctx, m.id), a.forgetDeparture(m.id))
	}), func(m *memberState) { m.state, m.departed = driver.StateRunning, false })
}

// inTheWay reports whether this node still has something of the member that a successor goes on from elsewhere: what an earlier attempt left.
func (a *Agent) inTheWay(from string) bool {
	other := a.members[from]
	return other != nil && (other.busy || other.state != driver.StateAbsent)
}

// hasLeftover reports whether a copy of the state that a released successor was to go on from is still here: the agent found it when it started, and
// is cleaning it.
func (a *Agent) hasLeftover(m *memberState) bool {
	left := a.members[m.want.Assignment.From]
	return left != nil && left.want == nil && (left.busy || left.state != driver.StateAbsent)
}

// fetch lets a member go on that is on another node.
func (a *Agent) fetch(ctx context.Context, m *memberState, d driver.Driver, want agentstream.Member) error {
	target := agentstream.TargetState
	if want.Live {
		target = agentstream.TargetMove
	}
	client, done := a.tunnelClient()
	life, end := context.WithCancel(context.WithoutCancel(ctx)) // the report of a move comes after it
	defer context.AfterFunc(ctx, end)()
	tunnel, err := agentstream.FetchCarried(life, client, a.cfg.Server, target, want.Assignment.ID)
	if err != nil {
		end()
		done()
		return fmt.Errorf("fetching it from node %s: %w", want.FromNode, err)
	}
	here, there := net.Pipe()
	go func() {
		defer done()
		agentstream.Splice(life, there, tunnel)
	}()
	in := &counted{Conn: here}
	began := time.Now()
	stop := a.followArrival(ctx, m, in, want.Assignment.MemoryBytes(), end)
	defer stop()
	if want.Live {
		return a.receive(ctx, life, m, d, want, in, end)
	}
	defer end()
	stood, err := restoreFrom(ctx, d, want, in)
	if err != nil {
		return err
	}
	stood += time.Since(began) // all the time: it is a move of a member that is saved first
	a.noteMoved(ctx, m, driver.MoveReport{Downtime: stood, Total: stood, Bytes: in.bytes.Load()})
	return nil
}

// receive takes a member that runs; life is that of the connection, end ends it. A move that has broken off is not tried again by itself: whether its member is still
// there to be sent is for the leader to find out.
func (a *Agent) receive(ctx, life context.Context, m *memberState, d driver.Driver, want agentstream.Member, conn net.Conn, end func()) error {
	mover, ok := d.(driver.Mover)
	if !ok {
		end()
		return fmt.Errorf("%w: members of stack %q can't be moved", agentstream.ErrOver, d.Stack())
	}
	if err := mover.Receive(ctx, want.Member, want.Assignment.From, conn); err != nil {
		_ = conn.Close()
		time.AfterFunc(reportPatience, end) // what was said last still arrives
		return &overError{err}
	}
	go func() {
		defer end()
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(reportPatience))
		var report driver.MoveReport
		if err := json.NewDecoder(conn).Decode(&report); err != nil {
			a.cfg.Log.WarnContext(ctx, "what a move took is not known", "member", want.Assignment.ID, "error", err)
			return
		}
		a.noteMoved(life, m, report)
	}()
	return nil
}

// overError is a failure for good.
type overError struct{ error }

func (e *overError) Unwrap() error        { return e.error }
func (e *overError) Is(target error) bool { return target == agentstream.ErrOver }

// restoreFrom makes a saved member of what comes over conn, and lets it go on. Nothing of the saved one stays here, whatever happens. It returns how
// long the member had stood still before.
func restoreFrom(ctx context.Context, d driver.Driver, want agentstream.Member, conn net.Conn) (stood time.Duration, err error) {
	saver, ok := d.(driver.Saver)
	if !ok {
		return 0, noSaver(d)
	}
	from := want.Assignment.From
	stood, err = saver.Import(ctx, want.Member, from, conn)
	_ = conn.Close()
	if err == nil {
		err = saver.Restore(ctx, want.Member, from)
	}
	cleaning, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanDeadline)
	defer cancel()
	if left := d.Clean(cleaning, from); left != nil && err != nil { // else the member runs; what is left goes with it
		err = errors.Join(err, left)
	}
	return stood, err
}

// counted counts what was read from a connection.
type counted struct {
	net.Conn
	bytes atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// followArrival reports how much of a member has come, until the returned function is called, and calls end when nothing comes for too long.
func (a *Agent) followArrival(ctx context.Context, m *memberState, in *counted, of int64, end func()) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	say := func(arriving *agentstream.Arriving) {
		a.post(ctx, func() {
			if ctx.Err() == nil {
				m.arriving = arriving
			}
		})
	}
	say(&agentstream.Arriving{OfBytes: of})
	go func() {
		look := time.NewTicker(carryLook)
		defer look.Stop()
		silent, last := time.Now(), int64(0)
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-look.C:
				bytes := in.bytes.Load()
				if bytes != last {
					silent, last = now, bytes
					say(&agentstream.Arriving{Bytes: bytes, OfBytes: of})
				} else if now.Sub(silent) > carrySilence {
					end()
				}
			}
		}
	}()
	return cancel
}

func (a *Agent) noteMoved(ctx context.Context, m *memberState, report driver.MoveReport) {
	a.post(ctx, func() { m.moved = &report })
}
