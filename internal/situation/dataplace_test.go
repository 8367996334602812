package situation

import (
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	datasetplan "github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestNodesHaveTheDatasetsOfAGroupThatTheySayThatTheyHaveWhole(t *testing.T) {
	repo := state.New(memory.New())
	cache, err := repo.OpenCache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, project := range []string{"lab", "other"} {
		if _, err := repo.CreateProject(t.Context(), api.Project{Name: project}); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []api.Dataset{{Name: "lab.events", UID: "u1", Project: "lab"}, {Name: "lab.calibration", UID: "u2", Project: "lab"}, {Name: "other.events", UID: "u3", Project: "other"}} {
		revision, err := repo.CreateDataset(t.Context(), d)
		if err == nil {
			_, err = cache.WaitRevision(t.Context(), revision)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	nodes := []datasetplan.Node{
		{Name: "all", States: []dataset.State{{UID: "u1", Whole: true, HeldBytes: 10, OfBytes: 10}, {UID: "u2", Whole: true, HeldBytes: 5, OfBytes: 5}}},
		{Name: "some", States: []dataset.State{{UID: "u1", Whole: true, HeldBytes: 10, OfBytes: 10}, {UID: "u2", HeldBytes: 3, OfBytes: 5}}},
		{Name: "others", States: []dataset.State{{UID: "u3", Whole: true, HeldBytes: 10, OfBytes: 10}}},
	}
	for name, c := range map[string]struct {
		project  string
		datasets []string
		want     api.DataPlace
	}{
		"no datasets":         {"lab", nil, api.DataPlace{}},
		"both":                {"lab", []string{"events", "calibration"}, api.DataPlace{Whole: []string{"all"}, HeldBytes: map[string]int64{"all": 15, "some": 13}, OfBytes: 15}},
		"one":                 {"lab", []string{"events"}, api.DataPlace{Whole: []string{"all", "some"}, HeldBytes: map[string]int64{"all": 10, "some": 10}, OfBytes: 10}},
		"of another project":  {"other", []string{"events"}, api.DataPlace{Whole: []string{"others"}, HeldBytes: map[string]int64{"others": 10}, OfBytes: 10}},
		"one that is unknown": {"lab", []string{"events", "missing"}, api.DataPlace{HeldBytes: map[string]int64{"all": 10, "some": 10}, OfBytes: 10}},
	} {
		if got := dataPlace(cache.View(), c.project, c.datasets, nodes); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// dataSite is a site with two datasets of 100 MB each from one source, and three nodes. n1 has one of them and knows the source's path.
func dataSite(t *testing.T) *Site {
	t.Helper()
	repo := state.New(memory.New())
	cache, err := repo.OpenCache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	reach := func(revision int64, err error) {
		t.Helper()
		if err == nil {
			_, err = cache.WaitRevision(t.Context(), revision)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range []string{"events", "calibration"} {
		reach(repo.CreateDataset(t.Context(), api.Dataset{Name: name, UID: fmt.Sprintf("u%d", i+1), Project: api.DefaultProject, Files: []api.DatasetFile{
			{Path: "a", URLs: []string{"http://far/" + name}, SizeBytes: 1e8, Adler32: "00000001"},
		}}))
	}
	for _, n := range []string{"n1", "n2", "n3"} {
		reach(repo.PutNode(t.Context(), api.NodeRecord{Name: n, Capacity: api.NodeCapacity{Cores: []api.Core{{Slot: 0}}}}))
	}
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	measured := now.Add(-time.Minute)
	leadership, err := repo.Store().Campaign(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	reach(repo.AsLeader(leadership).PutDataFigures(t.Context(), state.DataFigures{Paths: []api.DataPaths{{Node: "n1", Paths: []api.DataPath{
		{From: "http://far:80", BytesPerSecond: 1e7, RateAt: &measured, RoundTripSeconds: 0.001, RoundTripAt: &measured},
	}}}}))
	return &Site{View: cache.View(), Now: now, data: []datasetplan.Node{
		{Name: "n1", PeerURL: "http://n1", States: []dataset.State{{UID: "u1", Whole: true, HeldBytes: 1e8, OfBytes: 1e8, Contents: make([]dataset.Content, 1)}}},
	}}
}

func TestPlacementKnowsHowLongDatasetsTakeToEachNode(t *testing.T) {
	s := dataSite(t)
	within := func(got map[string]float64, want map[string]float64) bool {
		if len(got) != len(want) {
			return false
		}
		for node, seconds := range want {
			if g, known := got[node]; !known || math.Abs(g-seconds) > 0.5 {
				return false
			}
		}
		return true
	}
	for name, c := range map[string]struct {
		datasets []string
		want     map[string]float64
	}{
		"no datasets": {nil, nil},
		// n1 has it, and what comes from node to node nobody has measured: only where it is now is known, which is no prediction.
		"one that other nodes take from n1":   {[]string{"events"}, nil},
		"one that all take from the source":   {[]string{"calibration"}, map[string]float64{"n1": 10, "n2": 10, "n3": 10}},
		"both: nobody knows how n2 gets both": {[]string{"events", "calibration"}, map[string]float64{"n1": 10}},
		"one that does not exist":             {[]string{"missing"}, nil},
	} {
		if got := s.dataPlace(api.DefaultProject, &api.Group{Datasets: c.datasets}, false).Seconds; !within(got, c.want) {
			t.Errorf("%s: %v, want about %v", name, got, c.want)
		}
	}
	s.View = &state.View{Datasets: s.View.Datasets}
	if got := s.dataPlace(api.DefaultProject, &api.Group{Datasets: []string{"calibration"}}, false); got.Seconds != nil {
		t.Errorf("nothing is measured: %v", got.Seconds)
	}
}

func TestWaitingCostsTheMembersPartOfItsNodesIdlePower(t *testing.T) {
	power := func(node string) (idle, slope float64, cpus int, ok bool) { return 80, 100, 8, node == "n1" }
	if j := joules(10, "n1", 2, power); j == nil || *j != 200 {
		t.Errorf("%v, want 10 s of a quarter of 80 W", j)
	}
	if j := joules(10, "n2", 2, power); j != nil {
		t.Errorf("a node whose power is not known: %g J", *j)
	}
	if j := joules(10, "n1", 2, nil); j != nil {
		t.Errorf("nobody knows of power: %g J", *j)
	}
}

func TestTheBestWayOfADatasetDecidesWhereMembersGo(t *testing.T) {
	s := dataSite(t)
	s.data[0].CacheRoom = &dataset.CacheRoom{Bytes: 1e10, BlockBytes: 256 << 10}
	place := func(datasets string, egress bool) api.DataPlace {
		return s.dataPlace(api.DefaultProject, &api.Group{Size: 1, Datasets: []string{datasets}}, egress)
	}
	taken := func(p api.DataPlace, node string) api.DataClaim {
		t.Helper()
		claims := p.Decide(node, 1, 1)
		if len(claims) != 1 {
			t.Fatalf("%d claims on %s, want one", len(claims), node)
		}
		return claims[0]
	}
	// A hundredth of 100 MB at 10 MB/s takes 0.1 s, and a copy 10 s.
	p := place("calibration:auto:0.01", true)
	if got := p.Seconds["n2"]; got < 0.1 || got > 0.5 {
		t.Errorf("streaming a hundredth is predicted to take %g s on n2", got)
	}
	c := taken(p, "n2")
	if c.Way != api.DatasetStream || c.Reads != 0.01 || c.Bytes != 1e6 {
		t.Errorf("%+v, want a stream", c)
	}
	if last := c.Options[len(c.Options)-1]; last.Choice != "elsewhere" || last.Seconds == nil || *last.Seconds != p.Seconds["n1"] {
		t.Errorf("%+v, want what another node would have taken", last)
	}
	if c := taken(place("calibration:auto:0.01", false), "n2"); c.Way != api.DatasetCopy || c.Choice != "copy" {
		t.Errorf("without a way out: %+v, want a copy, since web servers are not cached", c)
	}
	if c := taken(place("events:auto", true), "n1"); c.Choice != "here" || c.Seconds == nil || *c.Seconds != 0 {
		t.Errorf("n1 has it: %+v", c)
	}
	if got := place("calibration", true); got.Decide != nil {
		t.Error("something is decided of a dataset whose way its group says")
	}
	if c := taken(place("events:auto", true), "n2"); c.Reads != 1 {
		t.Errorf("nobody has said or seen what is read: %+v", c)
	}
	// What members have read is learned.
	s.View.DataOutcomes = []*api.DataOutcomes{{UID: "u1", Readings: []api.DataReading{{Member: "m", Bytes: 2e7, Fraction: 0.2, At: s.Now.Add(-time.Hour)}}}}
	if c := taken(place("events:auto", true), "n2"); c.Reads != 0.2 || c.Bytes != 2e7 {
		t.Errorf("a member has read a fifth: %+v", c)
	}
}
