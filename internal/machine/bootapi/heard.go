package bootapi

import (
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
)

// Heard is what was heard of boots, in memory: a new leader hears it again, since machines repeat what was not answered, and stages that
// were told once and lost are only missing figures.
type Heard struct {
	now func() time.Time

	mu        sync.Mutex
	boots     map[string]*heardBoot // by machine UID, the newest generation only
	restarts  map[string]time.Time  // by machine UID: BootSeen.Restarted
	offs      map[string]time.Time  // by machine UID: BootSeen.ToldOff
	strangers map[string]Stranger   // by MAC
	problems  []string
	changed   chan struct{}
}

type heardBoot struct {
	seen   lifecycle.BootSeen
	report *boot.Report
	// cleaned is what the machine was made of once it was cleaned.
	cleaned *api.Hardware
	// cleanTold is when the leader was last woken by what this boot reported of its cleaning.
	cleanTold time.Time
}

// Stranger is an unknown machine that has told what it is.
type Stranger struct {
	MAC string
	// Token is the enrolment token it carries, a secret; empty for none.
	Token    string
	Hardware api.Hardware
	Problem  string
}

// NewHeard returns an empty one; now is the site's clock.
func NewHeard(now func() time.Time) *Heard {
	return &Heard{now: now, boots: map[string]*heardBoot{}, restarts: map[string]time.Time{}, offs: map[string]time.Time{}, strangers: map[string]Stranger{}, changed: make(chan struct{}, 1)}
}

// Changed receives after something new was heard.
func (h *Heard) Changed() <-chan struct{} { return h.changed }

// Seen is what was heard of a machine's newest boot.
func (h *Heard) Seen(uid string) lifecycle.BootSeen {
	h.mu.Lock()
	defer h.mu.Unlock()
	var seen lifecycle.BootSeen
	if b := h.boots[uid]; b != nil {
		seen = b.seen
	}
	seen.Stages, seen.Restarted, seen.ToldOff = slices.Clone(seen.Stages), h.restarts[uid], h.offs[uid]
	return seen
}

// Report is what a machine reported of itself in the boot of that generation.
func (h *Heard) Report(uid string, generation int64) (boot.Report, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.boots[uid]
	if b == nil || b.seen.Generation != generation || b.report == nil {
		return boot.Report{}, false
	}
	return *b.report, true
}

// Hardware is what a machine reported that it is made of, in the boot of that generation; nil: nothing yet.
func (h *Heard) Hardware(uid string, generation int64) *api.Hardware {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.boots[uid]
	switch {
	case b == nil || b.seen.Generation != generation:
		return nil
	case b.report != nil:
		return &b.report.Hardware
	default:
		return b.cleaned
	}
}

// Strangers are those that have reported and were not forgotten.
func (h *Heard) Strangers() []Stranger {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]Stranger, 0, len(h.strangers))
	for _, s := range h.strangers {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Stranger) int { return slices.Compare([]byte(a.MAC), []byte(b.MAC)) })
	return list
}

// ForgetStranger drops one that was taken in, or whose token was refused.
func (h *Heard) ForgetStranger(mac string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.strangers, mac)
}

// ForgetMachine drops what was heard of a machine.
func (h *Heard) ForgetMachine(uid string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.boots, uid)
	delete(h.restarts, uid)
	delete(h.offs, uid)
}

// Problems returns what network boot complained of since the last call, for the log and the events of the site.
func (h *Heard) Problems() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	problems := h.problems
	h.problems = nil
	return problems
}

// Event takes what network boot saw of the machine of that UID; it is meant for a netboot.Sink.
func (h *Heard) Event(uid string, e netboot.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.Problem != "" {
		h.complain(e.Problem)
	}
	if uid == "" {
		return
	}
	if e.Generation == 0 {
		if e.Stage == api.StageFirmware {
			h.restarts[uid] = h.now()
			h.tell()
		}
		return
	}
	b := h.of(uid, e.Generation)
	if b == nil {
		return
	}
	b.seen.LastHeard = h.now()
	b.seen.LoaderBytes += e.Bytes
	if e.Firmware != "" {
		b.seen.Firmware = e.Firmware
	}
	if e.Architecture != "" {
		b.seen.Architecture = e.Architecture
	}
	if e.Stage != "" && addStage(&b.seen, e.Stage, h.now()) {
		h.tell()
	}
}

func (h *Heard) redeemed(uid string, generation int64, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if b := h.of(uid, generation); b != nil {
		b.seen.RedeemedAt, b.seen.LastHeard = at, at
		addStage(&b.seen, api.StageKernel, at)
		h.tell()
	}
}

// toldOff notes that a machine was told to power itself off.
func (h *Heard) toldOff(uid string, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, before := h.offs[uid]; !before {
		h.tell() // when it asks again, its silence begins later, which is looked at anyway
	}
	h.offs[uid] = at
}

// startedAnew notes that a machine began its boot a second time.
func (h *Heard) startedAnew(uid string, generation int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if b := h.of(uid, generation); b != nil && b.seen.Problem == "" {
		b.seen.Problem = "restarted in the middle of its boot: it lost power, was reset, or crashed"
		h.tell()
	}
}

// stage notes that a stage has ended, and those before it that this process has not heard of.
func (h *Heard) stage(uid string, generation int64, report boot.StageReport, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.of(uid, generation)
	if b == nil {
		return
	}
	b.seen.LastHeard = now
	b.seen.RootBytes, b.seen.PeerBytes = max(b.seen.RootBytes, report.RootBytes), max(b.seen.PeerBytes, report.PeerBytes)
	news := report.Problem != b.seen.Problem
	b.seen.Problem = report.Problem
	if report.Local && !b.seen.Local {
		b.seen.Local, news = true, true
	}
	ended := report.Earlier[:min(len(report.Earlier), len(api.BootStages()))]
	if report.Problem == "" {
		ended = append(slices.Clip(ended), boot.EarlierStage{Stage: report.Stage, AgoSeconds: report.AgoSeconds, ReadBytes: report.ReadBytes})
	}
	for _, s := range ended {
		at := now.Add(-time.Duration(min(max(s.AgoSeconds, 0), sessionLife.Seconds()) * float64(time.Second)))
		switch s.Stage {
		case api.StageAgent:
			b.seen.ReadyBytes = max(b.seen.ReadyBytes, s.ReadBytes)
		case api.StageKernel, api.StageRoot:
			news = addStage(&b.seen, s.Stage, at) || news
		default: // when the agent is connected the leader knows itself, and with it when the machine is ready
		}
	}
	if news {
		h.tell()
	}
}

func (h *Heard) reported(uid string, generation int64, report boot.Report, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.of(uid, generation)
	if b == nil {
		return
	}
	h.heardOf(b, now)
	if b.report == nil {
		b.report = &report
		b.seen.Reported, b.seen.Health = true, report.Health
		h.tell()
	}
}

// longSilence is the silence after which the next word of a machine is news: it may have been cut off, and be wanted off.
const longSilence = time.Minute

// heardOf notes that a machine said something; the lock is held.
func (h *Heard) heardOf(b *heardBoot, now time.Time) {
	if !b.seen.LastHeard.IsZero() && now.Sub(b.seen.LastHeard) > longSilence {
		h.tell()
	}
	b.seen.LastHeard = now
}

func (h *Heard) stranger(s Stranger) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old, ok := h.strangers[s.MAC]; !ok && len(h.strangers) < maxStrangers || ok && old.Token != s.Token {
		h.strangers[s.MAC] = s
		h.tell()
	}
}

func (h *Heard) strangerTrouble(mac, problem string) {
	if problem == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.complain("stranger " + mac + ": " + problem)
}

// complain notes what network boot or a stranger complains of; the lock is held. What is said already, or is too much, is dropped: only a
// leader takes it away.
func (h *Heard) complain(problem string) {
	if len(h.problems) < maxProblems && !slices.Contains(h.problems, problem) {
		h.problems = append(h.problems, problem)
		h.tell()
	}
}

// of is what was heard of a machine's boot of that generation; nil when a newer one is known.
func (h *Heard) of(uid string, generation int64) *heardBoot {
	b := h.boots[uid]
	switch {
	case b == nil || b.seen.Generation < generation:
		b = &heardBoot{seen: lifecycle.BootSeen{Generation: generation}}
		h.boots[uid] = b
	case b.seen.Generation > generation:
		return nil
	}
	return b
}

// addStage notes the first end of a stage.
func addStage(seen *lifecycle.BootSeen, stage api.BootStage, at time.Time) bool {
	if slices.ContainsFunc(seen.Stages, func(s api.StageTime) bool { return s.Stage == stage }) {
		return false
	}
	seen.Stages = append(seen.Stages, api.StageTime{Stage: stage, At: at})
	return true
}

func (h *Heard) tell() {
	select {
	case h.changed <- struct{}{}:
	default: // somebody is about to look anyway
	}
}
