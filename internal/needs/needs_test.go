package needs

import (
	"fmt"
	"testing"
)

// outcome records how a test ended, in place of ending it.
type outcome struct {
	testing.TB
	ended string
}

func (o *outcome) Helper() {}
func (o *outcome) Fatalf(format string, args ...any) {
	o.ended = "failed: " + fmt.Sprintf(format, args...)
}

func (o *outcome) Skipf(format string, args ...any) {
	o.ended = "skipped: " + fmt.Sprintf(format, args...)
}

func TestAMissingProgramFailsInCIAndSkipsElsewhere(t *testing.T) {
	for ci, want := range map[string]string{
		"true": "failed: missing in CI: the program no-such-program is not installed (make setup installs it)",
		"":     "skipped: missing: the program no-such-program is not installed (make setup installs it)",
	} {
		t.Setenv("CI", ci)
		o := &outcome{}
		if Program(o, "no-such-program"); o.ended != want {
			t.Errorf("CI=%q: got %q, want %q", ci, o.ended, want)
		}
		o = &outcome{}
		if file := Program(o, "sh"); o.ended != "" || file == "" {
			t.Errorf("CI=%q: sh is at %q, and the test %s", ci, file, o.ended)
		}
	}
}

func TestHardwareSkipsInCIToo(t *testing.T) {
	t.Setenv("CI", "true")
	o := &outcome{}
	if Hardware(o, "no InfiniBand adapter"); o.ended != "skipped: not on this machine: no InfiniBand adapter" {
		t.Errorf("got %q", o.ended)
	}
}
