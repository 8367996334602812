package monitor

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// bounded is a monitor with limits and these runs; a run that is not among them is unknown.
func bounded(t *testing.T, dir string, limits LogLimits, runs map[string]Run) *Monitor {
	t.Helper()
	return New(Config{
		LogDir: dir, LogLimits: limits, DeathTimer: time.Second, Now: time.Now, Log: slog.New(slog.DiscardHandler),
		Run: func(name string) (Run, bool) {
			run, ok := runs[name]
			return run, ok
		},
	})
}

func endedAt(project string, minute int) Run {
	return Run{Project: project, Ended: true, EndedAt: time.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC)}
}

// fill stores output of a run and returns what became of it.
func fill(t *testing.T, m *Monitor, run string, bytes int) verdict {
	t.Helper()
	log := m.log(run)
	_, rest, err := log.append(log.size(), []byte(strings.Repeat("x", bytes)))
	if err != nil {
		t.Fatal(err)
	}
	return rest
}

// checkLogs checks which logs are stored.
func checkLogs(t *testing.T, m *Monitor, want ...string) {
	t.Helper()
	var got []string
	entries, err := os.ReadDir(m.cfg.LogDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			got = append(got, e.Name())
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("stored are the logs of %q, want %q", got, want)
	}
}

func TestTheLogOfTheProjectsRunThatEndedFirstIsRemovedFirstAndThatIsRemembered(t *testing.T) {
	runs := map[string]Run{
		"late": endedAt("p", 9), "early": endedAt("p", 1), "running": {Project: "p"}, "other": endedAt("q", 0),
	}
	dir := t.TempDir()
	limits := LogLimits{JobBytes: 100, ProjectBytes: 100, SiteBytes: 1000}
	m := bounded(t, dir, limits, runs)
	for run, bytes := range map[string]int{"late": 30, "early": 30, "running": 30, "other": 100} {
		fill(t, m, run, bytes)
	}
	checkLogs(t, m, "early", "late", "other", "running")
	if rest := fill(t, m, "running", 20); rest != store {
		t.Errorf("more output of a running job: %v, want it stored", rest)
	}
	checkLogs(t, m, "late", "other", "running")
	for _, m := range []*Monitor{m, bounded(t, dir, limits, runs)} { // the second one is after a restart
		if !m.LogRemoved("early") || m.LogRemoved("late") {
			t.Errorf("removed: early %t, late %t; want early alone", m.LogRemoved("early"), m.LogRemoved("late"))
		}
		if rest := fill(t, m, "early", 1); rest != discard {
			t.Errorf("late output of a removed log: %v, want it discarded", rest)
		}
	}
	if err := m.DropLog("early"); err != nil || m.LogRemoved("early") {
		t.Errorf("once the job is gone its log is still remembered as removed (%v)", err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, removedDir)); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestWithNoLogOfAnEndedRunToRemoveOutputWaitsUntilOneEnds(t *testing.T) {
	runs := map[string]Run{"a": {Project: "p"}, "b": {Project: "p"}}
	m := bounded(t, t.TempDir(), LogLimits{JobBytes: 100, ProjectBytes: 100, SiteBytes: 1000}, runs)
	fill(t, m, "a", 80)
	if rest := fill(t, m, "b", 40); rest != wait || m.LogBytes("b") != 20 {
		t.Errorf("%v with %d bytes stored, want 20 stored and the rest to wait", rest, m.LogBytes("b"))
	}
	if ack, room := m.log("b").look(); room || ack.Discard || ack.Offset != 20 {
		t.Errorf("%+v, room %t; want it to wait", ack, room)
	}
	runs["a"] = endedAt("p", 1)
	if ack, room := m.log("b").look(); !room || ack.Discard {
		t.Errorf("after the other has ended: %+v, room %t; want room", ack, room)
	}
	checkLogs(t, m, "b")
}

func TestAProjectThatFillsTheSiteLosesItsOwnLogsFirst(t *testing.T) {
	runs := map[string]Run{"p1": endedAt("p", 1), "q1": endedAt("q", 5), "q2": endedAt("q", 6), "q3": {Project: "q"}}
	m := bounded(t, t.TempDir(), LogLimits{JobBytes: 100, ProjectBytes: 200, SiteBytes: 200}, runs)
	fill(t, m, "p1", 50)
	fill(t, m, "q1", 60)
	fill(t, m, "q2", 60)
	fill(t, m, "q3", 60)
	checkLogs(t, m, "p1", "q2", "q3")
}

func TestALogWithoutAJobIsRemovedBeforeAnyOther(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "debris"), make([]byte, 90), 0o600); err != nil {
		t.Fatal(err)
	}
	m := bounded(t, dir, LogLimits{JobBytes: 100, ProjectBytes: 100, SiteBytes: 150}, map[string]Run{"a": endedAt("p", 1), "b": {Project: "q"}})
	fill(t, m, "a", 50)
	fill(t, m, "b", 50)
	checkLogs(t, m, "a", "b")
	if m.LogRemoved("debris") {
		t.Error("it is remembered though no job can ask for it")
	}
}

func TestHeldOutputOfAStreamIsAskedForOnceThereIsRoom(t *testing.T) {
	runs := map[string]Run{"a": {Project: "p"}, "b": {Project: "p"}}
	m := bounded(t, t.TempDir(), LogLimits{JobBytes: 100, ProjectBytes: 100, SiteBytes: 1000}, runs)
	fill(t, m, "a", 80)
	s := newStream(nil, func(error) {})
	s.follow("b")
	m.takeOutput(t.Context(), "n1", s, &agentstream.Log{JobID: "b", Data: make([]byte, 40)})
	m.askAgain(s)
	if ack := s.acks["b"]; ack.Again || ack.Offset != 20 {
		t.Errorf("without room: %+v, want nothing asked for", ack)
	}
	runs["a"] = endedAt("p", 1)
	m.askAgain(s)
	if want := (agentstream.LogAck{JobID: "b", Offset: 20, Again: true}); s.acks["b"] != want {
		t.Errorf("with room: %+v, want %+v", s.acks["b"], want)
	}
}

func TestLimitsFollowTheSizeOfTheFileSystem(t *testing.T) {
	for _, c := range []struct {
		given LogLimits
		bytes int64
		want  LogLimits
	}{
		{LogLimits{}, 4 << 40, LogLimits{JobBytes: 256 << 20, ProjectBytes: 25 << 30, SiteBytes: 50 << 30}},
		{LogLimits{}, 10 << 30, LogLimits{JobBytes: 128 << 20, ProjectBytes: 512 << 20, SiteBytes: 1 << 30}},
		{LogLimits{JobBytes: 2 << 30}, 4 << 40, LogLimits{JobBytes: 2 << 30, ProjectBytes: 25 << 30, SiteBytes: 50 << 30}},
		{LogLimits{SiteBytes: 4 << 30, ProjectBytes: 3 << 30}, 1 << 30, LogLimits{JobBytes: 256 << 20, ProjectBytes: 3 << 30, SiteBytes: 4 << 30}},
	} {
		if got := LimitsFor(c.given, c.bytes); got != c.want {
			t.Errorf("%+v on %d bytes: got %+v, want %+v", c.given, c.bytes, got, c.want)
		}
	}
}
