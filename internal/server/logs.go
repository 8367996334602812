package server

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// logLimits are the limits of stored output: as configured, else by the size of the file system.
func logLimits(cfg config.Logs, dir string) (monitor.LogLimits, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return monitor.LogLimits{}, fmt.Errorf("can't read the size of the file system of %s: %w", dir, err)
	}
	return monitor.LimitsFor(monitor.LogLimits(cfg), int64(st.Blocks)*st.Bsize), nil
}

// runOf finds the run of a job or build whose output has this name (api.Job.RunID, api.Build.RunID).
func runOf(view *state.View, name string) (monitor.Run, bool) {
	id, isBuild := strings.CutPrefix(name, "build.")
	attempt := 0
	if i := strings.LastIndexByte(id, '.'); i >= 0 {
		n, err := strconv.Atoi(id[i+1:])
		if err != nil {
			return monitor.Run{}, false
		}
		id, attempt = id[:i], n
	}
	if isBuild {
		b := view.Build(id)
		if b == nil {
			return monitor.Run{}, false
		}
		return ended(monitor.Run{}, b.Phase.Ended(), b.EndedAt, attempt < b.Attempt, b.CreatedAt), true
	}
	j := view.Job(id)
	if j == nil {
		return monitor.Run{}, false
	}
	project, _ := tenancy.Split(j.Cluster)
	return ended(monitor.Run{Project: project}, j.Phase.Ended(), j.EndedAt, attempt < j.Attempt, j.CreatedAt), true
}

// ended fills in whether and when a run has ended. An earlier attempt did so at a time that is not stored, after the creation.
func ended(run monitor.Run, over bool, at *time.Time, earlier bool, created time.Time) monitor.Run {
	switch {
	case earlier:
		run.Ended, run.EndedAt = true, created
	case over && at != nil:
		run.Ended, run.EndedAt = true, *at
	case over:
		run.Ended, run.EndedAt = true, created
	}
	return run
}
