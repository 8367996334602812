package sim

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// seeds is how many sites the test lives through: NEARMETAL_SIM_SEEDS, or a few hundred.
func seeds(t *testing.T) (first, count uint64) {
	t.Helper()
	number := func(name string, otherwise uint64) uint64 {
		text := os.Getenv(name)
		if text == "" {
			return otherwise
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s is not a number: %v", name, err)
		}
		return n
	}
	return number("NEARMETAL_SIM_FIRST", 1), number("NEARMETAL_SIM_SEEDS", 150)
}

func TestRandomLivesKeepEveryInvariant(t *testing.T) {
	first, count := seeds(t)
	// A run leaves much garbage behind and little else: collect it rarely.
	defer debug.SetGCPercent(debug.SetGCPercent(1000))
	start := time.Now()
	total, failed := runAll(first, count)
	if failed != nil {
		t.Fatal(explain(Config{}, failed))
	}
	took := time.Since(start).Seconds()
	t.Logf("%d sites, %d cluster lives, %d steps, %d commits, %d elections, %d commits of deposed leaders refused, %s of virtual time",
		count, total.Lives, total.Steps, total.Commits, total.Elections, total.Rejected, total.Virtual.Round(time.Hour))
	t.Logf("%.0f lives/s, %.0f steps/s", float64(total.Lives)/took, float64(total.Steps)/took)
	for _, what := range slices.Sorted(maps.Keys(total.Happened)) {
		t.Logf("%8d %s", total.Happened[what], what)
	}
	if count >= 100 {
		checkCoverage(t, total)
	}
}

// runAll runs seeds on all cores until one fails.
func runAll(first, count uint64) (Stats, *Violation) {
	next := make(chan uint64)
	stop := make(chan struct{})
	var mu sync.Mutex
	total, failed := Stats{Transitions: map[string]int{}, Events: map[string]int{}, Happened: map[string]int{}}, (*Violation)(nil)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for seed := range next {
				stats, err := Run(Config{Settings: NewSettings(seed)})
				mu.Lock()
				total.add(stats)
				var v *Violation
				if errors.As(err, &v) && failed == nil {
					failed = v
					close(stop)
				}
				mu.Unlock()
			}
		})
	}
	for seed := first; seed < first+count; seed++ {
		select {
		case next <- seed:
			continue
		case <-stop:
		}
		break
	}
	close(next)
	workers.Wait()
	return total, failed
}

// explain makes a failing run smaller and says how to replay it.
func explain(cfg Config, failed *Violation) string {
	small := Shrink(cfg, failed)
	return fmt.Sprintf("%v\n\nmade smaller: %v\n\nits last steps:\n%s\nreplay with every step: NEARMETAL_SIM_SEED='%s' go test ./internal/sim -run TestReplay -v",
		failed, small, lastSteps(Config{Settings: small.Settings, Without: cfg.Without}), small.Settings)
}

func TestReplay(t *testing.T) {
	text := os.Getenv("NEARMETAL_SIM_SEED")
	if text == "" {
		t.Skip("NEARMETAL_SIM_SEED names no run to replay")
	}
	settings, err := ParseSettings(text)
	if err != nil {
		t.Fatalf("NEARMETAL_SIM_SEED: %v", err)
	}
	cfg := Config{Settings: settings, Without: Guard(os.Getenv("NEARMETAL_SIM_WITHOUT"))}
	_, err = Run(cfg)
	t.Logf("all steps:\n%s", steps(cfg))
	if err != nil {
		t.Fatal(err)
	}
}

func (s *Stats) add(o Stats) {
	s.Lives, s.Steps, s.Commits = s.Lives+o.Lives, s.Steps+o.Steps, s.Commits+o.Commits
	s.Elections, s.Rejected, s.Virtual = s.Elections+o.Elections, s.Rejected+o.Rejected, s.Virtual+o.Virtual
	for _, counts := range []struct{ to, from map[string]int }{{s.Transitions, o.Transitions}, {s.Events, o.Events}, {s.Happened, o.Happened}} {
		for k, n := range counts.from {
			counts.to[k] += n
		}
	}
}

func steps(cfg Config) string {
	var trace bytes.Buffer
	cfg.Trace = &trace
	_, _ = Run(cfg)
	return trace.String()
}

func lastSteps(cfg Config) string {
	all := strings.SplitAfter(steps(cfg), "\n")
	return strings.Join(all[max(0, len(all)-40):], "")
}

func TestARunIsDeterminedByItsSettings(t *testing.T) {
	for seed := range uint64(5) {
		cfg := Config{Settings: NewSettings(seed)}
		if one, other := steps(cfg), steps(cfg); one != other {
			t.Fatalf("seed %d: two runs differ", seed)
		}
	}
	if steps(Config{Settings: NewSettings(1)}) == steps(Config{Settings: NewSettings(2)}) {
		t.Error("two seeds give the same run")
	}
}

func TestSettingsAreReadAsTheyAreWritten(t *testing.T) {
	for _, s := range []Settings{
		NewSettings(7),
		{Seed: 1, Lives: 3, Nodes: 2, Until: 95 * time.Second, Kinds: AllKinds().Without(Power, Scale)},
		{Seed: 1, Lives: DefaultLives},
	} {
		got, err := ParseSettings(s.String())
		if err != nil || got != s {
			t.Errorf("%q: want %+v, got %+v, %v", s, s, got, err)
		}
	}
	for _, text := range []string{"", "x", "1/lives=many", "1/only=power+nonsense", "1/colour=red", "1/until=5"} {
		if s, err := ParseSettings(text); err == nil {
			t.Errorf("%q: want an error, got %+v", text, s)
		}
	}
}

func TestAFailingRunIsMadeSmallerAndFailsTheSame(t *testing.T) {
	cfg := Config{Without: GuardConfirming}
	var failed *Violation
	for seed := uint64(1); failed == nil; seed++ {
		cfg.Settings = NewSettings(seed)
		_, err := Run(cfg)
		errors.As(err, &failed)
	}
	small := Shrink(cfg, failed)
	if small.Check != failed.Check {
		t.Errorf("want a failure of %q, got %v", failed.Check, small)
	}
	if small.Settings.Lives >= DefaultLives || small.Settings.Kinds == AllKinds() {
		t.Errorf("want fewer lives and kinds than in %q, got %q", failed.Settings, small.Settings)
	}
	cfg.Settings = small.Settings
	if _, err := Run(cfg); err == nil || err.Error() != small.Error() {
		t.Errorf("replay of %q: want %v, got %v", small.Settings, small, err)
	}
}

func TestWithoutAGuardACheckFails(t *testing.T) {
	// The check that notices first; empty where that differs from run to run.
	for guard, want := range map[Guard]string{
		GuardElection:   "",
		GuardConflict:   "",
		GuardEpoch:      "obedience",
		GuardTerm:       "obedience",
		GuardStream:     "",
		GuardLooking:    "hosts",
		GuardConfirming: "hosts",
		GuardLost:       "hosts",
		GuardQuarantine: "double allocation",
		GuardAddress:    "",
		GuardFence:      "identity",
		GuardGrace:      "death",
		GuardReported:   "",
		GuardRecovery:   "",
		GuardGarbage:    "end",
		GuardCurrent:    "",
		GuardDebris:     "",
		GuardDeadline:   "deadline",
		GuardEcho:       "",
		GuardUsage:      "usage",
		GuardClock:      "usage",
		GuardHead:       "queue",
		GuardQuota:      "quota",
		GuardSpare:      "",
		GuardDoubt:      "",
	} {
		t.Run(string(guard), func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= 600; seed++ {
				_, err := Run(Config{Settings: NewSettings(seed), Without: guard})
				var v *Violation
				if !errors.As(err, &v) {
					continue
				}
				if want != "" && v.Check != want {
					t.Errorf("want a failure of %q, got %v", want, v)
				}
				t.Log(v)
				return
			}
			t.Error("no check of 600 runs has noticed that the guard is missing")
		})
	}
}

// unseen are transitions that the lives here do not go through, with the reason.
var unseen = map[string]string{
	"node ready -> down":   "the leader looks at half the death timer, when it is unknown",
	"node ready -> gone":   "nobody takes nodes out of the inventory",
	"node unknown -> gone": "nobody takes nodes out of the inventory",
	"node down -> gone":    "nobody takes nodes out of the inventory",
}

// checkCoverage checks that the lives were as varied as they should be: a simulation that meets no trouble proves little.
func checkCoverage(t *testing.T, s Stats) {
	t.Helper()
	for _, m := range everyTransition() {
		if s.Transitions[m] == 0 && unseen[m] == "" {
			t.Errorf("no life went through %q", m)
		}
	}
	for _, reason := range []string{
		lifecycle.EventPlaced, lifecycle.EventQueued, lifecycle.EventRefused, lifecycle.EventMemberLost, lifecycle.EventMemberReplaced,
		lifecycle.EventScaling, lifecycle.EventReleased, lifecycle.EventPausing, lifecycle.EventPaused, lifecycle.EventResuming,
		lifecycle.EventExpiring, lifecycle.EventExpired, lifecycle.EventReady, lifecycle.EventDegraded, lifecycle.EventFailed,
		lifecycle.EventDeleting, lifecycle.EventDeleted, lifecycle.EventQuarantined, lifecycle.EventQuarantineOver, lifecycle.EventNodeReady,
		lifecycle.EventNodeUnknown, lifecycle.EventNodeDown,
	} {
		if s.Events[reason] == 0 {
			t.Errorf("no life saw the event %q", reason)
		}
	}
	for k := range kinds {
		switch k {
		case Groups, Spares, Limits, Queues, Priorities, Projects, Selectors:
			continue // what is asked for at a create is not counted
		}
		if s.Happened[k.String()] == 0 {
			t.Errorf("it never happened that %q", k)
		}
	}
	for _, what := range []string{
		"conflict", "two alive", "spare taken over", "admitted create", "admitted scale", "admitted heal", "admitted spare", "promise kept",
		"at rest ready", "at rest failed", "at rest refused", "at rest queued",
	} {
		if s.Happened[what] == 0 {
			t.Errorf("it never happened: %s", what)
		}
	}
	if s.Rejected == 0 {
		t.Error("no deposed leader tried to commit")
	}
}
