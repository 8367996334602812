package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// trialRun is one run of a trial under test: how long it takes and how it ends.
type trialRun struct {
	takes time.Duration
	err   error
	// deaf runs don't end when they are asked to.
	deaf bool
	// frozen is for how long the member is frozen at the end of the run.
	frozen time.Duration
}

var errNo = errors.New("exit code 1: no device")

func TestATrialBelievesFailuresInARow(t *testing.T) {
	const second = time.Second
	ok, no := trialRun{takes: second}, trialRun{takes: second, err: errNo}
	hung := trialRun{takes: time.Hour, err: errors.New("killed")}
	for _, c := range []struct {
		name string
		runs []trialRun
		// reports are "TIME REASON", the time being that since the start.
		reports []string
	}{
		{"one that goes well", []trialRun{ok, ok}, []string{"1s ", "32s "}},
		{"failures that are not in a row", []trialRun{no, no, ok, no, no}, []string{"1m3s "}},
		{"failures in a row, then one success", []trialRun{no, no, no, no, ok}, []string{
			`1m3s check "gpu" failed 3 times: exit code 1: no device`, "2m5s ",
		}},
		{"failures in a row that change", []trialRun{no, no, no, hung, hung, no}, []string{
			`1m3s check "gpu" failed 3 times: exit code 1: no device`, `1m43s check "gpu" failed 4 times: no answer within 10s`,
			`2m54s check "gpu" failed 6 times: exit code 1: no device`,
		}},
		{"one that never ends", []trialRun{hung, hung, hung}, []string{`1m30s check "gpu" failed 3 times: no answer within 10s`}},
		{"one that can't be ended is not started again and fails every ten seconds", []trialRun{{takes: 55 * second, deaf: true, err: errNo}}, []string{
			`30s check "gpu" failed 3 times: no answer within 10s`,
		}},
		{"a success that comes too late is none", []trialRun{{takes: 15 * second, deaf: true}, hung, hung}, []string{
			`1m35s check "gpu" failed 3 times: no answer within 10s`,
		}},
		{"failures of a member that was frozen", []trialRun{no, no, {takes: second, err: errNo, frozen: time.Hour}, no}, []string{
			`1h1m34s check "gpu" failed 3 times: exit code 1: no device`,
		}},
		{"a member frozen for longer than the timeout", []trialRun{
			{takes: time.Hour, frozen: time.Hour, err: errNo}, {takes: time.Hour, frozen: time.Hour, err: errNo}, {takes: time.Hour, frozen: time.Hour, err: errNo},
		}, nil},
		{"a success of a member that was frozen", []trialRun{no, no, {takes: second, frozen: time.Hour}, no, no}, []string{"1h1m3s "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := runTrial(t, c.runs); !slices.Equal(got, c.reports) {
					t.Errorf("%s: reports\n%s\nwant\n%s", c.name, strings.Join(got, "\n"), strings.Join(c.reports, "\n"))
				}
			})
		})
	}
}

// runTrial runs a trial over these runs, and none more.
func runTrial(t *testing.T, runs []trialRun) []string {
	began := time.Now()
	var frozen atomic.Int64 // all there was so far
	now := func() time.Time { return time.Now().Add(time.Duration(frozen.Load())) }
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var reports []string
	var under atomic.Int32
	next := 0
	check := trial{
		what: `check "gpu"`, interval: 30 * time.Second, timeout: 10 * time.Second, failures: 3, now: now,
		report: func(reason string) {
			reports = append(reports, fmt.Sprintf("%v %s", now().Sub(began).Round(time.Second), reason))
		},
	}
	check.run = func(ctx context.Context) error {
		if next == len(runs) {
			end()
			return errors.New("no more runs")
		}
		run := runs[next]
		next++
		if under.Add(1) > 1 {
			t.Error("two runs at once")
		}
		defer under.Add(-1)
		timer := time.NewTimer(run.takes)
		defer timer.Stop()
		freeze := time.AfterFunc(min(run.takes, 9*time.Second)-time.Millisecond, func() { frozen.Add(int64(run.frozen)) })
		defer freeze.Stop()
		asked := ctx.Done()
		if run.deaf {
			asked = nil
		}
		select {
		case <-timer.C:
		case <-asked:
		}
		return run.err
	}
	check.loop(ctx)
	return reports
}

func TestASparingTrialPausesLongerAfterLongRunsThatGoWell(t *testing.T) {
	const interval = 5 * time.Second
	for _, c := range []struct {
		name    string
		sparing bool
		took    time.Duration
		failed  int
		want    time.Duration
	}{
		{"a trial that is not sparing", false, time.Second, 0, interval},
		{"a short run", true, 20 * time.Millisecond, 0, interval},
		{"a run of 200 ms", true, 200 * time.Millisecond, 0, 20 * time.Second},
		{"a very long run", true, 10 * time.Second, 0, time.Minute},
		{"a long run that failed", true, 10 * time.Second, 1, interval},
	} {
		trial := trial{interval: interval, sparing: c.sparing}
		if got := trial.rest(c.took, c.failed); got != c.want {
			t.Errorf("%s: the pause is %v, want %v", c.name, got, c.want)
		}
	}
}

func TestAStopwatchLeavesOutTheTimeForWhichTheMemberWasFrozen(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name   string
		looks  []time.Duration
		used   time.Duration
		frozen bool
	}{
		{"looks in time", []time.Duration{time.Second, 2 * time.Second}, 2 * time.Second, false},
		{"a late look of a busy machine", []time.Duration{frozenGap - 1}, frozenGap - 1, false},
		{"a gap", []time.Duration{time.Second, time.Second + frozenGap, 2*time.Second + frozenGap}, 2 * time.Second, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			watch := stopwatch{last: start}
			for _, at := range c.looks {
				watch.look(start.Add(at))
			}
			if watch.used != c.used || watch.frozen != c.frozen {
				t.Errorf("%v used, frozen %v; want %v, %v", watch.used, watch.frozen, c.used, c.frozen)
			}
		})
	}
}

func TestChecksGoOnAsLongAsTheyAreWantedAndNeverTwoOfAName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Each run tells when it begins, and ends some time after it is asked to.
		type began struct{ name, command string }
		starts := make(chan began, 100)
		var mu sync.Mutex
		running := map[string]int{}
		count := func(name string, n int) int {
			mu.Lock()
			defer mu.Unlock()
			running[name] += n
			return running[name]
		}
		h := newHealth(t.Context(), func(ctx context.Context, check api.Check) error {
			if count(check.Name, 1) > 1 {
				t.Errorf("two runs of check %s at once", check.Name)
			}
			defer count(check.Name, -1)
			starts <- began{check.Name, check.Command[0]}
			<-ctx.Done()
			time.Sleep(time.Second)
			return errNo
		}, func() {})
		check := func(name, command string) api.Check {
			return api.Check{Name: name, Command: []string{command}, Interval: api.Duration(time.Second), Timeout: api.Duration(5 * time.Second), Failures: 1}
		}
		expect := func(what string, want ...began) {
			t.Helper()
			synctest.Wait()
			var got []began
			for len(starts) > 0 {
				got = append(got, <-starts)
			}
			slices.SortFunc(got, func(a, b began) int { return strings.Compare(a.name, b.name) })
			if !slices.Equal(got, want) {
				t.Errorf("%s: began %v, want %v", what, got, want)
			}
		}
		h.setChecks([]api.Check{check("a", "1"), check("b", "1")})
		expect("before the member was ready")
		if status := h.status(); status != nil {
			t.Errorf("before the member was ready: health %+v, want none", status)
		}
		h.begin()
		expect("when it is ready", began{"a", "1"}, began{"b", "1"})
		h.setChecks([]api.Check{check("a", "1"), check("b", "1")})
		expect("the same list again")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if status := h.status(); status.Healthy || status.Message != `check "a" failed once: no answer within 5s; check "b" failed once: no answer within 5s` {
			t.Errorf("after both failed: %+v", status)
		}
		h.setChecks([]api.Check{check("b", "2")})
		if status := h.status(); !status.Healthy {
			t.Errorf("another list: what was said before counts no more: %+v", status)
		}
		expect("another check b, while the former has not ended")
		time.Sleep(time.Second)
		expect("another check b, when the former has ended", began{"b", "2"})
		h.setChecks([]api.Check{check("a", "1"), check("b", "2")})
		expect("a check that was left out before", began{"a", "1"})
		h.setChecks(nil)
		time.Sleep(time.Minute)
		expect("no checks")
		if status := h.status(); !status.Healthy {
			t.Errorf("without checks: %+v, want it healthy", status)
		}
	})
}

func TestTheLastLineOfACheckIsQuotedWithinBounds(t *testing.T) {
	for _, c := range []struct {
		name   string
		writes []string
		want   string
	}{
		{"nothing", nil, ""},
		{"one line", []string{"no device\n"}, "no device"},
		{"the last of several", []string{"a\nb\nc\n"}, "c"},
		{"one without end", []string{"a\nno ", "device"}, "no device"},
		{"blank lines after it", []string{"no device\n\n \t\n"}, "no device"},
		{"a long one", []string{strings.Repeat("x", 150), strings.Repeat("x", 150), "\n"}, strings.Repeat("x", lastWordsBytes)},
		{"a short one after a long one", []string{strings.Repeat("x", 1000) + "\nno device\n"}, "no device"},
		{"no text", []string{"\xff\xfe\n"}, "?"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var words lastWords
			for _, text := range c.writes {
				if n, err := words.Write([]byte(text)); n != len(text) || err != nil {
					t.Errorf("writing %q: %d, %v", text, n, err)
				}
			}
			if got := words.get(); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
