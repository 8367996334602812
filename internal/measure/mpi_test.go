package measure

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
)

func TestTheProgramsMeasureWhatTheySay(t *testing.T) {
	needs.Program(t, "mpirun")
	dir := t.TempDir()
	programs, err := BuildPrograms(t.Context(), dir)
	if errors.Is(err, ErrNoCompiler) {
		needs.Missing(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err := HostCommand(context.Background(), []int{0, 0}, TransportTCP, dir, programs.Hello).Output()
	if err != nil || !strings.HasPrefix(string(out), "Hello from rank 0 of 2 on ") || strings.Count(string(out), "\n") != 2 {
		t.Errorf("hello said %q, %v", out, err)
	}
	out, err = HostCommand(context.Background(), []int{0, 1}, TransportTCP, dir, programs.PingPong, "5", "4096").Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	points, err := ParsePoints(out, LatencyUS, BandwidthMBPerS)
	if err != nil {
		t.Fatal(err)
	}
	if len(points) != 10 || points[0].X != 8 || points[9].X != 4096 {
		t.Errorf("got %d sizes from %v to %v, want 10 from 8 to 4096", len(points), points[0].X, points[len(points)-1].X)
	}
	for _, p := range points {
		// Half a round trip and size over it, as in the OSU benchmarks: the two metrics must agree with each other.
		near(t, "bandwidth", p.Values[BandwidthMBPerS], p.X/p.Values[LatencyUS], 0.02*p.Values[BandwidthMBPerS]+1e-3)
	}
}

func TestStepsGoOnWhereAnEarlierAttemptStopped(t *testing.T) {
	needs.Program(t, "mpirun")
	dir := t.TempDir()
	programs, err := BuildPrograms(t.Context(), dir)
	if errors.Is(err, ErrNoCompiler) {
		needs.Missing(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	run := func() string {
		cmd := HostCommand(t.Context(), []int{0, 1}, TransportSharedMemory, dir, programs.Steps, "4", "1")
		cmd.Dir = dir
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	whole := run()
	if !strings.HasPrefix(whole, "2 ranks begin\nstep 1 of 4\n") || !strings.Contains(whole, "pi is 3.1415926536") {
		t.Errorf("from the beginning it says:\n%s", whole)
	}
	// As an attempt that was killed in its third step leaves it: the integral from 0 to 1/2.
	half := fmt.Sprintf("2 %x\n", 4*math.Atan(0.5))
	if err := os.WriteFile(filepath.Join(dir, "steps.state"), []byte(half), 0o644); err != nil {
		t.Fatal(err)
	}
	rest := run()
	if !strings.HasPrefix(rest, "2 ranks go on after step 2 of 4\nstep 3 of 4\n") || !strings.Contains(rest, "pi is 3.1415926536") {
		t.Errorf("after two steps it says:\n%s", rest)
	}
}

func TestARunThatIsCancelledLeavesNoSharedMemory(t *testing.T) {
	needs.Program(t, "mpirun")
	dir := t.TempDir()
	programs, err := BuildPrograms(t.Context(), dir)
	if errors.Is(err, ErrNoCompiler) {
		needs.Missing(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := HostCommand(ctx, []int{0, 0}, TransportSharedMemory, dir, programs.Steps, "1000000", "1")
	cmd.Dir = dir
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "step 1 ") {
	}
	segments := segmentsOf(t, programs.Steps)
	cancel()
	for lines.Scan() {
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the run ended by itself")
	}
	if len(segments) == 0 {
		t.Fatal("the ranks shared no memory in /dev/shm, so this shows nothing")
	}
	for _, path := range segments {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left (%v)", path, err)
		}
	}
}

// segmentsOf are the files in /dev/shm that the processes of a program have mapped.
func segmentsOf(t *testing.T, program string) []string {
	t.Helper()
	executables, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, exe := range executables {
		if at, err := os.Readlink(exe); err != nil || at != program {
			continue
		}
		mapped, err := os.ReadFile(filepath.Join(filepath.Dir(exe), "maps"))
		if err != nil {
			t.Fatal(err)
		}
		for field := range strings.FieldsSeq(string(mapped)) {
			if strings.HasPrefix(field, "/dev/shm/") {
				found[field] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func TestAMissingCompilerSaysWhatToInstall(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := BuildPrograms(t.Context(), t.TempDir()); !errors.Is(err, ErrNoCompiler) {
		t.Errorf("got %v, want ErrNoCompiler", err)
	}
}

func TestOutputIsReadLineByLine(t *testing.T) {
	text := "Warning: Permanently added 'c1-1'\n{\"program\":\"pingpong\"}\n{\"bytes\":8,\"latency_us\":1.5,\"bandwidth_mb_per_s\":5.3}\r\n"
	points, err := ParsePoints([]byte(text), LatencyUS, BandwidthMBPerS)
	if err != nil || len(points) != 1 || points[0].X != 8 || points[0].Values[LatencyUS] != 1.5 {
		t.Errorf("got %v, %v", points, err)
	}
	for name, bad := range map[string]string{
		"nothing measured": "mpirun was unable to launch\n", "a broken line": "{\"bytes\":8,\n", "a missing metric": "{\"bytes\":8,\"latency_us\":1}\n",
	} {
		if _, err := ParsePoints([]byte(bad), LatencyUS, BandwidthMBPerS); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
