package situation

import (
	"reflect"
	"testing"

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
