package inspection

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/machine/inspection/devices"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/health"
)

func TestTheMachineAtHandIsCollected(t *testing.T) {
	t.Parallel()
	hw, problems := Collect(t.Context(), Source{Root: "/", Devices: devices.Machine{}, PartDeadline: 30 * time.Second})
	if hw.MemoryBytes == 0 || hw.CPU.Threads < runtime.NumCPU() || hw.CPU.Cores == 0 || hw.CPU.Sockets == 0 || len(hw.NUMANodes) == 0 {
		t.Errorf("got %+v", hw)
	}
	if hw.Architecture == "" || hw.KernelVersion == "" {
		t.Errorf("got architecture %q and kernel %q", hw.Architecture, hw.KernelVersion)
	}
	t.Logf("problems: %v", problems)
}

func TestEveryCheckTellsAboutTheMachineAtHand(t *testing.T) {
	t.Parallel()
	results := Health(t.Context(), 30*time.Second)
	if want := len(health.Checks()) + 1; len(results) != want {
		t.Fatalf("got %d results, want %d", len(results), want)
	}
	for _, r := range results {
		if r.Check == "" || r.Message == "" || strings.Contains(r.Message, "the check crashed") || strings.Contains(r.Message, "\n") {
			t.Errorf("got %+v", r)
		}
		t.Logf("%s: %v %s (%.3f s)", r.Check, r.OK, r.Message, r.DurationSeconds)
	}
}

func TestWhatCouldNotBeReadIsOneSentence(t *testing.T) {
	t.Parallel()
	r := inspectionResult([]Problem{{"nics", "take eth3 up: I/O error"}, {"bmc", "ask the BMC for its address: the BMC did not answer"}}, time.Second)
	if want := "nics: take eth3 up: I/O error; bmc: ask the BMC for its address: the BMC did not answer"; r.OK || r.Message != want || r.Check != "inspection" {
		t.Errorf("got %+v, want %q", r, want)
	}
	if r := inspectionResult(nil, time.Second); !r.OK || r.Message == "" {
		t.Errorf("nothing amiss: got %+v", r)
	}
}
