package sim

import (
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// mostJobsKept is how many jobs that have ended are kept (internal/lifecycle).
const mostJobsKept = 1000

// isOld reports whether the site gets as old as it takes to forget jobs and builds. Few do: it costs a thousand jobs.
func (w *world) isOld() bool { return w.cfg.Seed%16 == 9 }

// submitMany lets a user submit so many jobs, and cancel all of them, that those before them are forgotten.
func (w *world) submitMany() {
	s := w.up()
	if !w.isOld() || s == nil || !w.cfg.Kinds.Has(Jobs) {
		return
	}
	for _, c := range s.cache.View().Clusters {
		if c.Record == nil || c.Record.Phase != api.ClusterReady {
			continue
		}
		w.trace("%d jobs in %s, all of them cancelled", mostJobsKept, c.Name())
		for range mostJobsKept {
			w.ids++
			_, err := s.repo.CreateJob(s.ctx, api.Job{
				ID: fmt.Sprintf("j%d", w.ids), Cluster: c.Name(), ClusterUID: c.UID(), Phase: api.JobPending, CreatedAt: s.now(),
				CancelRequested: true, JobRequest: api.JobRequest{Command: []string{"true"}},
			})
			w.must(err)
		}
		return
	}
}

// growOld lets a month pass, which an old site's last server finds on the clock when it starts, and looks at what is left of what is kept no
// longer than that.
func (w *world) growOld() {
	if !w.isOld() {
		w.ended = true
		return
	}
	w.ahead = state.EventsKeptAfter + time.Hour
	w.crash(w.up(), time.Second)
	w.await(settling, func() bool { return w.builds() == 0 }, func() {
		if n := w.builds(); n > 0 {
			w.fail("kept", "%d builds that have ended a month ago are still there", n)
		}
		w.read(func(m *mirror) {
			if len(m.jobs) > mostJobsKept {
				w.fail("kept", "%d jobs are kept, and all of them have ended", len(m.jobs))
			}
		})
		w.ended = true
	})
}

// builds is how many are stored.
func (w *world) builds() (n int) {
	w.read(func(m *mirror) { n = len(m.builds) })
	return n
}
