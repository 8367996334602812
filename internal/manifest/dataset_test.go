package manifest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestDatasetsOfGroupsAreNamedOnceAndForContainersOnly(t *testing.T) {
	of := func(g api.Group, volumes ...api.VolumeAttachment) string {
		_, err := Normalize(api.ClusterRequest{Name: "c1", Groups: []api.Group{g}, Volumes: volumes}, nil)
		if err == nil {
			return ""
		}
		return err.Error()
	}
	var nine []string
	for i := range 9 {
		nine = append(nine, fmt.Sprint("d", i))
	}
	for name, c := range map[string]struct {
		got, want string
	}{
		"too many":          {of(api.Group{Datasets: nine}), "has 9 datasets; a group can have 8"},
		"one twice":         {of(api.Group{Datasets: []string{"a", "a"}}), "name every dataset once"},
		"one in two ways":   {of(api.Group{Datasets: []string{"a:stream", "a:cached"}}), "name every dataset once"},
		"an unknown way":    {of(api.Group{Datasets: []string{"a:peer"}}), "is no way to read a dataset; write a for a copy"},
		"no name":           {of(api.Group{Datasets: []string{"../a"}}), "datasets[0]"},
		"a virtual machine": {of(api.Group{Stack: api.StackVM, Shape: api.Shape{Memory: 1 << 30}, Datasets: []string{"a"}}), "can't have datasets"},
		"a volume there":    {of(api.Group{Datasets: []string{"a"}}, api.VolumeAttachment{Name: "v", Path: "/datasets/a"}), "attach the volume elsewhere"},
	} {
		if !strings.Contains(c.got, c.want) {
			t.Errorf("%s: %q, want %q", name, c.got, c.want)
		}
	}
	if got := of(api.Group{Datasets: []string{"a", "b"}}, api.VolumeAttachment{Name: "v"}); got != "" {
		t.Errorf("two datasets and a volume elsewhere: %q", got)
	}
}

func TestWaysToReadADatasetAreStoredInOneSpelling(t *testing.T) {
	c, err := Normalize(api.ClusterRequest{Name: "c1", Groups: []api.Group{{Datasets: []string{"a:copy", "b:stream", "c:cached", "d"}}}}, nil)
	if err != nil || !slices.Equal(c.Spec.Groups[0].Datasets, []string{"a", "b:stream", "c:cached", "d"}) {
		t.Errorf("stored %+v, %v", c.Spec.Groups, err)
	}
}

func TestTheFractionThatMembersReadIsStoredWithTheDataset(t *testing.T) {
	c, err := Normalize(api.ClusterRequest{Name: "c1", Groups: []api.Group{{Reads: 0.2, Datasets: []string{"a:auto", "b:auto:0.5", "c:cached", "d"}}}}, nil)
	if err != nil || c.Spec.Groups[0].Reads != 0 || !slices.Equal(c.Spec.Groups[0].Datasets, []string{"a:auto:0.2", "b:auto:0.5", "c:cached", "d"}) {
		t.Errorf("stored %+v, %v", c.Spec.Groups, err)
	}
	c, err = Normalize(api.ClusterRequest{Name: "c1", Reads: 1, Datasets: []string{"a:auto"}}, nil)
	if err != nil || !slices.Equal(c.Spec.Groups[0].Datasets, []string{"a:auto:1"}) {
		t.Errorf("stored %+v, %v", c.Spec.Groups, err)
	}
	for want, req := range map[string]api.ClusterRequest{
		"above 0 and at most 1":             {Name: "c1", Reads: 1.5, Datasets: []string{"a:auto"}},
		"for datasets whose way is left":    {Name: "c1", Reads: 0.5, Datasets: []string{"a:cached"}},
		"is no way to read a dataset":       {Name: "c1", Datasets: []string{"a:auto:0"}},
		"conflicts with groups; move it in": {Name: "c1", Reads: 0.5, Groups: []api.Group{{Datasets: []string{"a:auto"}}}},
	} {
		if _, err := Normalize(req, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", req, err, want)
		}
	}
}

func TestADatasetThatNoProjectCanHaveIsRefused(t *testing.T) {
	file := api.DatasetFile{URLs: []string{"https://h/f"}, Adler32: "0a1b2c3d"}
	var long []api.DatasetFile
	for i := range 900 {
		long = append(long, api.DatasetFile{Path: fmt.Sprint("f", i), URLs: []string{"https://h/" + strings.Repeat("x", 900)}, Adler32: "0a1b2c3d"})
	}
	for name, c := range map[string]struct {
		req  api.DatasetRequest
		want string
	}{
		"no name":        {api.DatasetRequest{Files: []api.DatasetFile{file}}, "name"},
		"no files":       {api.DatasetRequest{Name: "d"}, "give at least one file"},
		"too many files": {api.DatasetRequest{Name: "d", Files: make([]api.DatasetFile, 1001)}, "at most 1000"},
		"too long":       {api.DatasetRequest{Name: "d", Files: long}, "make several datasets"},
		"one path twice": {api.DatasetRequest{Name: "d", Files: []api.DatasetFile{file, file}}, "is also the path of files[0]"},
		"no checksum":    {api.DatasetRequest{Name: "d", Files: []api.DatasetFile{{URLs: file.URLs}}}, "files[0].adler32"},
		"a long secret": {
			api.DatasetRequest{Name: "d", Files: []api.DatasetFile{file}, Credential: &api.DatasetCredential{Token: strings.Repeat("t", 20<<10)}},
			"is longer than",
		},
	} {
		if _, err := CheckDataset(c.req, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if got, err := CheckDataset(api.DatasetRequest{Name: "d", Files: []api.DatasetFile{file}}, nil); err != nil || got.Files[0].Path != "f" {
		t.Errorf("a good one: %+v, %v", got, err)
	}
}
