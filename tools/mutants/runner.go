package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Verdict is what became of a mutant.
type Verdict string

// The verdicts; only Killed is good.
const (
	Killed   Verdict = "killed"
	Survived Verdict = "SURVIVED"
	Invalid  Verdict = "INVALID" // proves nothing: not applied, not compiled, or its test did not run
)

// Result is a verdict, with what to look at when it is not Killed.
type Result struct {
	Verdict Verdict
	Detail  string
}

// runner runs go test in a module.
type runner struct {
	root string
	exec string
}

// baseline checks that every named test passes on the unchanged source: a test that fails anyway notices nothing.
func (r runner) baseline(ctx context.Context, mutants []Mutant) error {
	var done []string
	var errs []error
	for _, m := range mutants {
		if slices.Contains(done, m.Test) {
			continue
		}
		done = append(done, m.Test)
		if o := r.test(ctx, m, ""); !o.passed || o.failed {
			errs = append(errs, fmt.Errorf("%s does not pass on the unchanged source (skipped: %t):\n%s", m.Test, o.skipped, o.text))
		}
	}
	return errors.Join(errs...)
}

// try applies one mutant in an overlay and runs its test.
func (r runner) try(ctx context.Context, m Mutant) Result {
	file, err := filepath.Abs(filepath.Join(r.root, m.File))
	if err != nil {
		return Result{Invalid, err.Error()}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return Result{Invalid, err.Error()}
	}
	mutated, err := m.apply(string(text))
	if err != nil {
		return Result{Invalid, err.Error()}
	}
	scratch, err := os.MkdirTemp("", "nearmetal-mutant-")
	if err != nil {
		return Result{Invalid, err.Error()}
	}
	defer os.RemoveAll(scratch)
	overlay, err := writeOverlay(scratch, file, mutated)
	if err != nil {
		return Result{Invalid, err.Error()}
	}
	switch o := r.test(ctx, m, overlay); {
	case o.failed:
		return Result{Verdict: Killed}
	case o.unbuilt:
		return Result{Invalid, "does not compile:\n" + o.text}
	case o.passed:
		return Result{Survived, "the test passes without the guard"}
	default:
		return Result{Invalid, "the test did not run:\n" + o.text}
	}
}

// writeOverlay writes the mutated text and the overlay that puts it in file's place (see go help build, -overlay).
func writeOverlay(dir, file, text string) (string, error) {
	mutated, overlay := filepath.Join(dir, "mutated.go"), filepath.Join(dir, "overlay.json")
	list, err := json.Marshal(map[string]map[string]string{"Replace": {file: mutated}})
	if err != nil {
		return "", err
	}
	return overlay, errors.Join(os.WriteFile(mutated, []byte(text), 0o600), os.WriteFile(overlay, list, 0o600))
}

// outcome is what go test -json told about the named test. A test that crashes the process or never ends has failed, too.
type outcome struct {
	passed, failed, skipped, unbuilt bool
	text                             string
}

// test runs a mutant's named test, under an overlay unless that is "".
func (r runner) test(ctx context.Context, m Mutant, overlay string) outcome {
	args := []string{"test", "-json", "-vet=off", "-timeout", "3m", "-run", m.Pattern()}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	if r.exec != "" {
		args = append(args, "-exec", r.exec)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, m.Package())...)
	cmd.Dir = r.root
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	_ = cmd.Run() // the events tell more than the exit code
	o := parseEvents(out.Bytes())
	o.text += problems.String()
	return o
}

// parseEvents reads the events of go test -json (see go doc test2json).
func parseEvents(stream []byte) outcome {
	var o outcome
	var text strings.Builder
	begun := false
	for line := range bytes.Lines(stream) {
		var event struct{ Action, Test, Output string }
		if json.Unmarshal(line, &event) != nil {
			continue
		}
		text.WriteString(event.Output)
		switch {
		case event.Action == "build-fail":
			o.unbuilt = true
		case event.Action == "run":
			begun = true
		case event.Test == "":
			o.failed = o.failed || event.Action == "fail" && begun
		case event.Action == "pass":
			o.passed = true
		case event.Action == "fail":
			o.failed = true
		case event.Action == "skip":
			o.skipped = true
		}
	}
	o.text = text.String()
	return o
}
