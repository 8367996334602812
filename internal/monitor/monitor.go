// Package monitor holds the last reports of the node agents, and hands the agents the leader's desired state.
//
// The package keeps the agents' streams, the observations of members and jobs, and the time of each node's last message. It also stores
// the output of jobs. Everything but the output is in memory: agents repeat all their reports when they connect. The package must never
// decide anything about clusters; package controller decides from the monitor's data. Start with Serve, the life of one stream.
package monitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// Config is the configuration of a monitor.
type Config struct {
	// LogDir is where the output of jobs is stored, one file a job.
	LogDir string
	// LogLimits bound the stored output; see LimitsFor.
	LogLimits LogLimits
	// DiskFull returns why the disk has no room for output at present; nil error or nil function: it has. The last room is the store's.
	DiskFull func() error
	// Run finds a run of a job or build, by the name of its output; nil: all go on and belong to no project.
	Run func(name string) (Run, bool)
	// DeathTimer is how long an agent may not answer before its node counts as down.
	DeathTimer time.Duration
	// Register stores what an agent says of its node when it connects. An error is told to the agent, for the people there, and it is
	// not taken.
	Register func(ctx context.Context, node api.NodeRecord) error
	// IsMember reports whether a node is a machine that a member has whole; nil: none is. The agent of such a node is believed about that member alone.
	IsMember func(node string) bool
	// Now is read for differences only: it must carry a monotonic reading, as time.Now does, or jumps of the clock kill nodes.
	Now func() time.Time
	// Tick paces the pings of a stream; nil: a time.Ticker.
	Tick func(d time.Duration) (ticks <-chan time.Time, stop func())
	// Spans takes what a node says of stages that have ended; nil: nobody does.
	Spans func(node string, spans []agentstream.Span)
	Log   *slog.Logger
}

// Monitor is a server's knowledge of its agents.
type Monitor struct {
	cfg     Config
	started time.Time

	mu    sync.Mutex
	nodes map[string]*node
	// members and jobs are what each node says of them: of those that are another's it may say what it likes.
	members map[saidBy]memberSeen
	jobs    map[saidBy]agentstream.JobObserved
	changed chan struct{}
	// serial counts the changes of what is known of nodes.
	serial uint64
	logs   map[string]*jobLog
	room   *logRoom
	// tunnels are those that wait for the agent they were asked of, by ID.
	tunnels map[string]*tunnel
}

// node is one agent, connected or not.
type node struct {
	// known: its agent has connected since this server started. run is that of the agent which did last, former are those before it.
	known  bool
	run    string
	former []string
	// lastSeen is when the newest ping was sent that it has answered; words that arrive without answers are not enough.
	lastSeen time.Time
	stream   *stream // nil when not connected
	observed agentstream.Observed
	reported bool // it has said all it has since it connected
	desired  *agentstream.Desired
	// digests are those of the files that the desired members should have, by assignment ID.
	digests map[string]string
	// counts are the counters of its ports, by port ID.
	counts map[string]api.PortCounters
	// uses are what its members used of late, by assignment ID.
	uses map[string]*memberUses
	// energy is what it read last of its energy; nil: it has not said.
	energy   *api.EnergySample
	energyAt time.Time
	// faults are the errors that its hardware has counted; nil: it has not said.
	faults *api.HardwareFaults
	// serial is that of the newest change of what is known of this node.
	serial uint64
}

// memberSeen is what an agent last said of a member, and since when the phase has been the same.
type memberSeen struct {
	agentstream.MemberObserved
	since time.Time
}

// MemberState is a member as its node's agent last told it.
type MemberState struct {
	Phase   api.MemberPhase
	Message string
	Failure string
	// StateBytes and Verified are as the agent said last (agentstream.MemberObserved).
	StateBytes int64
	Verified   string
	// Since is when this server first heard of the phase that it has since been in.
	Since time.Time
	// Current: the generated files it has are those of the desired state that its node was last given.
	Current bool
	// HandedOver, Arriving and Moved are as the agent said last (agentstream.MemberObserved).
	HandedOver bool
	Arriving   *agentstream.Arriving
	Moved      *driver.MoveReport
	// Boot names the boot that it runs.
	Boot string
	// Size is the number of the size that it has, and Unsized says why it does not have the size that it is to have.
	Size    int64
	Unsized string
	// Volumes is the number of the volumes that it has, Layers that of its layers, and Unmounted says why it does not have those that it is to have.
	Volumes   int64
	Layers    int64
	Unmounted string
	// Condition is the number of its network condition, and Unconditioned says why it does not have the one that it is to have.
	Condition     int64
	Unconditioned string
}

// New returns a monitor that has heard of nobody.
func New(cfg Config) *Monitor {
	if cfg.Tick == nil {
		cfg.Tick = func(d time.Duration) (<-chan time.Time, func()) {
			ticker := time.NewTicker(d)
			return ticker.C, ticker.Stop
		}
	}
	if cfg.Run == nil {
		cfg.Run = func(string) (Run, bool) { return Run{}, true }
	}
	cfg.LogLimits = LimitsFor(cfg.LogLimits, math.MaxInt64)
	m := &Monitor{
		cfg: cfg, tunnels: map[string]*tunnel{}, started: cfg.Now(),
		nodes: map[string]*node{}, members: map[saidBy]memberSeen{},
		jobs: map[saidBy]agentstream.JobObserved{}, changed: make(chan struct{}), logs: map[string]*jobLog{},
		room: newLogRoom(cfg.LogDir, cfg.LogLimits, cfg.Run, cfg.Log),
	}
	m.room.diskFull = cfg.DiskFull
	return m
}

// Changed returns a channel that is closed at the next change of anything an agent said.
func (m *Monitor) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// ChangedNodes returns the nodes whose agent said or did something new after a serial number, and the number that this is current to;
// after 0 come all. Phases that change by the clock alone are not among them.
func (m *Monitor) ChangedNodes(after uint64) ([]string, uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if after == m.serial {
		return nil, after
	}
	var names []string
	for name, n := range m.nodes {
		if n.serial > after {
			names = append(names, name)
		}
	}
	return names, m.serial
}

// Touch notes that there is news of a node that its agent did not tell: of its ports, which a fabric has or has not.
func (m *Monitor) Touch(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notify(m.node(name))
}

// notify wakes all who wait, and notes which node there is news of; the lock is held.
func (m *Monitor) notify(n *node) {
	m.serial++
	n.serial = m.serial
	close(m.changed)
	m.changed = make(chan struct{})
}

// saidBy is an assignment, or a run of a job, as a node knows of it.
type saidBy struct{ node, id string }

// Member reports what the agent of a node last said of an assignment, which is to be one of that node.
func (m *Monitor) Member(node, assignmentID string) (api.MemberPhase, string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen, ok := m.members[saidBy{node, assignmentID}]
	return seen.Phase, seen.Message, ok
}

// MemberState reports what the agent of a node last said of an assignment, since when, and whether its files are those desired.
func (m *Monitor) MemberState(node, assignmentID string) (MemberState, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen, ok := m.members[saidBy{node, assignmentID}]
	if !ok {
		return MemberState{}, false
	}
	state := MemberState{
		Phase: seen.Phase, Message: seen.Message, Failure: seen.Failure, StateBytes: seen.StateBytes, Verified: seen.Verified, Since: seen.since,
		HandedOver: seen.HandedOver, Arriving: seen.Arriving, Moved: seen.Moved, Boot: seen.Boot, Size: seen.Size, Unsized: seen.Unsized,
		Volumes: seen.Volumes, Layers: seen.Layers, Unmounted: seen.Unmounted, Condition: seen.Condition, Unconditioned: seen.Unconditioned,
	}
	if n := m.nodes[node]; n != nil {
		want, told := n.digests[assignmentID]
		state.Current = told && want != "" && seen.FilesDigest == want
	}
	return state, true
}

// Node reports whether a node's agent is heard of. A node that was not heard of since this monitor started is unknown until
// the death timer has run from then: a server that was away must not call the living dead.
func (m *Monitor) Node(name string) (api.NodePhase, time.Time, string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[name]
	if n == nil {
		if m.cfg.Now().Sub(m.started) < m.cfg.DeathTimer {
			return api.NodeUnknown, time.Time{}, "no report since the server started"
		}
		return api.NodeDown, time.Time{}, "no report since the server started; check that its agent is running"
	}
	silence := m.cfg.Now().Sub(n.lastSeen)
	switch {
	case silence >= m.cfg.DeathTimer:
		return api.NodeDown, n.lastSeen, fmt.Sprintf("its agent has been silent for %s", silence.Round(time.Second))
	case n.stream == nil:
		return api.NodeUnknown, n.lastSeen, "its agent is disconnected"
	case silence >= m.cfg.DeathTimer/2:
		return api.NodeUnknown, n.lastSeen, "its agent is connected but does not answer"
	default:
		return api.NodeReady, n.lastSeen, ""
	}
}

// NextDeath is the earliest time at which a silent node's phase changes by the clock alone; zero when none will.
func (m *Monitor) NextDeath() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, next := m.cfg.Now(), m.started.Add(m.cfg.DeathTimer)
	if !next.After(now) {
		next = time.Time{}
	}
	for _, n := range m.nodes {
		at := n.lastSeen.Add(m.cfg.DeathTimer / 2)
		if n.stream == nil || !at.After(now) {
			at = n.lastSeen.Add(m.cfg.DeathTimer)
		}
		if at.After(now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// Clean returns the IDs of assignments that the agent of a node has confirmed clean.
func (m *Monitor) Clean(nodeName string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.nodes[nodeName]; n != nil {
		return n.observed.Clean
	}
	return nil
}

// Reported reports whether a connected node has said all it has.
func (m *Monitor) Reported(nodeName string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[nodeName]
	return n != nil && n.stream != nil && n.reported
}

// Job returns what the agent of a node last said of a run of a job.
func (m *Monitor) Job(node, runID string) (agentstream.JobObserved, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen, ok := m.jobs[saidBy{node, runID}]
	return seen, ok
}

// SetDesired hands a node's agent its whole desired state: now when it is connected, else when it connects.
func (m *Monitor) SetDesired(nodeName string, desired agentstream.Desired) {
	digests := desired.FilesDigests()
	m.mu.Lock()
	n := m.node(nodeName)
	n.desired, n.digests = &desired, digests
	s := n.stream
	m.mu.Unlock()
	if s != nil {
		s.wake()
	}
}

// node returns the entry of a node, made when missing; the lock is held.
func (m *Monitor) node(name string) *node {
	n := m.nodes[name]
	if n == nil {
		n = &node{lastSeen: m.started}
		m.nodes[name] = n
	}
	return n
}

// errCopied refuses an agent that another has taken the place of: both have one identity.
var errCopied = errors.New("another agent with this node's identity has connected since: the machine was copied or restored from a backup, or its key was stolen. " +
	"Stop one of the two, run 'nearmetal node revoke' for the node, and enroll it again")

// formerRuns is how many earlier runs of an agent are remembered.
const formerRuns = 16

// maxRun bounds what names a run, in bytes.
const maxRun = 64

// admit refuses an agent that another of the same identity has taken the place of.
func (m *Monitor) admit(hello *agentstream.Hello) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node(hello.Node.Name).mayTake(hello)
}

// mayTake is admit; the lock is held. An agent that starts again is another run, and the one before it never comes back: what does is a copy.
func (n *node) mayTake(hello *agentstream.Hello) error {
	if len(hello.Run) > maxRun {
		return fmt.Errorf("node %q: the agent's run has %d bytes; at most %d are allowed", hello.Node.Name, len(hello.Run), maxRun)
	}
	if hello.Run != n.run && slices.Contains(n.former, hello.Run) {
		return fmt.Errorf("node %q: %w", hello.Node.Name, errCopied)
	}
	return nil
}

// connect makes a stream the node's one; a former stream is ended.
func (m *Monitor) connect(hello *agentstream.Hello, s *stream) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.node(hello.Node.Name)
	if err := n.mayTake(hello); err != nil {
		return err
	}
	if n.stream != nil {
		n.stream.end(errors.New("the agent has reconnected"))
	}
	if n.run != "" && n.run != hello.Run {
		n.former = append(n.former, n.run)
		n.former = n.former[max(0, len(n.former)-formerRuns):]
	}
	n.known, n.run, n.stream, n.lastSeen, n.reported, n.counts, n.faults, n.energy = true, hello.Run, s, m.cfg.Now(), false, nil, nil, nil
	m.notify(n)
	return nil
}

// disconnect ends a stream's hold on its node.
func (m *Monitor) disconnect(name string, s *stream) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.nodes[name]; n != nil && n.stream == s {
		n.stream = nil
		m.notify(n)
	}
}

// observe takes the whole of what an agent sees in place of what it said before. The last words of a stream that another has
// replaced say nothing any more: an agent repeats itself only when something changes.
func (m *Monitor) observe(name string, s *stream, o agentstream.Observed) {
	if m.cfg.IsMember != nil && m.cfg.IsMember(name) {
		o = ofMember(o)
	}
	refusePhases(&o)
	fitTexts(&o)
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.node(name)
	if n.stream != s {
		return
	}
	before := map[string]memberSeen{}
	for _, old := range n.observed.Members {
		before[old.ID] = m.members[saidBy{name, old.ID}]
		delete(m.members, saidBy{name, old.ID})
	}
	for _, seen := range o.Members {
		since := m.cfg.Now()
		if was, ok := before[seen.ID]; ok && was.Phase == seen.Phase {
			since = was.since
		}
		m.members[saidBy{name, seen.ID}] = memberSeen{MemberObserved: seen, since: since}
	}
	for _, old := range n.observed.Jobs {
		delete(m.jobs, saidBy{name, old.ID})
	}
	for _, job := range o.Jobs {
		m.jobs[saidBy{name, job.ID}] = job
	}
	n.observed, n.reported = o, true
	m.notify(n)
}

// ofMember is what the agent of a machine that is a member is believed: how the member, its jobs and its volumes are. That nothing is left of it, the
// provisioner says.
func ofMember(o agentstream.Observed) agentstream.Observed {
	return agentstream.Observed{Term: o.Term, Members: o.Members, Jobs: o.Jobs, Sharings: o.Sharings, PowerOffProblem: o.PowerOffProblem}
}

// refusePhases makes a member unhealthy whose agent reports a phase that is not for agents to report: such a member can't be used, and the leader
// replaces it unless its agent soon reports another phase. Left as it is, the phase would be one that nobody ever moves on.
func refusePhases(o *agentstream.Observed) {
	for i := range o.Members {
		if seen := &o.Members[i]; !agentstream.MayReport(seen.Phase) {
			seen.Message = fmt.Sprintf("its node's agent reports phase %q, which this server does not accept from an agent; check the agent's version", api.ShortMessage(string(seen.Phase)))
			seen.Phase = api.MemberUnhealthy
		}
	}
}

// fitTexts makes the texts of an observation such as can be stored and shown: a driver's errors and a job's last words are of any length, and a node
// that was taken over says what a terminal would obey.
func fitTexts(o *agentstream.Observed) {
	for i := range o.Members {
		o.Members[i].Message, o.Members[i].Failure = manifest.Text(o.Members[i].Message), manifest.Text(o.Members[i].Failure)
		o.Members[i].Unmounted, o.Members[i].Unconditioned = manifest.Text(o.Members[i].Unmounted), manifest.Text(o.Members[i].Unconditioned)
	}
	for i := range o.Jobs {
		o.Jobs[i].Message = manifest.Text(o.Jobs[i].Message)
	}
	for i := range o.Builds {
		o.Builds[i].Message, o.Builds[i].Step = manifest.Text(o.Builds[i].Message), manifest.Text(o.Builds[i].Step)
		o.Builds[i].Percent = min(max(o.Builds[i].Percent, 0), 100)
	}
	for i := range o.Images {
		o.Images[i].Message = manifest.Text(o.Images[i].Message)
	}
	for i := range o.Volumes {
		o.Volumes[i].Problem = manifest.Text(o.Volumes[i].Problem)
		if importing := o.Volumes[i].Import; importing != nil { // it names files that a user chose
			importing.Failure = manifest.Text(importing.Failure)
		}
	}
	for i := range o.Sharings {
		o.Sharings[i].Problem = manifest.Text(o.Sharings[i].Problem)
	}
	for i := range o.Datasets {
		o.Datasets[i].Message = manifest.Text(o.Datasets[i].Message)
	}
	for i := range o.Caches {
		o.Caches[i].Message = manifest.Text(o.Caches[i].Message)
		o.Caches[i].Readings = o.Caches[i].Readings[:min(len(o.Caches[i].Readings), mostReadings)]
	}
	o.DataPaths = o.DataPaths[:min(len(o.DataPaths), mostDataPaths)]
	for i := range o.DataPaths { // places that no dataset has are left out where they are learned from
		o.DataPaths[i].From = o.DataPaths[i].From[:min(len(o.DataPaths[i].From), api.MaxDatasetURL)]
	}
	for i := range o.Drift {
		o.Drift[i] = manifest.Text(o.Drift[i])
	}
	o.PowerOffProblem = manifest.Text(o.PowerOffProblem)
	if !isPeer(o.PeerURL) {
		o.PeerURL = ""
	}
}

// mostDataPaths bounds what a node says of the ways of data: agents keep fewer.
const mostDataPaths = 256

// maxPeerURL bounds the URL of a peer, in bytes.
const maxPeerURL = 256

// isPeer reports whether a URL can be of a node's server of images, which listens on an address: other nodes and machines are given it.
func isPeer(text string) bool {
	u, err := url.Parse(text)
	if err != nil || len(text) > maxPeerURL || u.Scheme != "http" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	_, err = netip.ParseAddrPort(u.Host)
	return err == nil
}

// ForgetJob drops what is held in memory of a run of a job that has ended.
func (m *Monitor) ForgetJob(node, runID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.jobs, saidBy{node, runID})
}
