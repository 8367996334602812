package paths

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/predict"
)

var start = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

const far = "http://far:80"

// passage is one at a rate, over a path of 20 ms, some time after the start.
func passage(bytesPerSecond float64, after time.Duration) dataset.Passage {
	const size = 1 << 30
	by := CopierOf(far)
	seconds := predict.Seconds(size, predict.Path{RoundTrip: 0.02, Rate: bytesPerSecond}, predict.Flow{Trips: by.Trips, Streams: by.Streams}) + by.Start
	return dataset.Passage{From: far, Bytes: size, Seconds: seconds, Streams: int(by.Streams), RoundTripSeconds: 0.02, At: start.Add(after)}
}

func learned(passages ...dataset.Passage) api.DataPath {
	var p api.DataPath
	for i := range passages {
		p = Learn(p, far, &passages[i], start.Add(1000*time.Hour))
	}
	return p
}

func near(got, want float64) bool { return math.Abs(got-want) <= 0.01*want }

func TestFiguresAreLearnedAndOldOnesFadeOut(t *testing.T) {
	if p := learned(passage(1e7, 0)); !near(p.BytesPerSecond, 1e7) || p.RoundTripSeconds != 0.02 || p.Transfers != 1 || !p.RateAt.Equal(start) {
		t.Errorf("a passage at 10 MB/s: %+v", p)
	}
	if p := learned(passage(1e7, 0), passage(4e7, time.Second)); !near(p.BytesPerSecond, 2e7) {
		t.Errorf("a second later at 40 MB/s: %g B/s, want the middle of both as factors, 20 MB/s", p.BytesPerSecond)
	}
	if p := learned(passage(1e7, 0), passage(4e7, 12*time.Hour)); !near(p.BytesPerSecond, 4e7) {
		t.Errorf("12 hours later at 40 MB/s: %g B/s, want what is new", p.BytesPerSecond)
	}
	if p := learned(passage(1e7, time.Second), passage(4e7, 0), passage(4e7, time.Second)); !near(p.BytesPerSecond, 1e7) || p.Transfers != 1 {
		t.Errorf("a passage that is older, and one that is as old: %+v, want them left out", p)
	}
	small := dataset.Passage{From: far, Bytes: 100, Seconds: 0.13, RoundTripSeconds: 0.02, At: start}
	if p := learned(small); p.RateAt != nil || p.RoundTripAt == nil {
		t.Errorf("100 bytes tell a distance and no rate: %+v", p)
	}
	ahead := passage(1e7, time.Hour)
	if p := Learn(api.DataPath{}, far, &ahead, start); !p.RateAt.Equal(start) {
		t.Errorf("a node's clock that is ahead: measured at %v", p.RateAt)
	}
}

func TestOnlyNotableChangesAreStored(t *testing.T) {
	stored := learned(passage(1e7, 0))
	for name, c := range map[string]struct {
		known api.DataPath
		want  bool
	}{
		"nothing new":          {stored, false},
		"a little quicker":     {learned(passage(1.1e7, time.Minute)), false},
		"twice as quick":       {learned(passage(2e7, time.Minute)), true},
		"half as quick":        {learned(passage(5e6, time.Minute)), true},
		"the same after hours": {learned(passage(1e7, 2*time.Hour)), true},
	} {
		if got := Notable(&stored, &c.known); got != c.want {
			t.Errorf("%s: notable is %v", name, got)
		}
	}
	if first := learned(passage(1e7, 0)); !Notable(&api.DataPath{}, &first) {
		t.Error("the first figure of a path is not stored")
	}
	if Notable(&stored, &api.DataPath{From: far}) {
		t.Error("nothing is stored in place of a figure")
	}
}

func TestWhatANodeCantHaveSeenIsNotSensible(t *testing.T) {
	good := passage(1e7, 0)
	if !Sensible(&good) {
		t.Errorf("%+v is refused", good)
	}
	for name, spoil := range map[string]func(*dataset.Passage){
		"no place":              func(p *dataset.Passage) { p.From = "" },
		"negative bytes":        func(p *dataset.Passage) { p.Bytes = -1 },
		"negative seconds":      func(p *dataset.Passage) { p.Seconds = -1 },
		"seconds without end":   func(p *dataset.Passage) { p.Seconds = math.Inf(1) },
		"no number":             func(p *dataset.Passage) { p.Seconds = math.NaN() },
		"a round trip of hours": func(p *dataset.Passage) { p.RoundTripSeconds = 7200 },
		"no time":               func(p *dataset.Passage) { p.At = time.Time{} },
		"a million connections": func(p *dataset.Passage) { p.Streams = 1e6 },
		"a negative round trip": func(p *dataset.Passage) { p.RoundTripSeconds = -1 },
	} {
		p := good
		spoil(&p)
		if Sensible(&p) {
			t.Errorf("%s: %+v is taken", name, p)
		}
	}
}

func knownAt(now time.Time, all ...*api.DataPaths) *Known { return New(all, now) }

func at(after time.Duration) *time.Time { t := start.Add(after); return &t }

func TestAnotherNodesFigureStandsForOneThatANodeLacks(t *testing.T) {
	one := &api.DataPaths{Node: "n1", Paths: []api.DataPath{{From: far, BytesPerSecond: 1e7, RateAt: at(0), RoundTripSeconds: 0.02, RoundTripAt: at(0)}}}
	two := &api.DataPaths{Node: "n2", Paths: []api.DataPath{{From: far, BytesPerSecond: 3e7, RateAt: at(time.Minute)}}}
	three := &api.DataPaths{Node: "n3", Paths: []api.DataPath{{From: far, RoundTripSeconds: 0.5, RoundTripAt: at(0)}}}
	known := knownAt(start.Add(time.Hour), one, two, three)
	if f := known.Find("n1", far); f == nil || f.Rate != 1e7 || f.Node != "n1" || f.Say("n1") != "10.0 MB/s 1h ago, 20 ms 1h ago" {
		t.Errorf("a node's own figure: %+v", f)
	}
	if f := known.Find("n3", far); f == nil || f.Rate != 3e7 || f.Node != "n2" || f.RoundTrip != 0.5 || f.Say("n3") != "30.0 MB/s 59m ago to n2, 500 ms 1h ago" {
		t.Errorf("the newest figure of another, with the node's own distance: %+v", f)
	}
	if f := known.Find("n3", "http://other:80"); f != nil {
		t.Errorf("nobody has measured it: %+v", f)
	}
	if !known.Far("n3", far) || known.Far("n2", far) {
		t.Error("n3 knows the distance, and n2 does not")
	}
	old := knownAt(start.Add(30*time.Hour), one)
	if f := old.Find("n1", far); f == nil || !f.Old() || !strings.Contains(f.Say("n1"), "(old)") || old.Far("n1", far) {
		t.Errorf("after 30 hours: %+v, want it said to be old", f)
	}
	if f := knownAt(start.Add(8*24*time.Hour), one).Find("n1", far); f != nil {
		t.Errorf("after 8 days: %+v, want nothing", f)
	}
}

func TestPathsThatAreGoneAreNotStoredAgain(t *testing.T) {
	all := []api.DataPath{{From: "b", RateAt: at(0)}, {From: "a", RoundTripAt: at(-8 * 24 * time.Hour)}, {From: "A", RoundTripAt: at(0)}}
	if got := Pruned(all, start); len(got) != 2 || got[0].From != "A" || got[1].From != "b" {
		t.Errorf("%+v, want A and b", got)
	}
	all = nil
	for i := range MostPaths + 5 {
		all = append(all, api.DataPath{From: strings.Repeat("x", i+1), RateAt: at(time.Duration(i) * time.Second)})
	}
	if got := Pruned(all, start); len(got) != MostPaths || len(got[0].From) != 6 {
		t.Errorf("%d paths from %q on, want the %d newest", len(got), got[0].From, MostPaths)
	}
}

// events is a dataset of two files of 10 MB each.
func events(urls ...string) *api.Dataset {
	d := &api.Dataset{UID: "u1"}
	for _, url := range urls {
		d.Files = append(d.Files, api.DatasetFile{URLs: []string{url}, SizeBytes: 1e7})
	}
	return d
}

func answersText(all []Answer) string {
	var text []string
	for _, a := range all {
		switch {
		case a.Known:
			text = append(text, string(a.Choice))
		default:
			text = append(text, string(a.Choice)+"?")
		}
	}
	return strings.Join(text, " ")
}

func TestANodeTakesADatasetFromOthersBeforeItsSource(t *testing.T) {
	d := events("http://far/a", "http://far/b")
	whole := dataset.State{UID: "u1", Whole: true, HeldBytes: 2e7, OfBytes: 2e7, Contents: make([]dataset.Content, 2)}
	holders := Holders{}
	holders.Add("n1", true, []dataset.State{whole})
	holders.Add("n2", true, []dataset.State{{UID: "u1", HeldBytes: 5e6, OfBytes: 2e7}})
	alone := Holders{}
	silent := Holders{}
	silent.Add("n1", false, []dataset.State{whole})
	paths := []*api.DataPaths{{Node: "n1", Paths: []api.DataPath{{From: far, BytesPerSecond: 1e6, RateAt: at(0), RoundTripSeconds: 0.1, RoundTripAt: at(0)}}}}
	between := append(paths, &api.DataPaths{Node: "n9", Paths: []api.DataPath{{From: OfNode("n8"), BytesPerSecond: 1e8, RateAt: at(0)}}})
	private := events("http://far/a", "http://far/b")
	private.Sealed = []byte("s")
	for name, c := range map[string]struct {
		holders Holders
		of      *api.Dataset
		paths   []*api.DataPaths
		node    string
		want    string
	}{
		"all is here":                           {holders, d, nil, "n1", "here"},
		"nothing was measured":                  {holders, d, nil, "n2", "peer? copy?"},
		"the source was measured":               {holders, d, paths, "n2", "peer? copy"},
		"and a way between other nodes":         {holders, d, between, "n2", "peer copy"},
		"nobody has it":                         {alone, d, between, "n2", "copy"},
		"the one that has it passes nothing on": {silent, d, between, "n2", "copy"},
		"what is private goes from no node":     {holders, private, between, "n2", "copy"},
		"one of its servers was never measured": {alone, events("http://far/a", "http://other/b"), between, "n2", "copy?"},
		"its size is not known":                 {alone, &api.Dataset{UID: "u2", Files: []api.DatasetFile{{URLs: []string{"http://far/a"}}}}, between, "n2", "copy?"},
	} {
		if got := answersText(knownAt(start, c.paths...).Answers(c.holders.AskOf(c.of, c.node))); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	// 20 MB at 1 MB/s, of which n2 has 5 MB.
	known := knownAt(start.Add(time.Minute), paths...)
	if got := known.Answers(alone.AskOf(d, "n1"))[0]; got.Seconds < 20 || got.Seconds > 22 || !got.Since.Equal(start) || !strings.Contains(got.Figures(), "1.0 MB/s 1m ago, 100 ms 1m ago") {
		t.Errorf("all of it: %+v by %s", got, got.Figures())
	}
	if got := known.Answers(holders.AskOf(d, "n2"))[1]; got.Seconds < 15 || got.Seconds > 17 {
		t.Errorf("three quarters of it: %+v", got)
	}
	if got := holders.AskAnew(d, "n1"); got.Held != 0 || len(got.Peers) != 0 {
		t.Errorf("a node that has it, as if it had nothing: %+v", got)
	}
}

func TestOutcomesAreKeptAndSummedUp(t *testing.T) {
	all := api.DataOutcomes{UID: "u1"}
	for i := range newestOutcomes + 8 {
		all = Add(all, api.DataOutcome{Node: "n1", Choice: "copy", PredictedSeconds: 2, Seconds: float64(1 + i%3)})
	}
	all = Add(all, api.DataOutcome{Node: "n1", Choice: "peer", PredictedSeconds: 1, Seconds: 2})
	all = Add(all, api.DataOutcome{Node: "n1", Choice: "peer", PredictedSeconds: 0, Seconds: 2})
	if len(all.Newest) != newestOutcomes || len(all.Errors) != 2 {
		t.Fatalf("%d outcomes of %d choices: %+v", len(all.Newest), len(all.Errors), all.Errors)
	}
	if e := all.Errors[0]; e.Choice != "copy" || e.Count != newestOutcomes+8 || e.PredictedSeconds != 2*(newestOutcomes+8) || e.MedianRatio != 1 {
		t.Errorf("copies: %+v", e)
	}
	if e := all.Errors[1]; e.Choice != "peer" || e.Count != 1 || e.MedianRatio != 2 {
		t.Errorf("peers: %+v; what was not predicted counts for nothing", e)
	}
}
