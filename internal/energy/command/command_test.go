package command_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/energy/command"
)

// script makes a program of a shell script.
func script(t *testing.T, text string) *command.Source {
	t.Helper()
	file := filepath.Join(t.TempDir(), "power")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return command.New([]string{file, "argument"})
}

func TestAProgramSaysThePower(t *testing.T) {
	t.Parallel()
	got, err := script(t, `test "$1" = argument && test -z "$HOME" && echo "watts 123.5"`).Read(t.Context())
	if err != nil || got.Watts != 123.5 || got.Counter != nil {
		t.Errorf("got %+v, %v; want 123.5 W", got, err)
	}
}

func TestAProgramsCounterGoesOnAndOneThatFallsIsABreak(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "count")
	s := script(t, "cat "+file)
	for _, step := range []struct {
		says                string
		microjoules, breaks int64
	}{{"joules 100", 0, 0}, {"joules 150.5", 50.5e6, 0}, {"joules 10", 50.5e6, 1}, {"joules 12", 52.5e6, 1}} {
		if err := os.WriteFile(file, []byte(step.says+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := s.Read(t.Context())
		if err != nil || got.Counter == nil || got.Counter.Microjoules != step.microjoules || got.Counter.Breaks != step.breaks {
			t.Fatalf("%s: got %+v, %v; want %d uJ and %d breaks", step.says, got.Counter, err, step.microjoules, step.breaks)
		}
	}
}

func TestWhatIsNoReadingIsAnError(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, script, says string }{
		{"nothing", "true", `it printed ""`},
		{"a bare number", "echo 5", "must print one line"},
		{"an unknown unit", "echo volts 5", "must print one line"},
		{"a negative power", "echo watts -5", "not negative"},
		{"no number", "echo watts NaN", "not negative"},
		{"an endless number", "echo watts Inf", "more than one machine"},
		{"milliwatts", "echo watts 1e9", "more than one machine"},
		{"two lines", "echo watts 5; echo watts 6", "must print one line"},
		{"a failure", "echo broken meter >&2; exit 3", "broken meter"},
		{"a flood", "yes watts 5 | head -c 10000000", "must print one line"},
	} {
		got, err := script(t, c.script).Read(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %+v, %v; want an error with %q", c.name, got, err, c.says)
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("%s: the error has %d bytes", c.name, len(err.Error()))
		}
	}
}

func TestAProgramThatDoesNotEndIsGivenUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := script(t, "sleep 1000 & sleep 1000").Read(ctx) // the first keeps the output open
	if err == nil || !strings.Contains(err.Error(), "did not end in time") {
		t.Errorf("got %v", err)
	}
}

func TestAProgramIsNamedByItsPath(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {""}, {"power"}, {"./power"}} {
		if command.Check(args) == nil {
			t.Errorf("%q is not refused", args)
		}
	}
	if err := command.Check([]string{"/usr/bin/power", "-x"}); err != nil {
		t.Error(err)
	}
}
