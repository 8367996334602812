package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestQuantaRunOnIsolatedCoresWhereThereAreAny(t *testing.T) {
	for _, c := range []struct {
		isolated string
		want     string
		only     bool
	}{
		{"", "[0 1 2 3]", false}, {"\n", "[0 1 2 3]", false}, {"2-3\n", "[2 3]", true}, {"1,4-5\n", "[1 4 5]", true}, {"7\n", "[7]", true},
	} {
		cores, only := noiseCores(c.isolated, 4)
		if fmt.Sprint(cores) != c.want || only != c.only {
			t.Errorf("isolated %q: got %v, %t; want %s, %t", c.isolated, cores, only, c.want, c.only)
		}
	}
}

func TestNoiseIsTheRateOfWorkBesideTheSiteOverThatWithoutIt(t *testing.T) {
	// One core: 1 s running, 1 s stopped, in turn. Quanta take 10 ms, and 20 ms while the site runs; one lies in two windows.
	w := noiseWindows{}
	core := []float64{0}
	for i := range 2 * blockWindows * 3 {
		running := i%2 == 0
		w.begins, w.running = append(w.begins, float64(i)), append(w.running, running)
		for at, each := float64(i), map[bool]float64{true: 0.02, false: 0.01}[running]; at+each/2 < float64(i+1); at += each {
			core = append(core, at+each)
		}
	}
	w.begins = append(w.begins, float64(len(w.running)))
	blocks, quickest := noiseBlocksOf(w, [][]float64{core})
	if len(blocks) != 3 || quickest < 0.0099 || quickest > 0.0101 {
		t.Fatalf("got %d blocks, and %v s for the quickest quantum", len(blocks), quickest)
	}
	for i, b := range blocks {
		if got := b.efficiency(); got < 0.499 || got > 0.501 {
			t.Errorf("block %d: half the work was done beside the site, and %v is told: %+v", i, got, b)
		}
	}
	// A quantum that was disturbed for so long that no window holds it counts nevertheless.
	w = noiseWindows{begins: []float64{0, 1, 2}, running: []bool{true, false}}
	blocks, _ = noiseBlocksOf(w, [][]float64{{0, 0.5, 1.5, 2}})
	if b := blocks[0]; b.RunningQuanta != 1.5 || b.StoppedQuanta != 1.5 || b.RunningSeconds != 1 || b.StoppedSeconds != 1 {
		t.Errorf("got %+v, want one and a half of three quanta in each window", b)
	}
}

func TestTheTextOnNoiseSaysWhereAndWhatItMeans(t *testing.T) {
	r := quantaResult{QuickestSeconds: 0.001, Cores: []int{0, 1}}
	for range 10 {
		r.Blocks = append(r.Blocks, noiseBlock{RunningQuanta: 1980, RunningSeconds: 1, StoppedQuanta: 1980, StoppedSeconds: 1})
	}
	text := noiseText(r, 18, 18)
	for _, must := range []string{"all 2 cores, none of them isolated", "1.0000 [1.0000, 1.0000]", "goal 0.995: reached", "running 1.000%, stopped 1.000%", "1.000% of one core"} {
		if !strings.Contains(text, must) {
			t.Errorf("the text lacks %q:\n%s", must, text)
		}
	}
}

func TestTheProcessorTimeOfAProcessIsRead(t *testing.T) {
	before, err := processorTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for i := range 100_000_000 {
		sum += i
	}
	after, err := processorTime(os.Getpid())
	if err != nil || !(after > before) || !(before > 0) {
		t.Errorf("got %v, then %v after work (%d), %v", before, after, sum, err)
	}
	if _, err := processorTime(1 << 22); err == nil {
		t.Error("a process that cannot be has processor time")
	}
}
