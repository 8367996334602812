package measure

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/needs"
)

// recorded is a run of HPC Challenge 1.5.0 with 2 ranks over TCP.
var recorded = HPCC{N: 960, NB: 80, P: 1, Q: 2}

func recordedOutput(t *testing.T) string {
	t.Helper()
	output, err := os.ReadFile("testdata/hpccoutf.txt")
	if err != nil {
		t.Fatal(err)
	}
	return string(output)
}

func TestAWholeAndRightHPCCRunIsRead(t *testing.T) {
	// mpirun and a shell may print before and after it.
	r, err := ParseHPCC([]byte("Warning: added 'c1-1'\n"+recordedOutput(t)+"\n"), recorded)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "HPL", r.HPLGflops, 2.0/3*960*960*960/r.HPLSeconds/1e9, 0.01*r.HPLGflops) // its definition, but for the lower order
	if r.StreamTriadGBPerS < 1 || r.StreamWords != 153600 {
		t.Errorf("STREAM: %v GB/s of %d words", r.StreamTriadGBPerS, r.StreamWords)
	}
	near(t, "residual, as the output says it", r.Residual, 0.0063626, 1e-6)
	points := r.Points()
	if len(points) != 1 || points[0].X != 2 || points[0].Values[HPLGflops] != r.HPLGflops || points[0].Values[StreamTriadGBPerS] != r.StreamTriadGBPerS {
		t.Errorf("points %v", points)
	}
	if text := r.Conditions()[1].Value; !strings.Contains(text, "1.17 MiB") {
		t.Errorf("STREAM's condition: %s", text)
	}
}

func TestAnHPCCRunThatIsNotWholeOrNotRightIsRefused(t *testing.T) {
	good := recordedOutput(t)
	change := func(old, with string) string {
		t.Helper()
		if !strings.Contains(good, old) {
			t.Fatalf("the recorded output has no %q", old)
		}
		return strings.Replace(good, old, with, 1)
	}
	value := func(name, with string) string {
		t.Helper()
		_, rest, found := strings.Cut(good, "\n"+name+"=")
		if !found {
			t.Fatalf("the recorded output has no %s", name)
		}
		was, _, _ := strings.Cut(rest, "\n")
		return change("\n"+name+"="+was+"\n", "\n"+name+"="+with+"\n")
	}
	other, often := recorded, recorded
	other.N, often.Solves = 1040, 5
	for _, c := range []struct {
		name, output string
		setting      HPCC
		reason       HPCCReason
		detail       string
	}{
		{"nothing", "", recorded, HPCCIncomplete, "no line"},
		{"what mpirun says when it can't start", "mpirun was unable to launch\n", recorded, HPCCIncomplete, "unable to launch"},
		{"a run that was ended in HPL", good[:strings.Index(good, "End of HPL section")], recorded, HPCCIncomplete, "no line"},
		{"a run that was ended in the summary", good[:strings.Index(good, "StarSTREAM_Triad=")], recorded, HPCCIncomplete, "no line"},
		{"a run without its last line", strings.Replace(good, hpccEnds, "", 1), recorded, HPCCIncomplete, hpccEnds},
		{"two runs into one file", good + good, recorded, HPCCIncomplete, "more than one run"},
		{"a summary with a hole", change("\nHPL_Tflops=", "\nHPL_Xflops="), recorded, HPCCIncomplete, "HPL_Tflops"},
		{"a value twice", change("\nHPL_N=960\n", "\nHPL_N=960\nHPL_N=960\n"), recorded, HPCCIncomplete, "twice"},
		{"no speed", value("HPL_Tflops", "0"), recorded, HPCCIncomplete, "HPL_Tflops is 0"},
		{"a speed that is none", value("HPL_Tflops", "nan"), recorded, HPCCIncomplete, "HPL_Tflops"},
		{"an infinite bandwidth", value("StarSTREAM_Triad", "inf"), recorded, HPCCIncomplete, "StarSTREAM_Triad"},
		{"a negative bandwidth", value("StarSTREAM_Triad", "-1"), recorded, HPCCIncomplete, "StarSTREAM_Triad"},
		{"no success", value("Success", "0"), recorded, HPCCWrong, "Success=0"},
		{"a residual too large", value("HPL_RnormI", "1e-8"), recorded, HPCCWrong, "scaled residual"},
		{"a residual that is none", value("HPL_RnormI", "nan"), recorded, HPCCIncomplete, "HPL_RnormI"},
		{"a failed test", change("...... PASSED", "...... FAILED"), recorded, HPCCWrong, "FAILED"},
		{"a failed count", change("              0 tests completed and failed", "              1 tests completed and failed"), recorded, HPCCWrong, "residual check"},
		{"HPL that did not run", change("              1 tests completed and passed", "              0 tests completed and passed"), recorded, HPCCWrong, "residual check"},
		{"vectors that are not validated", strings.ReplaceAll(good, "Solution Validates", "Failed Validation"), recorded, HPCCWrong, "STREAM"},
		{"vectors that are wrong on a node", strings.ReplaceAll(good, "Node(s) with error 0", "Node(s) with error 1"), recorded, HPCCWrong, "STREAM"},
		{"HPL that solved once and should have five times", good, often, HPCCWrong, "does not report 5 solutions"},
		{"another order", good, other, HPCCOther, "HPL_N is 960"},
		{"ranks that did not find each other", value("CommWorldProcs", "1"), recorded, HPCCOther, "CommWorldProcs is 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseHPCC([]byte(c.output), c.setting)
			var refused *HPCCError
			if !errors.As(err, &refused) || refused.Reason != c.reason || !strings.Contains(refused.Detail, c.detail) {
				t.Errorf("got %v, want it refused as %q with %q", err, c.reason, c.detail)
			}
			if points, err := c.setting.Points([]byte(c.output)); err == nil || points != nil {
				t.Errorf("as points: %v, %v", points, err)
			}
		})
	}
}

func TestAnHPCCProblemFitsTimeAndMemory(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		name   string
		ranks  int
		memory int64
		budget time.Duration
		want   HPCC
	}{
		{"two ranks", 2, gib / 2, 8 * time.Second, HPCC{N: 960, NB: 80, P: 1, Q: 2}},
		{"less time", 2, gib / 2, 5 * time.Second, HPCC{N: 720, NB: 80, P: 1, Q: 2}},
		{"little memory", 2, 8 << 20, time.Hour, HPCC{N: 720, NB: 80, P: 1, Q: 2}},
		{"four ranks stand in a square", 4, gib / 2, 8 * time.Second, HPCC{N: 960, NB: 80, P: 2, Q: 2}},
		{"a prime number of ranks", 7, gib / 2, 8 * time.Second, HPCC{N: 960, NB: 80, P: 1, Q: 7}},
		{"twelve ranks", 12, gib / 2, 8 * time.Second, HPCC{N: 960, NB: 80, P: 3, Q: 4}},
		{"one rank", 1, gib / 2, 8 * time.Second, HPCC{N: 960, NB: 80, P: 1, Q: 1}},
	} {
		h, err := PlanHPCC(c.ranks, c.memory, c.budget)
		if err != nil || h != c.want {
			t.Errorf("%s: got %+v, %v; want %+v", c.name, h, err, c.want)
		}
		if h.Expected() > c.budget || h.Ranks() != c.ranks {
			t.Errorf("%s: %+v takes %v on %d ranks", c.name, h, h.Expected(), h.Ranks())
		}
	}
	for _, c := range []struct {
		ranks  int
		memory int64
		budget time.Duration
	}{{0, gib, time.Minute}, {2, gib, time.Second}, {2, 1 << 10, time.Minute}} {
		if h, err := PlanHPCC(c.ranks, c.memory, c.budget); err == nil {
			t.Errorf("%+v: got %+v, want a refusal", c, h)
		}
	}
}

func TestTheHPCCInputHasItsValuesOnTheLinesThatAreRead(t *testing.T) {
	lines := strings.Split(string(HPCC{N: 1440, NB: 80, P: 2, Q: 3}.Input()), "\n")
	if len(lines) != 37 || lines[36] != "" {
		t.Fatalf("it has %d lines, want 36", len(lines)-1)
	}
	often := strings.Split(string(HPCC{N: 1440, NB: 80, P: 2, Q: 3, Solves: 3}.Input()), "\n")
	if got := often[4:6]; got[0] != "3 # of problems sizes (N)" || got[1] != "1440 1440 1440 Ns" || len(often) != len(lines) {
		t.Errorf("three times the same problem: %q in %d lines", got, len(often)-1)
	}
	for number, want := range map[int]string{5: "1", 6: "1440", 7: "1", 8: "80", 10: "1", 11: "2", 12: "3", 13: "16.0", 33: "0", 35: "0"} {
		if got := strings.Fields(lines[number-1])[0]; got != want {
			t.Errorf("line %d begins with %s, want %s", number, got, want)
		}
	}
}

// TestHPCCRunsAsPairsAndIsReported runs the real benchmark, as small as it gets, on both sides.
func TestHPCCRunsAsPairsAndIsReported(t *testing.T) {
	if err := FindHPCC(); err != nil {
		needs.Missing(t, "%v", err)
	}
	needs.Program(t, "mpirun")
	setting := HPCC{N: 160, NB: 80, P: 1, Q: 2, Solves: 3}
	script, err := setting.Script()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "hpcc-rank")
	if err := os.WriteFile(program, script, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(program).CombinedOutput(); err == nil || !strings.Contains(string(out), "started by mpirun") {
		t.Errorf("without mpirun: %q, %v", out, err)
	}
	t.Setenv("TMPDIR", dir)
	run := func(ctx context.Context) ([]byte, error) {
		return HostCommand(ctx, []int{0, 1}, TransportSharedMemory, dir, program).Output()
	}
	rounds := 0
	runs, err := Pairs{
		Count: 1, Sides: []string{"host", "cluster"}, Run: map[string]Runner{"host": run, "cluster": run}, Parse: setting.Points, Now: time.Now,
		Done: func(int, []Run) { rounds++ },
	}.Measure(t.Context())
	if err != nil || rounds != 1 {
		t.Fatalf("after %d rounds: %v", rounds, err)
	}
	report, err := NewReport(Experiment{
		Title: "HPC Challenge", Axis: HPCCAxis(), Metrics: HPCCMetrics(), Sides: []Side{{Name: "host"}, {Name: "cluster"}}, Runs: runs,
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	var text, page bytes.Buffer
	if err := errors.Join(report.WriteText(&text), WriteHTML(&page, "HPC Challenge", time.Now(), report)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"HPL:", "STREAM triad of hpcc, in caches, per rank:", "2 ranks", "host Gflop/s", "cluster GB/s"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report has no %q:\n%s", want, text.String())
		}
	}
	if strings.Contains(page.String(), "NaN") || strings.Contains(page.String(), "Inf") {
		t.Errorf("a figure of one size has numbers that are none:\n%s", page.String())
	}
	if left, err := filepath.Glob(filepath.Join(dir, "tmp.*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}

func TestPairsTakeTurnsAndStopAtTheFirstRunThatDoesNotCount(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var order []string
	refused := errors.New("refused")
	pairs := func(failing int) Pairs {
		order = nil
		side := func(name string) Runner {
			return func(context.Context) ([]byte, error) {
				order = append(order, name)
				at = at.Add(2 * time.Second)
				return []byte(name), nil
			}
		}
		return Pairs{
			Count: 3, Sides: []string{"host", "cluster"}, Run: map[string]Runner{"host": side("host"), "cluster": side("cluster")},
			Now: func() time.Time { return at },
			Parse: func(output []byte) ([]Point, error) {
				if len(order) == failing {
					return nil, refused
				}
				return []Point{{X: float64(len(output))}}, nil
			},
		}
	}
	runs, err := pairs(0).Measure(t.Context())
	if err != nil || strings.Join(order, " ") != "host cluster cluster host host cluster" {
		t.Errorf("the order was %v (%v)", order, err)
	}
	for i, r := range runs {
		if r.Pair != i/2 || r.DurationSeconds != 2 || r.Side != order[i] || r.Points[0].X != float64(len(order[i])) || math.Mod(r.StartedAt.Sub(runs[0].StartedAt).Seconds(), 2) != 0 {
			t.Errorf("run %d: %+v", i, r)
		}
	}
	runs, err = pairs(4).Measure(t.Context())
	if !errors.Is(err, refused) || len(runs) != 3 || len(order) != 4 || !strings.Contains(err.Error(), "host, pair 2 of 3") {
		t.Errorf("%d runs in the record and %d made, error %v; want it ended at the fourth", len(runs), len(order), err)
	}
	p := pairs(0)
	for patience, want := range map[time.Duration]int{time.Second: 1, 7 * time.Second: 1, 8 * time.Second: 2, 12 * time.Second: 3} {
		p.Patience, order = patience, nil
		if runs, err := p.Measure(t.Context()); err != nil || len(runs) != 2*want {
			t.Errorf("with rounds of 4 s and patience for %v: %d runs, %v; want %d rounds", patience, len(runs), err, want)
		}
	}
	p = pairs(0)
	delete(p.Run, "cluster")
	if _, err := p.Measure(t.Context()); err == nil || len(order) != 0 {
		t.Errorf("a side without a runner: %v, after %d runs", err, len(order))
	}
}

func TestAProblemForHPLTakesLongEnoughByThePaceOfItsTrial(t *testing.T) {
	trial := HPCCResult{Setting: HPCC{N: 1440, NB: 80, P: 1, Q: 2, Solves: 7}, HPLSeconds: 0.17}
	h, err := PlanHPL(trial, 4<<30, 20*time.Second)
	if err != nil || h.Solves != 1 || h.N%80 != 0 || h.Ranks() != 2 {
		t.Fatalf("got %+v, %v", h, err)
	}
	if takes := 0.17 * math.Pow(float64(h.N)/1440, 3); takes < 1.4*20 || takes > 1.6*20 {
		t.Errorf("order %d takes %.1f s at the trial's pace, want 28 s or little more", h.N, takes)
	}
	small, err := PlanHPL(trial, 64<<20, 20*time.Second)
	if bytes := float64(small.N) * float64(small.N) * 8 / 2; err != nil || bytes > 32<<20 || bytes < 25<<20 {
		t.Errorf("64 MiB a rank: order %d takes %.0f MiB of each, %v; want no more than 32, and hardly less", small.N, bytes/(1<<20), err)
	}
	if h, err := PlanHPL(HPCCResult{Setting: trial.Setting}, 4<<30, time.Second); err == nil {
		t.Errorf("a trial that took no time: got %+v", h)
	}
}
