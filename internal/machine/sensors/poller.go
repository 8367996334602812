package sensors

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
)

// Machine is a machine whose BMC is read.
type Machine struct {
	UID    string
	Target power.Target
	// Mark is how far its event log is known to have been read.
	Mark api.BMCLogMark
}

// News is what came into the log of a machine's BMC after the mark that was known.
type News struct {
	After api.BMCLogMark
	Log   Log
}

// Options are what a poller works with.
type Options struct {
	// Open makes the switches of power, of which those that are Readers are asked.
	Open power.Opener
	// Gate is the one that orders of power go through.
	Gate *power.Gate
	// Every is the pause between two readings of one machine; 0: a minute.
	Every time.Duration
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	Log *slog.Logger
}

// DefaultEvery is the pause between two readings of one machine.
const DefaultEvery = time.Minute

// Poller reads the sensors of machines, one machine at a time, and remembers what it read. It may be used from many goroutines.
type Poller struct {
	o       Options
	kick    chan struct{}
	changed chan struct{}

	mu       sync.Mutex
	machines map[string]*polled // by UID
}

// polled is a machine with what was read of it.
type polled struct {
	machine Machine
	reader  Reader // nil: not opened yet, or its kind has no sensors
	opened  bool
	// refused: user or password were. Another try before the target changes would only lock the account.
	refused bool
	due     time.Time
	last    api.MachineSensors
	logs    LogReader
	logDue  time.Time
	news    *News
}

// New makes a poller that knows no machine.
func New(o Options) *Poller {
	if o.Every <= 0 {
		o.Every = DefaultEvery
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return &Poller{o: o, kick: make(chan struct{}, 1), changed: make(chan struct{}, 1), machines: map[string]*polled{}}
}

// Set replaces the machines that are read. It does not wait. What was read of those that are gone is forgotten.
func (p *Poller) Set(machines []Machine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := make(map[string]*polled, len(machines))
	for _, m := range machines {
		was := p.machines[m.UID]
		if was == nil || !sameTarget(was.machine.Target, m.Target) {
			was = &polled{machine: m, due: p.o.Now()}
			signal(p.kick)
		}
		was.machine.Mark = m.Mark
		if was.news != nil && !SameMark(was.news.After, m.Mark) {
			was.news = nil
		}
		kept[m.UID] = was
	}
	p.machines = kept
}

func sameTarget(a, b power.Target) bool {
	return a.Name == b.Name && a.Control == b.Control && a.Credentials == b.Credentials && slices.Equal(a.MACs, b.MACs)
}

// Sensors returns what was read of a machine, nil for one that has no sensors or was not read yet. The result must not be changed.
func (p *Poller) Sensors(uid string) *api.MachineSensors {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.machines[uid]
	if m == nil || m.last.State == "" {
		return nil
	}
	last := m.last
	return &last
}

// SameMark reports whether two marks are of the same place in a log.
func SameMark(a, b api.BMCLogMark) bool {
	return a.Log == b.Log && slices.Equal(a.IDs, b.IDs) && a.At.Equal(b.At) && a.Erased == b.Erased
}

// News returns what came into the logs of machines after the marks that Set gave, by UID. It stays until Set gives another mark of the machine.
func (p *Poller) News() map[string]News {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[string]News{}
	for uid, m := range p.machines {
		if m.news != nil {
			all[uid] = *m.news
		}
	}
	return all
}

// Changed receives after the state or the message of a machine has changed, or there is news of its log. It holds one signal.
func (p *Poller) Changed() <-chan struct{} { return p.changed }

// Run reads machines until ctx ends, and returns once the reading under way has ended.
func (p *Poller) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.kick:
		case <-timer.C:
		}
		timer.Reset(p.step(ctx))
	}
}

// step reads the machine that has been due for the longest time, and returns the time until the next is.
func (p *Poller) step(ctx context.Context) time.Duration {
	m, wait := p.next()
	if m == nil {
		return wait
	}
	p.read(ctx, m)
	return 0
}

func (p *Poller) next() (*polled, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var first *polled
	for _, m := range p.machines {
		if first == nil || m.due.Before(first.due) {
			first = m
		}
	}
	if first == nil {
		return nil, p.o.Every
	}
	if wait := first.due.Sub(p.o.Now()); wait > 0 {
		return nil, wait
	}
	return first, 0
}

// yieldedAgain is the pause after a reading that an order of power went before, as a part of the pause between two.
const yieldedAgain = 6

// lookAgain is the pause after a BMC said that it has no sensors: it may get some with its next firmware.
const lookAgain = time.Hour

// read reads one machine.
func (p *Poller) read(ctx context.Context, m *polled) {
	pause := p.o.Every
	if !m.opened {
		m.opened = true
		if s, err := p.o.Open(m.machine.Target); err == nil { // else the provisioner reports it
			m.reader, _ = s.(Reader)
			m.logs, _ = s.(LogReader)
		}
	}
	p.readLog(ctx, m)
	next := m.last
	if m.reader != nil && !m.refused {
		var all []api.Sensor
		err := p.o.Gate.Poll(ctx, power.KeyOf(m.machine.UID, m.machine.Target), power.PollDeadline, func(ctx context.Context) (err error) {
			all, err = m.reader.Sensors(ctx)
			return err
		})
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, power.ErrYielded):
			pause = p.o.Every / yieldedAgain
		case errors.Is(err, power.ErrCannot):
			next, pause = api.MachineSensors{}, max(p.o.Every, lookAgain)
		case err != nil:
			m.refused = errors.Is(err, power.ErrCredentials)
			next.State, next.Message = api.SensorUnavailable, err.Error()
			p.o.Log.DebugContext(ctx, "sensors can't be read", "machine", m.machine.Target.Name, "error", err)
		default:
			next = api.MachineSensors{ReadAt: p.o.Now().UTC(), Sensors: all}
			next.State, next.Message = Summary(all)
		}
	}
	if next.State != "" && next.Sensors == nil {
		next.Sensors = []api.Sensor{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m.due = p.o.Now().Add(pause)
	if m.last.State != next.State || m.last.Message != next.Message {
		signal(p.changed)
	}
	m.last = next
}

// logEvery is how many pauses lie between two looks at a log: a Redfish service may take a request for each fifty entries of it.
const logEvery = 3

// readLog looks for news in the log of a machine, unless there is some that nobody has taken yet.
func (p *Poller) readLog(ctx context.Context, m *polled) {
	p.mu.Lock()
	after, waits := m.machine.Mark, m.news != nil
	p.mu.Unlock()
	if m.logs == nil || m.refused || waits || p.o.Now().Before(m.logDue) {
		return
	}
	var log Log
	err := p.o.Gate.Poll(ctx, power.KeyOf(m.machine.UID, m.machine.Target), power.PollDeadline, func(ctx context.Context) (err error) {
		log, err = m.logs.Log(ctx, after)
		return err
	})
	pause := logEvery * p.o.Every
	switch {
	case errors.Is(err, power.ErrYielded):
		pause = p.o.Every / yieldedAgain
	case errors.Is(err, power.ErrCannot):
		pause = max(pause, lookAgain)
	case errors.Is(err, power.ErrCredentials):
		m.refused = true
	case err != nil:
		p.o.Log.DebugContext(ctx, "the event log of a BMC can't be read", "machine", m.machine.Target.Name, "error", err)
	}
	m.logDue = p.o.Now().Add(pause)
	if err != nil || SameMark(log.Mark, after) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m.news = &News{After: after, Log: log}
	signal(p.changed)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
