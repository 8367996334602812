// Package cleaning erases what a tenant left on a machine: on its disks, in its firmware's variables and in its TPM.
//
// It runs in the boot agent, from kernel and initrd alone, and asks devices by ioctls. What is done to a disk, package plan decides; this package looks
// at the machine, carries the plan out, reads back what must be there, and reports. It never erases in a dry run, and never calls a part clean that
// it did not read back. Start with Machine.Clean.
package cleaning

import (
	"context"
	"crypto/rand"
	"io"
	"math/big"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/cleaning/plan"
)

// How long devices may take.
const (
	shortMS = 30_000
	// longMS is the limit of a command that erases a disk by itself and does not say how long that takes.
	longMS = 24 * 60 * 60 * 1000
	// stalled is how long such an erasure may make no progress.
	stalled      = 30 * time.Minute
	sanitizePoll = 2 * time.Second
)

// Device is a disk that is open for cleaning. Offsets and lengths are multiples of its blocks.
type Device interface {
	// ReadAt reads the disk itself, past all caches of the kernel.
	io.ReaderAt
	io.WriterAt
	// Sync returns once the disk has all that was written.
	Sync() error
	// Erase carries one method out. It tells of each further part of the disk that is done, and how long it may have nothing to tell.
	Erase(ctx context.Context, method plan.Method, told Told) error
	io.Closer
}

// Told is how a device tells of its work.
type Told struct {
	Bytes  func(more int64)
	Expect func(time.Duration)
}

// Machine is the machine to clean. New returns the running one.
type Machine struct {
	// Look finds the block devices, and the storage controllers whose disks can't be seen.
	Look func(ctx context.Context) ([]plan.Disk, []plan.Controller)
	// Open opens a disk for nobody else.
	Open func(disk plan.Disk) (Device, error)
	// Firmware is the folder of the firmware's variables; there are none where it does not exist.
	Firmware string
	// TPM opens the TPM; nil, nil: there is none.
	TPM func() (io.ReadWriteCloser, error)
	// Expected are the disks that inspection found. One that is missing can't be called clean.
	Expected []api.Disk
}

// Clean cleans the machine as ordered, or in a dry run says what it would do. It returns when all steps have ended; a step that failed says so.
func (m *Machine) Clean(ctx context.Context, order boot.CleanOrder, progress *Progress) {
	disks, controllers := m.Look(ctx)
	steps := plan.Disks(disks)
	report := make([]api.CleanStep, len(steps))
	for i, s := range steps {
		report[i] = planned(s)
	}
	for _, c := range controllers {
		report = append(report, api.CleanStep{
			Kind: api.CleanController, Target: c.Name, State: api.CleanFailed, Message: c.Problem,
		})
	}
	report = append(report, missing(m.Expected, disks)...)
	firmware, tpm := len(report), len(report)+1
	report = append(report, m.planFirmware(order), m.planTPM(), memory(order))
	progress.begin(report, order.DryRun)
	if !order.DryRun {
		m.erase(ctx, order, steps, progress, firmware, tpm)
	}
	progress.end()
}

// carryOut erases. Disks are erased all at once, those that hang on one controller one after the other.
func (m *Machine) carryOut(ctx context.Context, order boot.CleanOrder, steps []plan.Step, progress *Progress, firmware, tpm int) {
	groups := map[string][]int{}
	for i, s := range steps {
		if len(s.Methods) > 0 {
			groups[s.Group()] = append(groups[s.Group()], i)
		}
	}
	var work sync.WaitGroup
	for _, members := range groups {
		work.Go(func() {
			for _, i := range members {
				m.cleanDisk(ctx, steps[i], step{progress, i})
			}
		})
	}
	work.Go(func() { m.cleanFirmware(order, step{progress, firmware}) })
	work.Go(func() { m.cleanTPM(step{progress, tpm}) })
	work.Wait()
}

// planned is a step about a disk before anything is done.
func planned(s plan.Step) api.CleanStep {
	d := s.Disk
	out := api.CleanStep{Kind: api.CleanDisk, Target: d.Name, Model: d.Model, Serial: d.Serial, SizeBytes: d.Bytes, State: api.CleanPlanned, Tried: slices.Clone(s.Notes)}
	switch {
	case s.LeftAlone != "":
		out.State, out.Message = api.CleanSkipped, s.LeftAlone
	case s.Problem != "":
		out.State, out.Message = api.CleanFailed, s.Problem
	default:
		out.Method, out.TotalBytes = string(s.Methods[0]), work(s.Methods[0], d)
		for _, m := range s.Methods[1:] {
			out.Fallbacks = append(out.Fallbacks, string(m))
		}
	}
	return out
}

// missing are the disks that inspection found and that are not there now, by their serial numbers.
func missing(expected []api.Disk, disks []plan.Disk) (steps []api.CleanStep) {
	for _, e := range expected {
		if e.Serial == "" || slices.ContainsFunc(disks, func(d plan.Disk) bool { return d.Serial == e.Serial }) {
			continue
		}
		steps = append(steps, api.CleanStep{
			Kind: api.CleanDisk, Target: e.Name, Model: e.Model, Serial: e.Serial, SizeBytes: e.SizeBytes, State: api.CleanFailed,
			Message: "inspection found this disk, and it is not there now; if it was taken out, inspect the machine first",
		})
	}
	return steps
}

// memory is the step about RAM. Nothing is done: it has lost its content if the power was off.
func memory(order boot.CleanOrder) api.CleanStep {
	s := api.CleanStep{Kind: api.CleanMemory, Target: "RAM", State: api.CleanSkipped, Message: "it lost its content while the power was off, before this boot"}
	if !order.WasOff {
		s.Message = "it loses its content without power; nothing could read that the power was off before this boot"
	}
	return s
}

// Progress is how far a cleaning is; it may be asked at any time.
type Progress struct {
	mu     sync.Mutex
	report boot.CleanReport
	expect map[int]time.Duration
	began  map[int]time.Time
	now    func() time.Time
}

// NewProgress returns one of a cleaning that has not begun.
func NewProgress() *Progress {
	return &Progress{expect: map[int]time.Duration{}, began: map[int]time.Time{}, now: time.Now}
}

// Report is how far the cleaning is now; false: the machine is still being looked at.
func (p *Progress) Report() (boot.CleanReport, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.report
	r.Steps = slices.Clone(r.Steps)
	r.Bytes, r.TotalBytes = 0, 0
	for i := range r.Steps {
		s := &r.Steps[i]
		s.Tried = slices.Clone(s.Tried)
		r.Bytes, r.TotalBytes = r.Bytes+s.Bytes, r.TotalBytes+s.TotalBytes
		if s.State == api.CleanRunning {
			s.Seconds = p.now().Sub(p.began[i]).Seconds()
			r.ExpectSeconds = max(r.ExpectSeconds, p.expect[i].Seconds())
		}
	}
	return r, r.Steps != nil
}

func (p *Progress) begin(steps []api.CleanStep, dryRun bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report.Steps, p.report.DryRun = steps, dryRun
}

func (p *Progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report.Done = true
}

// step is one step of a cleaning that goes on.
type step struct {
	progress *Progress
	index    int
}

func (s step) change(f func(*api.CleanStep)) {
	s.progress.mu.Lock()
	defer s.progress.mu.Unlock()
	f(&s.progress.report.Steps[s.index])
}

func (s step) start() {
	s.change(func(c *api.CleanStep) {
		s.progress.began[s.index] = s.progress.now()
		c.State = api.CleanRunning
	})
}

func (s step) finish(state api.CleanState, verified, message string) {
	s.change(func(c *api.CleanStep) {
		c.State, c.Verified, c.Message = state, verified, message
		c.Seconds = s.progress.now().Sub(s.progress.began[s.index]).Seconds()
	})
}

func (s step) told() Told {
	return Told{
		Bytes: func(more int64) {
			s.change(func(c *api.CleanStep) { c.Bytes += more; s.progress.expect[s.index] = 0 })
		},
		Expect: func(d time.Duration) { s.change(func(*api.CleanStep) { s.progress.expect[s.index] = d }) },
	}
}

// randomBelow returns a number below n that nobody can guess, so that nothing can be hidden beside the samples.
func randomBelow(n int64) int64 {
	v, err := rand.Int(rand.Reader, big.NewInt(n))
	if err != nil {
		panic(err) // crypto/rand never fails
	}
	return v.Int64()
}
