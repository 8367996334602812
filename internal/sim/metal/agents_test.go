package metal

import (
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/controller"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/monitor"
)

// agents are the node agents as a server knows them: who is connected, and when they were heard last.
type agents struct {
	mu      sync.Mutex
	of      map[string]*heardAgent
	changed chan struct{}
	now     func() time.Time
	started time.Time
}

type heardAgent struct {
	connected bool
	seen      time.Time
	desired   agentstream.Desired
}

var _ controller.Agents = (*agents)(nil)

func newAgents(now func() time.Time) *agents {
	return &agents{of: map[string]*heardAgent{}, changed: make(chan struct{}), now: now, started: now()}
}

func (a *agents) since(t time.Time) time.Duration { return a.now().Sub(t) }

// node is with the lock held.
func (a *agents) node(name string) *heardAgent {
	if a.of[name] == nil {
		a.of[name] = &heardAgent{}
	}
	return a.of[name]
}

func (a *agents) notify() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// hear takes a sign of life, and returns what the agent is to do.
func (a *agents) hear(name string) agentstream.Desired {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.node(name)
	news := !n.connected || a.since(n.seen) >= lifecycle.DefaultDeathTimer/2
	n.connected, n.seen = true, a.now()
	if news {
		a.notify()
	}
	return n.desired
}

// lose ends an agent's connection.
func (a *agents) lose(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := a.node(name); n.connected {
		n.connected = false
		a.notify()
	}
}

func (a *agents) Connected(name string) (bool, time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.node(name)
	return n.connected && a.since(n.seen) < lifecycle.DefaultDeathTimer/2, n.seen
}

func (a *agents) Node(name string) (api.NodePhase, time.Time, string) {
	connected, seen := a.Connected(name)
	switch {
	case connected:
		return api.NodeReady, seen, ""
	case a.since(seen) < lifecycle.DefaultDeathTimer || a.since(a.started) < lifecycle.DefaultDeathTimer:
		return api.NodeUnknown, seen, ""
	default:
		return api.NodeDown, seen, ""
	}
}

func (a *agents) NextDeath() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, next := a.now(), time.Time{}
	for _, n := range a.of {
		for _, after := range []time.Duration{lifecycle.DefaultDeathTimer / 2, lifecycle.DefaultDeathTimer} {
			if at := n.seen.Add(after); at.After(now) && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}
	return next
}

func (a *agents) Changed() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changed
}

func (a *agents) SetDesired(name string, d agentstream.Desired) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.node(name).desired = d
}

func (a *agents) Reported(name string) bool { c, _ := a.Connected(name); return c }

func (*agents) MemberState(string) (monitor.MemberState, bool)           { return monitor.MemberState{}, false }
func (*agents) Clean(string) []string                                    { return nil }
func (*agents) Jobs() map[string]agentstream.JobObserved                 { return nil }
func (*agents) LogBytes(string) int64                                    { return 0 }
func (*agents) ForgetJob(string)                                         {}
func (*agents) DropLog(string) error                                     { return nil }
func (*agents) PowerOffProblem(string) string                            { return "" }
func (*agents) Builds() map[string][]agentstream.BuildObserved           { return nil }
func (*agents) Holders(image.Digest) (whole, fetching map[string]string) { return nil, nil }
