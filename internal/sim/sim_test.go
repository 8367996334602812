package sim

import (
	"bytes"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

const lives = 30

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
	if os.Getenv("NEARMETAL_SIM_SEED") != "" {
		return number("NEARMETAL_SIM_SEED", 0), 1
	}
	return 1, number("NEARMETAL_SIM_SEEDS", 200)
}

func TestRandomLivesKeepEveryInvariant(t *testing.T) {
	first, count := seeds(t)
	// A run leaves much garbage behind and little else: collect it rarely.
	defer debug.SetGCPercent(debug.SetGCPercent(1000))
	start := time.Now()
	total := Stats{Transitions: map[string]int{}, Events: map[string]int{}}
	for seed := first; seed < first+count; seed++ {
		stats, err := Run(Config{Seed: seed, Lives: lives})
		if err != nil {
			t.Fatalf("%v\n\nthe last steps:\n%s\nreplay: NEARMETAL_SIM_SEED=%d go test ./internal/sim -run %s -v", err, lastSteps(seed), seed, t.Name())
		}
		total.add(stats)
	}
	took := time.Since(start)
	t.Logf("%d sites, %d cluster lives, %d steps, %d commits, %d elections, %d commits of deposed leaders refused, %s of virtual time: %.0f lives/s",
		count, total.Lives, total.Steps, total.Commits, total.Elections, total.Rejected, total.Virtual.Round(time.Hour), float64(total.Lives)/took.Seconds())
	if count == 1 {
		t.Logf("all steps:\n%s", steps(first))
	}
	if count >= 100 {
		checkCoverage(t, total)
	}
}

func (s *Stats) add(o Stats) {
	s.Lives, s.Steps, s.Commits = s.Lives+o.Lives, s.Steps+o.Steps, s.Commits+o.Commits
	s.Elections, s.Rejected, s.Virtual = s.Elections+o.Elections, s.Rejected+o.Rejected, s.Virtual+o.Virtual
	for k, n := range o.Transitions {
		s.Transitions[k] += n
	}
	for k, n := range o.Events {
		s.Events[k] += n
	}
}

func steps(seed uint64) string {
	var trace bytes.Buffer
	_, _ = Run(Config{Seed: seed, Lives: lives, Trace: &trace})
	return trace.String()
}

func lastSteps(seed uint64) string {
	all := strings.SplitAfter(steps(seed), "\n")
	return strings.Join(all[max(0, len(all)-40):], "")
}

func TestARunIsDeterminedByItsSeed(t *testing.T) {
	for seed := range uint64(5) {
		if one, other := steps(seed), steps(seed); one != other {
			t.Fatalf("seed %d: two runs differ", seed)
		}
	}
	if steps(1) == steps(2) {
		t.Error("two seeds give the same run")
	}
}

func TestWithoutAGuardACheckFails(t *testing.T) {
	// What the first check to notice says; empty where that differs from run to run.
	for guard, want := range map[Guard]string{
		GuardElection:   "",
		GuardEpoch:      "",
		GuardLooking:    "was confirmed clean and is",
		GuardConfirming: "was confirmed clean and is",
		GuardQuarantine: "is allocated twice",
		GuardGrace:      "is called down",
		GuardReported:   "is called degraded",
		GuardRecovery:   "is called degraded",
		GuardGarbage:    "are left for ever",
		GuardCurrent:    "",
		GuardDebris:     "",
		GuardDeadline:   "its deadline is",
	} {
		t.Run(string(guard), func(t *testing.T) {
			for seed := uint64(1); seed <= 300; seed++ {
				if _, err := Run(Config{Seed: seed, Lives: lives, Without: guard}); err != nil {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("want a failure with %q, got %v", want, err)
					}
					t.Log(err)
					return
				}
			}
			t.Error("no check of 300 runs has noticed that the guard is missing")
		})
	}
}

// unseen are transitions that the lives here do not go through, with the reason.
var unseen = map[string]string{
	"node ready -> down":           "the leader looks at half the death timer, when it is unknown",
	"node ready -> gone":           "nobody takes nodes out of the inventory",
	"node unknown -> gone":         "nobody takes nodes out of the inventory",
	"node down -> gone":            "nobody takes nodes out of the inventory",
	"member ready -> starting":     "a restart takes longer than a report, which comes in between",
	"member assigned -> ready":     "a start takes longer than a report, which comes in between",
	"member starting -> failed":    "it is tried again first",
	"member assigned -> failed":    "it is tried again first",
	"member failed -> starting":    "a start takes longer than a report, which comes in between",
	"member failed -> ready":       "a start takes longer than a report, which comes in between",
	"member failed -> preparing":   "the failures are forgotten ten minutes later only, or with the agent, and then it is unknown first",
	"member preparing -> assigned": "a host is not reinstalled while its agent is connected",
	"member starting -> assigned":  "a host is not reinstalled while its agent is connected",
	"member ready -> assigned":     "a host is not reinstalled while its agent is connected",
	"member failed -> assigned":    "a host is not reinstalled while its agent is connected",
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
		lifecycle.EventPlaced, lifecycle.EventRefused, lifecycle.EventReady, lifecycle.EventDegraded, lifecycle.EventFailed, lifecycle.EventDeleting,
		lifecycle.EventDeleted, lifecycle.EventQuarantined, lifecycle.EventQuarantineOver, lifecycle.EventNodeReady, lifecycle.EventNodeUnknown,
		lifecycle.EventNodeDown,
	} {
		if s.Events[reason] == 0 {
			t.Errorf("no life saw the event %q", reason)
		}
	}
	if s.Rejected == 0 {
		t.Error("no deposed leader tried to commit")
	}
}
