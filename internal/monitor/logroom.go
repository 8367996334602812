package monitor

import (
	"cmp"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// verdict is what becomes of output that a member sends.
type verdict int

const (
	// store: it is stored.
	store verdict = iota
	// discard: as much of the run is stored as ever will be. The member throws the rest away and counts it.
	discard
	// wait: there is no room at present. The member keeps it, and the job waits while its member holds too much.
	wait
)

// LogLimits bound the stored output, in bytes.
type LogLimits struct {
	// JobBytes bounds one run of a job or build, ProjectBytes all runs of a project, SiteBytes all runs.
	JobBytes, ProjectBytes, SiteBytes int64
}

// Defaults of the limits.
const (
	defaultJobBytes = 256 << 20
	maxSiteBytes    = 50 << 30
	siteShare       = 10 // of the file system
)

// LimitsFor fills in limits that are 0 by the size of the file system that the logs are on: a tenth of it for the site, but not more than
// 50 GiB, half of that for a project, and for a job 256 MiB, but not more than a quarter of a project's.
func LimitsFor(l LogLimits, fileSystemBytes int64) LogLimits {
	l.SiteBytes = cmp.Or(l.SiteBytes, min(fileSystemBytes/siteShare, maxSiteBytes))
	l.ProjectBytes = cmp.Or(l.ProjectBytes, l.SiteBytes/2)
	l.JobBytes = cmp.Or(l.JobBytes, min(l.ProjectBytes/4, defaultJobBytes))
	return l
}

// Run is a run of a job or build, as the bounds of logs need it.
type Run struct {
	// Project is empty for builds, which no project owns.
	Project string
	Ended   bool
	EndedAt time.Time
}

// removedDir is the folder, below that of the logs, with an empty file for every log that was removed to make room.
const removedDir = "removed"

// logRoom decides how much output is stored, and removes logs of ended runs to make room.
type logRoom struct {
	dir    string
	limits LogLimits
	// find returns what is stored of a run; false: nothing is, and its log is debris.
	find func(run string) (Run, bool)
	// diskFull is Config.DiskFull.
	diskFull func() error
	log      *slog.Logger

	mu       sync.Mutex
	logs     map[string]storedLog
	total    int64
	projects map[string]int64
	removed  map[string]bool
}

// storedLog is the log of one run.
type storedLog struct {
	project string
	bytes   int64
}

func newLogRoom(dir string, limits LogLimits, find func(string) (Run, bool), log *slog.Logger) *logRoom {
	r := &logRoom{
		dir: dir, limits: limits, find: find, log: log, logs: map[string]storedLog{}, projects: map[string]int64{}, removed: map[string]bool{},
	}
	entries, _ := os.ReadDir(dir) // a folder that can't be read fails every write later
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			r.settle(e.Name(), info.Size())
		}
	}
	markers, _ := os.ReadDir(filepath.Join(dir, removedDir))
	for _, e := range markers {
		r.removed[e.Name()] = true
	}
	return r
}

// judge decides about more bytes of output that follow the have bytes stored of a run: how many of them may be stored now, and what
// becomes of the rest. No other place decides that. It may remove logs of ended runs.
func (r *logRoom) judge(run string, have, more int64) (room int64, rest verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.removed[run] || have >= r.limits.JobBytes:
		return 0, discard
	case more <= 0:
		return 0, store
	}
	if r.full() != nil {
		return 0, wait // and no log is removed: whatever else fills the disk would take its room
	}
	room = min(more, r.limits.JobBytes-have)
	if free := r.free(run, room); free < room {
		return free, wait
	}
	if room < more {
		return room, discard
	}
	return room, store
}

// free makes room for more bytes of a run, and returns how many of them there is room for; r.mu is held.
func (r *logRoom) free(run string, need int64) int64 {
	info, _ := r.find(run)
	for {
		inProject, inSite := r.limits.ProjectBytes-r.projects[info.Project], r.limits.SiteBytes-r.total
		if need <= inProject && need <= inSite {
			return need
		}
		if !r.remove(r.victim(info.Project, need <= inProject)) {
			return max(0, min(inProject, inSite, need))
		}
	}
}

// victim is the log to be removed first, empty for none: debris, else that of the run which ended first. Of a whole site it is one of the
// project that holds the most, so that no project drives out the logs of another that holds less. r.mu is held.
func (r *logRoom) victim(project string, wholeSite bool) string {
	first, firstEnd, firstHeld := "", time.Time{}, int64(-1)
	for name, log := range r.logs {
		run, found := r.find(name)
		if !found {
			return name
		}
		if !run.Ended || log.bytes == 0 || !wholeSite && log.project != project {
			continue
		}
		held := int64(0)
		if wholeSite {
			held = r.projects[log.project]
		}
		order := cmp.Or(cmp.Compare(firstHeld, held), run.EndedAt.Compare(firstEnd), cmp.Compare(name, first))
		if first == "" || order < 0 {
			first, firstEnd, firstHeld = name, run.EndedAt, held
		}
	}
	return first
}

// remove removes a log and notes that it did so, first; r.mu is held.
func (r *logRoom) remove(name string) bool {
	if name == "" {
		return false
	}
	bytes := r.logs[name].bytes
	_, found := r.find(name)
	var err error
	if found {
		err = errors.Join(os.MkdirAll(filepath.Join(r.dir, removedDir), 0o700), os.WriteFile(filepath.Join(r.dir, removedDir, name), nil, 0o600))
	}
	if err == nil {
		err = os.Remove(filepath.Join(r.dir, name))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.log.Error("can't remove a log to make room for others", "run", name, "error", err)
		return false
	}
	r.log.Info("removed the log of an ended run to make room for others", "run", name, "bytes", bytes)
	if found {
		r.removed[name] = true
	}
	r.count(name, -bytes)
	delete(r.logs, name)
	return true
}

// settle notes how much of a run is stored.
func (r *logRoom) settle(run string, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	log, known := r.logs[run]
	if !known {
		info, _ := r.find(run)
		log = storedLog{project: info.Project}
		r.logs[run] = log
	}
	r.count(run, bytes-log.bytes)
}

// count adds to what is stored of a run; r.mu is held.
func (r *logRoom) count(run string, bytes int64) {
	log := r.logs[run]
	log.bytes += bytes
	r.logs[run] = log
	r.total += bytes
	if r.projects[log.project] += bytes; r.projects[log.project] == 0 {
		delete(r.projects, log.project)
	}
}

func (r *logRoom) wasRemoved(run string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.removed[run]
}

// forget drops what is known of a run whose log is gone with its job.
func (r *logRoom) forget(run string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.logs[run]; known {
		r.count(run, -r.logs[run].bytes)
		delete(r.logs, run)
	}
	if !r.removed[run] {
		return nil
	}
	delete(r.removed, run)
	if err := os.Remove(filepath.Join(r.dir, removedDir, run)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// full returns why the disk has no room, or nil.
func (r *logRoom) full() error {
	if r.diskFull == nil {
		return nil
	}
	return r.diskFull()
}
