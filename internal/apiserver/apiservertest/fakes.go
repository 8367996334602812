package apiservertest

import (
	"errors"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// Live is what agents would report, set by the test.
type Live struct {
	unmounted map[string]string      // by assignment ID
	layers    map[string]int64       // by assignment ID
	condition map[string]conditioned // by assignment ID
	mu        sync.Mutex
	members   map[string]said
	nodes     map[string]saidNode
	changed   chan struct{}
	now       func() time.Time
	serial    uint64
	told      map[string]uint64 // by node
	volumes   map[string][]volume.State
	datasets  []plan.Node
}

type said struct {
	phase   api.MemberPhase
	message string
}

type conditioned struct {
	number  int64
	missing string
}

type saidNode struct {
	phase   api.NodePhase
	seen    time.Time
	message string
}

func newLive() *Live {
	return &Live{members: map[string]said{}, nodes: map[string]saidNode{}, changed: make(chan struct{}), now: time.Now, told: map[string]uint64{}}
}

// Member tells what was set.
func (l *Live) Member(a *api.Assignment) (api.MemberPhase, string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.members[a.ID]
	return s.phase, s.message, ok
}

// Boot knows of no second boot.
func (*Live) Boot(*api.Assignment) string { return "" }

// Size knows of no other size than the one that the assignment names.
func (*Live) Size(a *api.Assignment) (int64, string) { return a.SizeNumber, "" }

// Datasets tells what was set.
func (l *Live) Datasets() []plan.Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.datasets
}

// SayDatasets sets what nodes say of datasets.
func (l *Live) SayDatasets(nodes ...plan.Node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.datasets = nodes
}

// Mounted tells what was set.
func (l *Live) Mounted(a *api.Assignment) (int64, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return 0, l.unmounted[a.ID]
}

// Layers tells what was set.
func (l *Live) Layers(a *api.Assignment) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.layers[a.ID]
}

// SetLayers sets the number of the layers that a member has.
func (l *Live) SetLayers(id string, number int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.layers == nil {
		l.layers = map[string]int64{}
	}
	l.layers[id] = number
}

// Condition tells what was set.
func (l *Live) Condition(a *api.Assignment) (int64, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.condition[a.ID].number, l.condition[a.ID].missing
}

// SetCondition sets the number of the network condition that a member has, and why it does not have that of its cluster.
func (l *Live) SetCondition(id string, number int64, missing string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.condition == nil {
		l.condition = map[string]conditioned{}
	}
	l.condition[id] = conditioned{number, missing}
}

// SetUnmounted says why a member does not have the volumes that it is to have.
func (l *Live) SetUnmounted(id, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unmounted == nil {
		l.unmounted = map[string]string{}
	}
	l.unmounted[id] = why
}

// OnMachine knows of no machine that boots for a member.
func (*Live) OnMachine(*api.Assignment) (api.MemberPhase, string, bool) { return "", "", false }

// Arriving knows of nothing that arrives.
func (*Live) Arriving(*api.Assignment) (bytes, ofBytes int64) { return 0, 0 }

// Node tells what was set; a node never set is down.
func (l *Live) Node(name string) (api.NodePhase, time.Time, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.nodes[name]
	if !ok {
		return api.NodeDown, time.Time{}, "not heard of"
	}
	return s.phase, s.seen, s.message
}

// Volumes tells what was set, of a node that is not down.
func (l *Live) Volumes(node string) (volumes []volume.State, purged []string, heard bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, ok := l.nodes[node]; !ok || s.phase == api.NodeDown {
		return nil, nil, false
	}
	return l.volumes[node], nil, true
}

// SetVolumes reports the volumes that a node found.
func (l *Live) SetVolumes(node string, volumes ...volume.State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.volumes == nil {
		l.volumes = map[string][]volume.State{}
	}
	l.volumes[node] = volumes
	l.wake(node)
}

// Changed returns a channel that is closed at the next change.
func (l *Live) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// ChangedNodes returns the nodes that were told about after a serial number.
func (l *Live) ChangedNodes(after uint64) ([]string, uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for name, serial := range l.told {
		if serial > after {
			names = append(names, name)
		}
	}
	return names, l.serial
}

// SetMember reports on an assignment, by the agent of its node.
func (l *Live) SetMember(node, id string, phase api.MemberPhase, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.members[id] = said{phase, message}
	l.wake(node)
}

// SetNode reports on a node, heard just now.
func (l *Live) SetNode(name string, phase api.NodePhase, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nodes[name] = saidNode{phase, l.now(), message}
	l.wake(name)
}

// SetNodeQuietly makes a node be in another phase without anybody telling, as the clock does.
func (l *Live) SetNodeQuietly(name string, phase api.NodePhase, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nodes[name] = saidNode{phase, l.now(), message}
}

func (l *Live) wake(node string) {
	l.serial++
	l.told[node] = l.serial
	close(l.changed)
	l.changed = make(chan struct{})
}

// Logs is the output of jobs, written by the test.
type Logs struct {
	mu      sync.Mutex
	output  map[string][]byte
	changed chan struct{}
	// Broken makes reading fail.
	Broken bool
	// Removed are the runs whose output was removed to make room.
	Removed map[string]bool
}

func newLogs() *Logs { return &Logs{output: map[string][]byte{}, changed: make(chan struct{})} }

// Write appends output of a job.
func (l *Logs) Write(jobID, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.output[jobID] = append(l.output[jobID], text...)
	close(l.changed)
	l.changed = make(chan struct{})
}

// ReadLog reads what was written.
func (l *Logs) ReadLog(jobID string, p []byte, offset int64) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Broken {
		return 0, errors.New("the disk is broken")
	}
	if out := l.output[jobID]; offset < int64(len(out)) {
		return copy(p, out[offset:]), nil
	}
	return 0, nil
}

// LogChanged returns a channel that is closed at the next write.
func (l *Logs) LogChanged(string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// LogRemoved reports what Removed says.
func (l *Logs) LogRemoved(run string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Removed[run]
}

func (l *Logs) size(jobID string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(len(l.output[jobID]))
}
