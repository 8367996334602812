package study

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/netns"
)

// An analysis that finds something else is not as fast as one that finds the same: it is wrong.
func TestAnAnalysisMustFindTheSameHoweverItReads(t *testing.T) {
	dir := t.TempDir()
	python := filepath.Join(dir, "python")
	script := "#!/bin/sh\ncat \"$3\"\n" // python -c PROGRAM URL
	if err := os.WriteFile(python, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	here, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	w := &world{python: python, near: here}
	said := func(text string) (float64, error) {
		path := filepath.Join(dir, "said")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return w.skim(t.Context(), path)
	}
	const good = `{"kept": 5, "sum_pt": 12.5, "seconds": 0.25}`
	for range 2 {
		if took, err := said(good); err != nil || took != 0.25 {
			t.Fatalf("a good analysis: %v s, %v", took, err)
		}
	}
	for text, want := range map[string]string{
		`{"kept": 4, "sum_pt": 12.5, "seconds": 0.25}`: "4 events",
		`{"kept": 5, "sum_pt": 12.6, "seconds": 0.25}`: "12.6 GeV",
		`{"kept": 0, "sum_pt": 0, "seconds": 0.25}`:    "printed",
		`{"kept": 5, "sum_pt": 12.5, "seconds": 0}`:    "printed",
		`Traceback`: "printed",
	} {
		if _, err := said(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := w.skim(t.Context(), filepath.Join(dir, "missing")); err == nil || !strings.Contains(err.Error(), "No such file") {
		t.Errorf("an analysis that fails: %v", err)
	}
}
