package controller

import (
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/situation"
)

func TestADatasetIsCopiedStreamedOrCachedAsItsGroupAsks(t *testing.T) {
	s := newStored(t)
	for _, name := range []string{"n1", "n2"} {
		s.view(s.repo.PutNode(t.Context(), api.NodeRecord{Name: name, Underlay: "198.18.0." + name[1:]}))
	}
	for _, name := range []string{"copied", "streamed", "cached"} {
		s.view(s.repo.CreateDataset(t.Context(), api.Dataset{
			Name: name, UID: "d" + name, Project: api.DefaultProject, Files: []api.DatasetFile{{Path: "f", URLs: []string{"root://far//" + name}, SizeBytes: 5}},
		}))
	}
	s.groups = []api.Group{{Name: "a", Datasets: []string{"copied", "streamed:stream", "cached:cached"}}}
	agents := &scripted{datasets: []plan.Node{{Name: "n2", Caches: []dataset.CacheState{{UID: "dgone"}, {UID: "dcopied"}}}}}
	d := newDesired()
	d.agents = agents
	changed, failed := d.update(1, someday, s.cluster("a", 1, "n1"))
	if len(failed) > 0 {
		t.Fatal(failed)
	}
	told := whole(changed["n1"])
	if len(told.Datasets) != 1 || told.Datasets[0].UID != "dcopied" || !told.Datasets[0].Keep {
		t.Errorf("n1 is to have copies %+v, want that of copied alone", told.Datasets)
	}
	if len(told.Caches) != 1 || told.Caches[0].UID != "dcached" || len(told.Caches[0].Files) != 1 || told.Caches[0].Purge {
		t.Errorf("n1 is to cache %+v, want cached alone", told.Caches)
	}
	want := []dataset.Claim{{UID: "dcopied", Name: "copied"}, {UID: "dstreamed", Name: "streamed", Way: api.DatasetStream}, {UID: "dcached", Name: "cached", Way: api.DatasetCached, Port: 10942}}
	if len(told.Members) != 1 || !slices.Equal(told.Members[0].Datasets, want) {
		t.Fatalf("members %+v, want one with %+v", told.Members, want)
	}
	lists := map[string]string{}
	for _, f := range told.Members[0].Files {
		if len(f.Path) > len(api.DatasetURLs) && f.Path[:len(api.DatasetURLs)] == api.DatasetURLs {
			lists[f.Path] = string(f.Content)
		}
	}
	if len(lists) != 2 || lists["/etc/nearmetal/datasets/streamed.urls"] != "root://far//streamed\n" || lists["/etc/nearmetal/datasets/cached.urls"] != "root://127.0.0.1:10942//cached\n" {
		t.Errorf("lists of URLs: %q", lists)
	}
	if got := changed["n2"].Caches; len(got) != 1 || got[0].UID != "dgone" || !got[0].Purge {
		t.Errorf("n2, which has cached a dataset that was deleted, gets the orders %+v", got)
	}
}

func TestEachMemberReadsADatasetInTheWayThatWasDecidedForIt(t *testing.T) {
	s := newStored(t)
	for _, name := range []string{"n1", "n2", "n3"} {
		s.view(s.repo.PutNode(t.Context(), api.NodeRecord{Name: name, Underlay: "198.18.0." + name[1:]}))
	}
	s.view(s.repo.CreateDataset(t.Context(), api.Dataset{
		Name: "open", UID: "dopen", Project: api.DefaultProject, Files: []api.DatasetFile{{Path: "f", URLs: []string{"root://far//f"}, SizeBytes: 5}},
	}))
	s.groups = []api.Group{{Name: "a", Datasets: []string{"open:auto:0.2"}}}
	s.data = map[string][]api.DataClaim{"n1": {{Name: "open", Way: api.DatasetStream}}, "n2": {{Name: "open", Way: api.DatasetCached}}}
	d := newDesired()
	d.agents = &scripted{}
	view := s.cluster("a", 1, "n1", "n2", "n3")
	small := []dataset.CacheState{{UID: "dopen", SizeBytes: 1 << 20, CacheFigures: dataset.CacheFigures{MissBytes: 9 << 20, AgainBytes: 8 << 20}}}
	tight := situation.TightCaches(view, []plan.Node{{Name: "n1", Caches: small}, {Name: "n2", Caches: small}})
	if len(tight) != 1 || tight[0].Node != "n2" || tight[0].Dataset != "open" {
		t.Errorf("caches that are too small for their readers are %+v, want that of n2", tight)
	}
	changed, failed := d.update(1, someday, view)
	if len(failed) > 0 {
		t.Fatal(failed)
	}
	for node, want := range map[string]struct {
		claim  dataset.Claim
		list   string
		copies int
		caches int
	}{
		"n1": {dataset.Claim{UID: "dopen", Name: "open", Way: api.DatasetStream}, "root://far//f\n", 0, 0},
		"n2": {dataset.Claim{UID: "dopen", Name: "open", Way: api.DatasetCached, Port: 10940, Metered: true}, "root://127.0.0.1:10940//f\n", 0, 1},
		"n3": {dataset.Claim{UID: "dopen", Name: "open"}, "/datasets/open/f\n", 1, 0}, // nothing was decided, which is a copy
	} {
		told := whole(changed[node])
		if len(told.Members) != 1 || !slices.Equal(told.Members[0].Datasets, []dataset.Claim{want.claim}) || len(told.Datasets) != want.copies || len(told.Caches) != want.caches {
			t.Fatalf("%s is told %+v, copies %+v, caches %+v; want %+v", node, told.Members, told.Datasets, told.Caches, want)
		}
		list := ""
		for _, f := range told.Members[0].Files {
			if f.Path == "/etc/nearmetal/datasets/open.urls" {
				list = string(f.Content)
			}
		}
		if list != want.list {
			t.Errorf("the member on %s finds %q, want %q", node, list, want.list)
		}
	}
}
