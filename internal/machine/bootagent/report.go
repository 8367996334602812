package bootagent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
)

// reporter tells the server of stages, one after the other, each until it is heard. It never holds up the boot.
type reporter struct {
	calls *calls
	log   *slog.Logger
	obey  func(boot.Instruction)

	mu    sync.Mutex
	queue []queued
	sent  []queued // without problems
	more  chan struct{}
	last  api.BootStage
	idle  chan struct{}
}

type queued struct {
	report boot.StageReport
	at     time.Time
}

func newReporter(c *calls, log *slog.Logger, obey func(boot.Instruction)) *reporter {
	return &reporter{calls: c, log: log, obey: obey, more: make(chan struct{}, 1), idle: make(chan struct{})}
}

// stage tells that a stage has ended now.
func (r *reporter) stage(report boot.StageReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if report.Problem == "" {
		r.last = report.Stage
	}
	r.queue = append(r.queue, queued{report: report, at: time.Now()})
	r.idle = make(chan struct{})
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// problem tells why the stage after the last one can't end.
func (r *reporter) problem(err error) {
	r.mu.Lock()
	stage := nextStage(r.last)
	r.mu.Unlock()
	r.stage(boot.StageReport{Stage: stage, Problem: err.Error()})
}

// nextStage is the stage that goes on once one has ended.
func nextStage(ended api.BootStage) api.BootStage {
	stages := api.BootStages()
	for i, s := range stages[:len(stages)-1] {
		if s == ended {
			return stages[i+1]
		}
	}
	return ended
}

// told is closed once all that was to be told is.
func (r *reporter) told() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.idle
}

// run sends until ctx ends.
func (r *reporter) run(ctx context.Context) {
	for try := 0; ; {
		r.mu.Lock()
		var next queued
		waiting := len(r.queue)
		if waiting > 0 {
			next = r.queue[0]
		}
		r.mu.Unlock()
		if waiting == 0 {
			select {
			case <-r.more:
			case <-ctx.Done():
				return
			}
			continue
		}
		next.report.AgoSeconds = time.Since(next.at).Seconds()
		next.report.Earlier = r.earlier()
		var answer boot.Instruction
		err := r.calls.post(ctx, boot.StagePath, next.report, &answer)
		if err != nil && !isFinal(err) && (try < 20 || next.report.Local) {
			r.log.Warn("a stage can't be reported", "stage", next.report.Stage, "error", err)
			if backoff(ctx, min(try, 3)) != nil {
				return
			}
			try++
			continue
		}
		if err != nil {
			r.log.Error("a stage was not reported", "stage", next.report.Stage, "error", err)
		}
		// The last stage is told until it is written down: without it the machine would never be ready.
		if err == nil && next.report.Local && answer.Do == "wait" {
			r.obey(answer)
			select {
			case <-time.After(max(time.Second, time.Duration(answer.RetrySeconds*float64(time.Second)))):
				continue
			case <-ctx.Done():
				return
			}
		}
		try = 0
		r.obey(answer)
		r.done()
	}
}

// earlier are the stages that were told before.
func (r *reporter) earlier() (all []boot.EarlierStage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sent {
		all = append(all, boot.EarlierStage{Stage: s.report.Stage, AgoSeconds: time.Since(s.at).Seconds(), ReadBytes: s.report.ReadBytes})
	}
	return all
}

func (r *reporter) done() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue[0].report.Problem == "" {
		r.sent = append(r.sent, r.queue[0])
	}
	if r.queue = r.queue[1:]; len(r.queue) == 0 {
		close(r.idle)
	}
}
