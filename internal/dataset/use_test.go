package dataset

import (
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// at is a file at some places.
func at(path string, urls ...string) api.DatasetFile {
	return api.DatasetFile{Path: path, URLs: urls}
}

func TestACacheHasOneServerThatHasAllFiles(t *testing.T) {
	for name, c := range map[string]struct {
		files  []api.DatasetFile
		server string
		paths  []string
		why    string
	}{
		"one server": {[]api.DatasetFile{at("a", "root://far//x/a"), at("b", "root://far:1094//x/b")}, "far:1094", []string{"/x/a", "/x/b"}, ""},
		"the second source of one file is the first of the other": {
			[]api.DatasetFile{at("a", "root://near//a", "root://far//x/a"), at("b", "root://far//x/b")}, "far:1094", []string{"/x/a", "/x/b"}, "",
		},
		"a web server before it": {[]api.DatasetFile{at("a", "https://far/a", "root://far:2094//a")}, "far:2094", []string{"/a"}, ""},
		"web servers only":       {[]api.DatasetFile{at("a", "root://far//a"), at("b", "https://far/b")}, "", nil, "file b has no source by root://"},
		"several servers":        {[]api.DatasetFile{at("a", "root://far//a"), at("b", "root://near//b")}, "", nil, "at several servers"},
		"another right":          {[]api.DatasetFile{at("a", "root://far//a%20/etc")}, "", nil, "characters that caches don't take"},
		"another line":           {[]api.DatasetFile{at("a", "root://far//a%0Aall.export")}, "", nil, "characters that caches don't take"},
	} {
		got, why := OriginOf(c.files)
		if got.Server != c.server || !slices.Equal(got.Paths, c.paths) || !strings.Contains(why, c.why) || (why == "") != (c.why == "") {
			t.Errorf("%s: %+v, %q; want %s, %v, %q", name, got, why, c.server, c.paths, c.why)
		}
	}
}

func TestMembersReadPrivateDatasetsAsCopiesOnly(t *testing.T) {
	files := []api.DatasetFile{at("a", "root://far//a")}
	for _, way := range []api.DatasetWay{api.DatasetCopy, api.DatasetStream, api.DatasetCached} {
		if why := Unfit(files, false, way); why != "" {
			t.Errorf("a public one as %s: %q", way, why)
		}
		if why := Unfit(files, true, way); (why == "") != (way == api.DatasetCopy) {
			t.Errorf("a private one as %s: %q", way, why)
		}
	}
	if why := Unfit([]api.DatasetFile{at("a", "https://far/a")}, false, api.DatasetCached); !strings.Contains(why, "by root://") {
		t.Errorf("one at a web server, cached: %q", why)
	}
}

func TestURLsLeadToSourcesOrToThePortOfTheCache(t *testing.T) {
	files := []api.DatasetFile{at("a", "https://far/a", "root://far//x/a")}
	for way, want := range map[api.DatasetWay][]string{
		api.DatasetCopy: nil, api.DatasetStream: {"https://far/a"}, api.DatasetCached: {"root://127.0.0.1:10942//x/a"},
	} {
		if got := URLs(files, api.DatasetUse{Name: "d", Way: way}, 2); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", way, got, want)
		}
	}
}

func TestAnyWayThatWasLeftOpenIsListed(t *testing.T) {
	files := []api.DatasetFile{{Path: "2016/a", URLs: []string{"https://far/a", "root://far//x/a"}}}
	use := api.ParseDatasetUse("d:auto")
	for way, want := range map[api.DatasetWay]string{api.DatasetCopy: "/datasets/d/2016/a", api.DatasetStream: "https://far/a", api.DatasetCached: "root://127.0.0.1:10942//x/a"} {
		decided := use.For(&api.Assignment{Data: []api.DataClaim{{Name: "other", Way: api.DatasetCopy}, {Name: "d", Way: way}}})
		if got := URLs(files, decided, 2); len(got) != 1 || got[0] != want {
			t.Errorf("%s: %q, want %s", way, got, want)
		}
	}
	if got := use.For(&api.Assignment{}); got.Way != api.DatasetCopy {
		t.Errorf("nothing was decided: %+v", got)
	}
	for text, want := range map[string]api.DatasetUse{
		"d:auto": {Name: "d", Way: api.DatasetAuto}, "d:auto:0.25": {Name: "d", Way: api.DatasetAuto, Reads: 0.25}, "d:auto:2": {Name: "d", Way: "auto:2"}, "d:cached:0.2": {Name: "d", Way: "cached:0.2"},
	} {
		if got := api.ParseDatasetUse(text); got != want || got.String() != text {
			t.Errorf("%s is read as %+v, and written as %s", text, got, got)
		}
	}
}

func TestACacheIsTooSmallWhenMuchIsFetchedAgain(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		figures CacheFigures
		want    bool
	}{
		"nothing was read":                         {CacheFigures{}, false},
		"all was fetched once":                     {CacheFigures{MissBytes: 300 * mib}, false},
		"half was fetched again":                   {CacheFigures{MissBytes: 300 * mib, AgainBytes: 150 * mib}, true},
		"a tenth was fetched again":                {CacheFigures{MissBytes: 300 * mib, AgainBytes: 30 * mib}, false},
		"half of what was ahead, too":              {CacheFigures{MissBytes: 100 * mib, AheadBytes: 200 * mib, AgainBytes: 150 * mib}, true},
		"half, and little of what the cache holds": {CacheFigures{MissBytes: 10 * mib, AgainBytes: 5 * mib}, false},
	} {
		if got := c.figures.TooSmall(100 * mib); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}
