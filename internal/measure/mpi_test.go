package measure

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
)

func TestTheProgramsMeasureWhatTheySay(t *testing.T) {
	if _, err := exec.LookPath("mpirun"); err != nil {
		t.Skip("needs mpirun")
	}
	dir := t.TempDir()
	programs, err := BuildPrograms(t.Context(), dir)
	if errors.Is(err, ErrNoCompiler) {
		t.Skip(err)
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
