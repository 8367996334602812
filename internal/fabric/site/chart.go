package site

import (
	"context"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/topology"
)

// Surveyor is a Site that can read what its fabric looks like. It changes nothing.
type Surveyor interface {
	// Survey reads the topology, and the counters of all ports that answer. Counters that can't be read are missing, which is no error.
	Survey(ctx context.Context) (topology.Reading, error)
}

// Governed is a Site whose fabric has subnet managers. Both methods return what was read last, and ask nobody.
type Governed interface {
	// Managers returns the subnet managers that were found.
	Managers() []api.SubnetManager
	// Alarms returns what endangers the fabric.
	Alarms() []Alarm
}

const (
	// surveyEvery is how often a fabric is surveyed. Errors are counted between two surveys.
	surveyEvery = time.Minute
	// surveyTimeout bounds one survey: the counters of a large fabric take seconds.
	surveyTimeout = 50 * time.Second
)

// Chart keeps what a fabric looks like. Its methods may be called at once by several goroutines. Every server keeps one, whether it leads or not.
type Chart struct {
	surveyor Surveyor
	now      func() time.Time
	log      *slog.Logger
	changed  chan struct{}

	mu      sync.Mutex
	last    *topology.Reading
	faults  []api.FabricFault
	problem string
	surveys int // that succeeded
	// revision grows with each change of switches, hosts, links or faults. Counters alone change nothing.
	revision int64
}

// NewChart makes a chart, which knows nothing before the first survey.
func NewChart(s Surveyor, now func() time.Time, log *slog.Logger) *Chart {
	return &Chart{surveyor: s, now: now, log: log, changed: make(chan struct{}, 1)}
}

// Charted is what a chart knows.
type Charted struct {
	// Topology has errors, loads and faults in its links. It is nil before the first survey, and must not be changed.
	Topology *api.FabricTopology
	ReadAt   time.Time
	Faults   []api.FabricFault
	// Counted: errors were counted between two surveys.
	Counted bool
	// Problem is why the newest survey failed; what is known is then of an earlier one.
	Problem string
	// Revision is equal as long as nothing but counters has changed.
	Revision int64
}

// Get returns what is known. A nil chart knows nothing.
func (c *Chart) Get() Charted {
	if c == nil {
		return Charted{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out := Charted{Faults: slices.Clone(c.faults), Problem: c.problem, Revision: c.revision, Counted: c.surveys > 1}
	if c.last != nil {
		out.Topology, out.ReadAt = &c.last.Topology, c.last.At
	}
	return out
}

// Changed is signalled when the topology or the faults are others than before.
func (c *Chart) Changed() <-chan struct{} { return c.changed }

// Run surveys the fabric until ctx ends.
func (c *Chart) Run(ctx context.Context) {
	tick := time.NewTicker(surveyEvery)
	defer tick.Stop()
	for {
		c.Survey(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Survey reads the fabric once. What it can't read stays as it was.
func (c *Chart) Survey(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, surveyTimeout)
	defer cancel()
	read, err := c.surveyor.Survey(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if c.problem == "" {
			c.log.WarnContext(ctx, "the topology of the fabric can't be read", "error", err)
		}
		c.problem = err.Error()
		return
	}
	read.At = c.now()
	c.problem = ""
	c.surveys++
	topology.Count(c.last, &read)
	faults := topology.Faults(c.faults, c.last, &read)
	for _, f := range faults {
		if !slices.ContainsFunc(c.faults, func(o api.FabricFault) bool { return o.Since.Equal(f.Since) && o.Message == f.Message }) {
			c.log.WarnContext(ctx, "a link of the fabric has too many errors", "fault", f.Message)
		}
	}
	if c.last == nil || !sameShape(&c.last.Topology, &read.Topology) {
		c.revision++
		signal(c.changed)
	}
	c.last, c.faults = &read, faults
}

// sameShape reports whether two topologies differ in counters only. Whether a link has a fault counts, not the words for it.
func sameShape(a, b *api.FabricTopology) bool {
	same := func(a, b api.FabricLink) bool {
		for _, e := range []*api.FabricEnd{&a.From, &a.To, &b.From, &b.To} {
			e.Errors, e.SentBitsPerSecond = nil, 0
		}
		faulty := (a.Fault != "") == (b.Fault != "")
		a.Fault, b.Fault = "", ""
		return faulty && reflect.DeepEqual(a, b)
	}
	return slices.Equal(a.Switches, b.Switches) && slices.Equal(a.Hosts, b.Hosts) && slices.EqualFunc(a.Links, b.Links, same)
}
