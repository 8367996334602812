package study

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
)

// standIns makes programs that stand in for those of remote GPUs: the kernels "measure" at once, by a server takes twice as long.
// A program that is to call a server which is not there fails, unless leaky.
func standIns(t *testing.T, leaky bool) string {
	t.Helper()
	dir := t.TempDir()
	fails := `case $NEARMETAL_GPU_SERVER in */nobody) exit 1;; esac`
	if leaky {
		fails = ":"
	}
	programs := map[string]string{
		"nearmetal-gpu-kernels": fails + `
while [ $# -gt 0 ]; do case $1 in --kernel) k=$2;; --json) out=$2;; esac; shift; done
echo "$k ${NEARMETAL_GPU_SERVER%%:*}" >>` + dir + `/calls
s=0.001; [ -z "$NEARMETAL_GPU_SERVER" ] || s=0.002
[ ! -e ` + dir + `/fail ] || { echo broken >&2; exit 1; }
device=$(cat ` + dir + `/device 2>/dev/null || echo PoCL)
[ -z "$out" ] || cat >"$out" <<END
{"machine": {"processor": "P", "processors": 2, "system": "Linux 6"}, "measurements": [{"kernel": "$k", "problem": "$k of 5", "device": "$device",
 "runs": [{"setup_s": 0.5, "work_s": $s, "close_s": 0.1, "work_calls": [
 {"name": "clEnqueueWriteBuffer", "transfer": "to_device", "count": 2, "total_s": 0.0003, "longest_s": 0.0002, "bytes": 4096},
 {"name": "clFinish", "transfer": "none", "count": 1, "total_s": 0.0001, "longest_s": 0.0001, "bytes": 0}]}]}]}
END
exit 0`,
		// It listens with what every machine has: Python is none of the project's needs, so sockets come from the test's own program.
		"nearmetal-gpu-server": `exec ` + os.Args[0] + ` -test.run='^TestServerStandIn$' -- "$@"`,
	}
	for name, text := range programs {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func gpuStudy(t *testing.T) GPU {
	return GPU{Out: t.TempDir(), Programs: standIns(t, false), API: "opencl", Size: "test", Kernels: []string{"nn", "nw"}, Rounds: 2, Say: t.Logf}
}

func calls(t *testing.T, s GPU) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(s.Programs, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

func TestTheWaysTakeTurnsAtEachKernel(t *testing.T) {
	s := gpuStudy(t)
	report, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"nn ", "nn unix", "nn tcp", "nw ", "nw unix", "nw tcp", "nn tcp", "nn unix", "nn ", "nw tcp", "nw unix", "nw "}
	if got := calls(t, s); !slices.Equal(got, want) {
		t.Errorf("the runs are %q, want %q", got, want)
	}
	var text strings.Builder
	if err := report.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"PoCL", "nw, nw of 5", "published / local", "2.28", "1.07", "2.00", "clEnqueueWriteBuffer", "75", "Load: other processes of this machine used ", "Machine: P, 2 processors", "128% more on needleman-wunsch"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, text.String())
		}
	}
	for _, name := range []string{"report.txt", "report.json", "report.html", "runs.jsonl"} {
		if data, err := os.ReadFile(filepath.Join(s.Out, name)); err != nil || !strings.Contains(string(data), "clEnqueueWriteBuffer") {
			t.Errorf("%s has no calls: %v", name, err)
		}
	}
}

func TestAStudyOfGPUsGoesOnWhereItWasStopped(t *testing.T) {
	s := gpuStudy(t)
	broken := filepath.Join(s.Programs, "fail")
	said := 0
	s.Say = func(string, ...any) {
		if said++; said == 5 { // one line that it begins, and one after each run
			if err := os.WriteFile(broken, nil, 0o644); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "broken") || !strings.Contains(err.Error(), "nw") {
		t.Fatalf("a kernel that fails: %v", err)
	}
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	s.Say = t.Logf
	if _, err := s.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := calls(t, s); len(got) != 2*3*2+1 {
		t.Errorf("after a stop there were %d runs, want 12 and the one that failed: %q", len(got), got)
	}
	s.Size = "large"
	if _, err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another study") {
		t.Errorf("the same directory for another size: %v", err)
	}
}

func TestRunsOfAnotherDeviceAreNotCompared(t *testing.T) {
	s := gpuStudy(t)
	if _, err := s.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(s.Out, "runs.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(strings.TrimSuffix(string(data), "\n"), "\n")
	if err := errors.Join(os.WriteFile(filepath.Join(s.Out, "runs.jsonl"), []byte(strings.Join(lines[:len(lines)-1], "")), 0o644),
		os.WriteFile(filepath.Join(s.Programs, "device"), []byte("another"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), `"another"`) {
		t.Errorf("a run of another device: %v", err)
	}
}

func TestAProgramWithADeviceOfItsOwnIsNotRemote(t *testing.T) {
	s := gpuStudy(t)
	s.Programs = standIns(t, true)
	if _, err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "can't be hidden") {
		t.Errorf("a program that needs no server: %v", err)
	}
}

func TestAMemberOnTheGPUsOwnNodeIsNotOnTheNetwork(t *testing.T) {
	at := "unix:/run/x"
	s := gpuStudy(t)
	s.Member = "c1/c1-0"
	s.InMember = func(_ context.Context, script string) ([]byte, error) {
		if strings.HasPrefix(script, "cat /etc") {
			return []byte(at + "\n"), nil
		}
		return []byte(`{"machine": {"processor": "Q", "processors": 4, "system": "Linux 6"}, "measurements": [{"problem": "` + kernelOf(script) +
			` of 5", "device": "H200", "runs": [{"setup_s": 0.5, "work_s": 0.003, "close_s": 0.1, "work_calls": []}]}]}`), nil
	}
	if _, err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "name a member on another node") {
		t.Errorf("a member with its GPU by %s: %v", at, err)
	}
	at = "tcp:10.0.0.3:7070"
	s.Expected = func(context.Context) (float64, error) { return 1.5, nil }
	report, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, ok := report.Analysis.Find(workMS, network, 2)
	if !ok || len(c.Ratios) != 2 || fmt.Sprintf("%.3f", c.Efficiency.Value) != "0.333" {
		t.Errorf("by the network: %+v", c)
	}
	if rows := fmt.Sprint(report.Experiment.Tables[1].Rows); rows != "[[expected 1.50] [measured 3.00] [measured / expected 2.00]]" {
		t.Errorf("expected and measured are %s", rows)
	}
	if d := report.Experiment.Sides[3].Description; !strings.Contains(d, at) || !strings.Contains(d, "H200") {
		t.Errorf("the network's side is described as %q", d)
	}
}

func kernelOf(script string) string {
	_, rest, _ := strings.Cut(script, "--kernel ")
	kernel, _, _ := strings.Cut(rest, " ")
	return kernel
}

func TestBadStudiesOfGPUsAreRefused(t *testing.T) {
	for name, change := range map[string]func(*GPU){
		"no API":             func(s *GPU) { s.API = "" },
		"an unknown size":    func(s *GPU) { s.Size = "huge" },
		"an unknown kernel":  func(s *GPU) { s.Kernels = []string{"mandelbrot"} },
		"one kernel twice":   func(s *GPU) { s.Kernels = []string{"nn", "nn"} },
		"one round":          func(s *GPU) { s.Rounds = 1 },
		"no kernels program": func(s *GPU) { s.Programs = t.TempDir() },
	} {
		s := gpuStudy(t)
		change(&s)
		if _, err := s.Run(t.Context()); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestTimesOfProcessorsAreReadFromProc(t *testing.T) {
	if got, err := busyTicks("cpu  10 2 30 1000 500 4 5 6 7 8\ncpu0 1"); err != nil || got != 57 {
		t.Errorf("busy ticks: %d, %v; want 57", got, err)
	}
	if _, err := busyTicks("intr 1"); err == nil {
		t.Error("a file without times was read")
	}
	if got, err := processTicks("42 (a) b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 20 0 1 0 99"); err != nil || got != 11+12+13+14 {
		t.Errorf("a process's ticks: %d, %v; want 50", got, err)
	}
	if _, err := processTicks("42 (a) S 1 2"); err == nil {
		t.Error("a process without times was read")
	}
}

// The real programs on PoCL: each way checks the results of its kernels.
func TestTheKernelsRunByEachWayOnPoCL(t *testing.T) {
	needs.Request(t, "NEARMETAL_GPU_PROGRAMS", "make test-gpuremote, which builds the programs of remote GPUs")
	programs := os.Getenv("NEARMETAL_GPU_PROGRAMS")
	if _, err := os.Stat(filepath.Join(programs, "nearmetal-gpu-server")); err != nil {
		needs.Missing(t, "%s has no programs of remote GPUs", programs)
	}
	if drivers, err := filepath.Glob("/etc/OpenCL/vendors/*.icd"); err != nil || len(drivers) == 0 {
		needs.Missing(t, "there is no OpenCL driver; install pocl-opencl-icd")
	}
	s := GPU{Out: t.TempDir(), Programs: programs, API: "opencl", Size: "test", Kernels: []string{"nn", "pathfinder"}, Rounds: 2, Say: t.Logf}
	report, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, side := range []string{memory, tcp} {
		for x := range 2 {
			if c, ok := report.Analysis.Find(workMS, side, float64(x+1)); !ok || len(c.Ratios) != 2 {
				t.Errorf("kernel %d by %s: %+v", x+1, side, c)
			}
		}
	}
}
