package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
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

// baseline checks that every named test passes on the unchanged source: a test that fails anyway notices nothing. Those of one package
// run together.
func (r runner) baseline(ctx context.Context, mutants []Mutant, parallel int) error {
	tests := map[string][]string{} // by package
	for _, m := range mutants {
		if !slices.Contains(tests[m.Package()], m.TestName()) {
			tests[m.Package()] = append(tests[m.Package()], m.TestName())
		}
	}
	packages := slices.Sorted(maps.Keys(tests))
	errs := make([]error, len(packages))
	var group errgroup.Group
	group.SetLimit(max(1, parallel))
	for i, pkg := range packages {
		group.Go(func() error {
			out := r.test(ctx, pkg, "^("+strings.Join(tests[pkg], "|")+")$", "")
			bad := slices.DeleteFunc(tests[pkg], func(name string) bool { o := out.of(name); return o.passed && !o.failed })
			if len(bad) > 0 || out.failed {
				errs[i] = fmt.Errorf("%s: on the unchanged source these don't pass, or are skipped: %s\n%s", pkg, strings.Join(bad, ", "), out.text)
			}
			return nil
		})
	}
	_ = group.Wait()
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
	out := r.test(ctx, m.Package(), "^"+m.TestName()+"$", overlay)
	switch o := out.of(m.TestName()); {
	case o.failed || out.failed:
		return Result{Verdict: Killed}
	case out.unbuilt:
		return Result{Invalid, "does not compile:\n" + out.text}
	case o.passed:
		return Result{Survived, "the test passes without the guard"}
	default:
		return Result{Invalid, "the test did not run:\n" + out.text}
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

// output is what go test -json told. A process that crashes or never ends, and one that ends badly after its tests, has failed.
type output struct {
	tests           map[string]*outcome
	failed, unbuilt bool
	text            string
}

// outcome is what became of one test.
type outcome struct{ passed, failed, skipped bool }

// of is what became of a test; the zero outcome if it did not run.
func (o output) of(test string) outcome {
	if known := o.tests[test]; known != nil {
		return *known
	}
	return outcome{}
}

// test runs tests of a package, under an overlay unless that is "".
func (r runner) test(ctx context.Context, pkg, pattern, overlay string) output {
	args := []string{"test", "-json", "-vet=off", "-tags", "failpoints", "-timeout", "3m", "-run", pattern}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	if r.exec != "" {
		args = append(args, "-exec", r.exec)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = r.root
	cmd.Env = append(cmd.Environ(), "RAPID_NOFAILFILE=true") // what made a mutant fail is no test case of the source: see testdata/rapid
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	_ = cmd.Run() // the events tell more than the exit code
	o := parseEvents(out.Bytes())
	o.text += problems.String()
	return o
}

// parseEvents reads the events of go test -json (see go doc test2json).
func parseEvents(stream []byte) output {
	o := output{tests: map[string]*outcome{}}
	var text strings.Builder
	begun := false
	for line := range bytes.Lines(stream) {
		var event struct{ Action, Test, Output string }
		if json.Unmarshal(line, &event) != nil {
			continue
		}
		text.WriteString(event.Output)
		if event.Test != "" && o.tests[event.Test] == nil {
			o.tests[event.Test] = &outcome{}
		}
		switch {
		case event.Action == "build-fail":
			o.unbuilt = true
		case event.Action == "run":
			begun = true
		case event.Test == "":
			o.failed = o.failed || event.Action == "fail" && begun
		case event.Action == "pass":
			o.tests[event.Test].passed = true
		case event.Action == "fail":
			o.tests[event.Test].failed = true
		case event.Action == "skip":
			o.tests[event.Test].skipped = true
		}
	}
	o.text = text.String()
	return o
}
