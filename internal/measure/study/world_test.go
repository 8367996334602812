package study

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure/condition"
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

// linked is a world that has a link of some rate, and nothing else.
func linked(t *testing.T, rate api.Rate) *world {
	t.Helper()
	w := &world{}
	t.Cleanup(w.close)
	var err error
	for _, space := range []*netns.Handle{&w.near, &w.far} {
		if *space, err = netns.New(); err == nil {
			err = space.Do(loopbackUp)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	way := setting{rate: rate}.condition(0)
	w.link, err = condition.Open(condition.Config{
		Near: condition.End{Space: w.near, Name: "near", Address: nearEnd}, Far: condition.End{Space: w.far, Name: "far", Address: farEnd}, There: way, Back: way,
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Loaders load from the far end until they are ended, and round trips wait in the queue behind what they load.
func TestLoadersFillTheLink(t *testing.T) {
	w := linked(t, 10e6)
	for range 2 { // they can begin again
		_, idle := w.link.Counters()
		unload, err := w.load(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		_, before := w.link.Counters()
		if got := before.Bytes - idle.Bytes; got < 300 { // two headers of HTTP
			t.Errorf("the job would begin when %d B were loaded", got)
		}
		trips := w.trips(t.Context())
		look := time.NewTicker(10 * time.Millisecond)
		for now := before; now.Bytes < before.Bytes+1<<20; _, now = w.link.Counters() {
			select {
			case <-look.C:
			case <-t.Context().Done():
				t.Fatal("nothing is loaded")
			}
		}
		look.Stop()
		seen, err := trips()
		if err := errors.Join(err, unload()); err != nil {
			t.Fatal(err)
		}
		// 32 packets of 1500 B wait at most, which take 38 ms.
		if len(seen) == 0 || slices.Max(seen) < 10*time.Millisecond {
			t.Errorf("round trips beside loaders: %v", seen)
		}
	}
}

func TestLoadersThatCannotLoadEndTheRun(t *testing.T) {
	w := linked(t, 10e6)
	if err := w.link.Close(); err != nil {
		t.Fatal(err)
	}
	w.link = nil
	if _, err := w.load(t.Context(), 1); err == nil {
		t.Error("loaders without a link load")
	}
}
