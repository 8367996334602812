package controller

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

const dataBytes = 1e9

// dataSite is a site with a dataset whose source is far away.
type dataSite struct {
	*led
	book  *dataBook
	nodes []plan.Node
}

func newDataSite(t *testing.T) *dataSite {
	l := newLed(t, memory.New())
	for _, n := range []string{"n1", "n2", "n3"} {
		l.node(n, 4)
	}
	revision, err := l.repo.CreateDataset(t.Context(), api.Dataset{
		Name: "events", UID: "u1", Project: api.DefaultProject, Files: []api.DatasetFile{{Path: "a", URLs: []string{"http://far/a"}, SizeBytes: dataBytes, Adler32: "00000001"}},
	})
	if err == nil {
		_, err = l.cache.WaitRevision(t.Context(), revision)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &dataSite{led: l, book: newDataBook()}
}

// say sets what a node says of the dataset, and of the ways of data.
func (d *dataSite) say(node string, s dataset.State, seen ...dataset.Passage) {
	s.UID, s.OfBytes = "u1", dataBytes
	d.nodes = slices.DeleteFunc(d.nodes, func(n plan.Node) bool { return n.Name == node })
	d.nodes = append(d.nodes, plan.Node{Name: node, States: []dataset.State{s}, Paths: seen})
}

// look has the leader look, stores what it says, and returns that.
func (d *dataSite) look() state.DataFigures {
	d.t.Helper()
	figures := d.book.look(d.cache.View(), d.nodes, d.now)
	revision, err := d.leader.PutDataFigures(d.t.Context(), figures)
	if err == nil && revision > 0 {
		_, err = d.cache.WaitRevision(d.t.Context(), revision)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return figures
}

// came is a replica that came from its source in some seconds, and what that told of the path.
func (d *dataSite) came(seconds float64) (dataset.State, dataset.Passage) {
	at := d.now
	return dataset.State{Whole: true, HeldBytes: dataBytes, Fetched: &dataset.Fetched{Seconds: seconds, At: at, SourceBytes: dataBytes}},
		dataset.Passage{From: "http://far:80", Bytes: dataBytes, Seconds: seconds, Streams: 4, RoundTripSeconds: 0.001, At: at}
}

func TestPredictionsAreComparedWithWhatTheyDidNotKnow(t *testing.T) {
	d := newDataSite(t)
	d.say("n1", dataset.State{})
	if f := d.look(); !f.Empty() {
		t.Fatalf("nothing was measured: %+v", f)
	}
	whole, seen := d.came(100)
	d.say("n1", whole, seen)
	f := d.look()
	if len(f.Outcomes) > 0 || len(f.Paths) != 1 || len(f.Paths[0].Paths) != 1 || math.Abs(f.Paths[0].Paths[0].BytesPerSecond-1e7) > 1e5 {
		t.Fatalf("a transfer of 100 s that nobody predicted: %+v, want its rate of 10 MB/s and no outcome", f)
	}
	if f := d.look(); !f.Empty() {
		t.Fatalf("the same is said again: %+v", f)
	}

	// n2 is predicted to take 100 s by what n1 has measured, and takes 200 s.
	d.now = d.now.Add(time.Minute)
	d.say("n2", dataset.State{})
	d.look()
	d.now = d.now.Add(200 * time.Second)
	whole, seen = d.came(200)
	d.say("n2", whole, seen)
	f = d.look()
	if len(f.Outcomes) != 1 || len(f.Outcomes[0].Newest) != 1 {
		t.Fatalf("a transfer that was predicted: %+v, want an outcome", f)
	}
	if o := f.Outcomes[0].Newest[0]; o.Node != "n2" || o.Choice != "copy" || math.Abs(o.PredictedSeconds-100) > 1 || o.Seconds != 200 || math.Abs(o.Ratio-2) > 0.02 {
		t.Errorf("%+v, want 100 s predicted and 200 s taken", o)
	}

	// Another leader has seen none of this begin. What it knows of it by now is no prediction.
	d.book = newDataBook()
	whole, seen = d.came(150)
	d.say("n3", whole, seen)
	if f := d.look(); len(f.Outcomes) > 0 {
		t.Errorf("by figures that are newer than its beginning: %+v", f.Outcomes)
	}
	// One that begins after all that is known needs nobody who saw it begin.
	d.now = d.now.Add(time.Hour)
	whole, seen = d.came(150)
	d.say("n3", whole, seen)
	if f := d.look(); len(f.Outcomes) != 1 || len(f.Outcomes[0].Newest) != 2 {
		t.Errorf("by figures that are older than its beginning: %+v", f.Outcomes)
	}
	// What was here in part says nothing of a prediction about all.
	d.now = d.now.Add(time.Hour)
	whole, seen = d.came(10)
	whole.Fetched.SourceBytes = dataBytes / 10
	d.say("n1", whole, seen)
	if f := d.look(); len(f.Outcomes) > 0 {
		t.Errorf("a tenth of it: %+v", f.Outcomes)
	}
}

func TestWhatANodeSaysOfServersThatNoDatasetHasIsNotStored(t *testing.T) {
	d := newDataSite(t)
	_, seen := d.came(100)
	seen.From = "http://elsewhere:80"
	wrong := seen
	wrong.From, wrong.Seconds = "http://far:80", -1
	d.say("n1", dataset.State{}, seen, wrong)
	if f := d.look(); !f.Empty() {
		t.Errorf("%+v, want nothing", f)
	}
}

func TestFiguresGoWithTheirNodeAndTheirDataset(t *testing.T) {
	d := newDataSite(t)
	at := d.now
	revision, err := d.leader.PutDataFigures(t.Context(), state.DataFigures{
		Paths:    []api.DataPaths{{Node: "gone", Paths: []api.DataPath{{From: "http://far:80", BytesPerSecond: 1, RateAt: &at}}}, {Node: "n1"}},
		Outcomes: []api.DataOutcomes{{UID: "gone"}, {UID: "u1"}},
	})
	if err == nil {
		_, err = d.cache.WaitRevision(t.Context(), revision)
	}
	if err != nil {
		t.Fatal(err)
	}
	if f := d.look(); !slices.Equal(f.GoneNodes, []string{"gone"}) || !slices.Equal(f.GoneDatasets, []string{"gone"}) {
		t.Errorf("%+v, want what is gone removed", f)
	}
	if view := d.cache.View(); len(view.DataPaths) != 1 || len(view.DataOutcomes) != 1 {
		t.Errorf("%d paths and %d outcomes are left", len(view.DataPaths), len(view.DataOutcomes))
	}
}

func TestNodesProbeWhatIsNotKnown(t *testing.T) {
	d := newDataSite(t)
	d.mustPass()
	if got := d.agents.desired["n2"].Probes; !slices.Equal(got, []string{"http://far:80"}) {
		t.Errorf("n2 probes %q, want the source", got)
	}
	d.say("n2", dataset.State{}, dataset.Passage{From: "http://far:80", RoundTripSeconds: 0.02, At: d.now})
	d.look()
	d.mustPass()
	if got := d.agents.desired["n2"].Probes; len(got) > 0 {
		t.Errorf("n2 probes %q again", got)
	}
	if got := d.agents.desired["n1"].Probes; !slices.Equal(got, []string{"http://far:80"}) {
		t.Errorf("n1 probes %q, want the source", got)
	}
}

func TestAMachineThatAMemberHasWholeTellsNothingOfTheWaysOfData(t *testing.T) {
	for node, want := range map[*state.Node]bool{
		nil: false, {}: true, {Identity: &api.NodeIdentity{}}: true, {Identity: &api.NodeIdentity{Member: "c1-0"}}: false,
	} {
		if got := speaks(node); got != want {
			t.Errorf("%+v speaks: %v", node, got)
		}
	}
}

func TestWhatMembersReadThroughCachesIsLearnedAndComparedOnce(t *testing.T) {
	s := newStored(t)
	s.view(s.repo.PutNode(t.Context(), api.NodeRecord{Name: "n1", Underlay: "198.18.0.1"}))
	s.view(s.repo.CreateDataset(t.Context(), api.Dataset{
		Name: "events", UID: "u1", Project: api.DefaultProject, Files: []api.DatasetFile{{Path: "f", URLs: []string{"root://far//f"}, SizeBytes: 1000}},
	}))
	s.groups = []api.Group{{Name: "a", Datasets: []string{"events:auto:0.1"}}}
	predicted := 2.0
	s.data = map[string][]api.DataClaim{"n1": {{Name: "events", Way: api.DatasetCached, Choice: "cold cache", Bytes: 100, Seconds: &predicted}}}
	view := s.cluster("a", 1, "n1")
	member := ""
	for a := range view.Cluster("a").Held() {
		member = a.ID
	}
	b := newDataBook()
	look := func(r dataset.Reading) state.DataFigures {
		t.Helper()
		r.At = someday
		figures := b.look(view, []plan.Node{{Name: "n1", Caches: []dataset.CacheState{{UID: "u1", Readings: []dataset.Reading{r}}}}}, someday)
		view = s.view(s.leader.PutDataFigures(t.Context(), figures))
		return figures
	}
	if f := look(dataset.Reading{Member: member, Bytes: 50, Open: 1}); !f.Empty() {
		t.Errorf("it still reads: %+v", f)
	}
	if f := look(dataset.Reading{Member: "somebody", Bytes: 50}); !f.Empty() {
		t.Errorf("a member that is not there: %+v", f)
	}
	f := look(dataset.Reading{Member: member, Bytes: 50, Waits: 5, WaitedSeconds: 1})
	if len(f.Outcomes) != 1 || len(f.Outcomes[0].Readings) != 1 || f.Outcomes[0].Readings[0].Fraction != 0.05 || len(f.Outcomes[0].Newest) != 0 {
		t.Fatalf("half of what it was taken to read: %+v, want it learned, and compared with nothing", f.Outcomes)
	}
	f = look(dataset.Reading{Member: member, Bytes: 110, Waits: 11, WaitedSeconds: 3})
	if len(f.Outcomes) != 1 || len(f.Outcomes[0].Newest) != 1 {
		t.Fatalf("all that it was taken to read: %+v", f.Outcomes)
	}
	if o := f.Outcomes[0].Newest[0]; o.Choice != "cold cache" || o.Seconds != 3 || o.PredictedSeconds != 2 || o.Bytes != 110 || o.PredictedBytes != 100 || o.Ratio != 1.5 || o.Groups[0] != "a/a" {
		t.Errorf("%+v", o)
	}
	if f := look(dataset.Reading{Member: member, Bytes: 110, Waits: 11, WaitedSeconds: 3}); !f.Empty() {
		t.Errorf("the same is said again: %+v", f)
	}
	f = look(dataset.Reading{Member: member, Bytes: 500, Waits: 50, WaitedSeconds: 30})
	if len(f.Outcomes) != 1 || len(f.Outcomes[0].Newest) != 1 || f.Outcomes[0].Readings[0].Fraction != 0.5 {
		t.Errorf("it reads on: %+v, want its fraction, and its time compared once", f.Outcomes)
	}
}
