package energy

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/nearmetal/nearmetal/api"
)

// SamplerConfig is what a sampler reads.
type SamplerConfig struct {
	// Direct are sources that answer at once, read with each sample. Slow ones are read in between, each on its own.
	Direct, Slow []Source
	// Absent are sources that this node can't have, with the reasons.
	Absent []api.EnergyReading
	// Stat and CPUInfo are files like /proc/stat and /proc/cpuinfo, which are the defaults.
	Stat, CPUInfo string
	// Now is read for differences; nil: time.Now, which is monotonic.
	Now func() time.Time
}

// Sampler reads what a node consumes, together with its CPU time. Sample is for one goroutine.
type Sampler struct {
	cfg       SamplerConfig
	run       string
	began     time.Time
	processor string
	sources   []*metered
	slow      []*cached
}

// NewSampler returns a sampler; nothing is read yet.
func NewSampler(cfg SamplerConfig) *Sampler {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Stat == "" {
		cfg.Stat = "/proc/stat"
	}
	if cfg.CPUInfo == "" {
		cfg.CPUInfo = "/proc/cpuinfo"
	}
	s := &Sampler{cfg: cfg, run: uuid.NewString(), began: cfg.Now(), processor: ProcessorName(cfg.CPUInfo)}
	for _, source := range cfg.Direct {
		s.sources = append(s.sources, &metered{source: source})
	}
	for _, source := range cfg.Slow {
		c := &cached{Source: source, err: errUnread}
		s.slow = append(s.slow, c)
		s.sources = append(s.sources, &metered{source: c})
	}
	return s
}

// Pace of the slow sources.
const (
	slowEvery    = 5 * time.Second
	slowDeadline = 4 * time.Second
)

// Run reads the slow sources until ctx ends.
func (s *Sampler) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, c := range s.slow {
		all.Go(func() { c.run(ctx) })
	}
	all.Wait()
}

// Sample reads everything once. members are the CPU times of members in nanoseconds, by assignment ID.
func (s *Sampler) Sample(ctx context.Context, members map[string]int64) (api.EnergySample, error) {
	busy, cpus, err := BusyTime(s.cfg.Stat)
	if err != nil {
		return api.EnergySample{}, err
	}
	sample := api.EnergySample{
		Run: s.run, ElapsedNanoseconds: int64(s.cfg.Now().Sub(s.began)), BusyNanoseconds: busy, CPUs: cpus, Processor: s.processor, Members: members,
	}
	for _, m := range s.sources {
		sample.Counters = append(sample.Counters, m.read(ctx, s.cfg.Now))
	}
	for _, r := range s.cfg.Absent {
		sample.Counters = append(sample.Counters, api.EnergyCounter{EnergyReading: r})
	}
	return sample, nil
}

// metered makes a counter of whatever a source says.
type metered struct {
	source Source
	at     time.Time // of the last reading; zero: it failed, or there is none
	last   Reading
	total  int64
	breaks int64
}

// read reads the source. What was used since a reading that failed, or over a break of the source's counter, is not known: that is a break, too.
func (m *metered) read(ctx context.Context, clock func() time.Time) api.EnergyCounter {
	out := api.EnergyCounter{EnergyReading: api.EnergyReading{Source: m.source.Kind(), Scope: m.source.Scope()}}
	reading, err := m.source.Read(ctx)
	now := clock()
	if err != nil {
		if !m.at.IsZero() {
			m.breaks++
		}
		m.at = time.Time{}
		out.Tag, out.Reason, out.Microjoules, out.Breaks = api.EnergyUnavailable, err.Error(), m.total, m.breaks
		return out
	}
	out.Tag = api.EnergyMeasured
	if reading.Modelled != "" {
		out.Tag, out.Reason = api.EnergyModelled, reading.Modelled
	}
	if !m.at.IsZero() {
		m.advance(reading, now.Sub(m.at).Seconds(), &out)
	}
	if c := reading.Counter; c == nil {
		out.Watts = &reading.Watts
	} else if out.Domains == nil {
		out.Domains = domains(nil, c, 0)
	}
	m.at, m.last = now, reading
	out.Microjoules, out.Breaks = m.total, m.breaks
	return out
}

// advance adds what was used since the reading before, which did not fail.
func (m *metered) advance(reading Reading, seconds float64, out *api.EnergyCounter) {
	before, after := m.last.Counter, reading.Counter
	switch {
	case seconds <= 0:
	case before == nil && after == nil:
		m.total += int64((m.last.Watts + reading.Watts) / 2 * seconds * 1e6) // between two readings, power is taken for a line
	case before == nil || after == nil || before.Breaks != after.Breaks || after.Microjoules < before.Microjoules:
		m.breaks++
	default:
		m.total += after.Microjoules - before.Microjoules
		out.Watts = mean(after.Microjoules-before.Microjoules, seconds)
		out.Domains = domains(before, after, seconds)
	}
}

func mean(microjoules int64, seconds float64) *float64 {
	watts := float64(microjoules) / 1e6 / seconds
	return &watts
}

// domains are the parts of a counter, with their power since the reading before, unless that is nil.
func domains(before, after *Counter, seconds float64) []api.EnergyDomain {
	var all []api.EnergyDomain
	for i, d := range after.Domains {
		out := api.EnergyDomain{Name: d.Name, Counted: d.Counted}
		if before != nil && i < len(before.Domains) && before.Domains[i].Name == d.Name {
			out.Watts = mean(d.Microjoules-before.Domains[i].Microjoules, seconds)
		}
		all = append(all, out)
	}
	return all
}

// errUnread is the reason before the first reading.
var errUnread = errors.New("it was not read yet")

// cached is a source that is read in the background, since it may take its time. Its reading is the last one.
type cached struct {
	Source
	mu   sync.Mutex
	last Reading
	err  error
}

// Read implements Source.
func (c *cached) Read(context.Context) (Reading, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, c.err
}

func (c *cached) run(ctx context.Context) {
	again := time.NewTicker(slowEvery)
	defer again.Stop()
	for {
		bounded, cancel := context.WithTimeout(ctx, slowDeadline)
		reading, err := c.Source.Read(bounded)
		cancel()
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		c.last, c.err = reading, err
		c.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}
