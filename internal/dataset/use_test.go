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
}

func TestACacheReadsFromOneServerOfXRootDOrFromWebServers(t *testing.T) {
	both := at("a", "https://far/a", "root://far//x/a")
	for name, c := range map[string]struct {
		files   []api.DatasetFile
		private bool
		server  string
		web     []string
		why     string
	}{
		"XRootD before the web":               {[]api.DatasetFile{both}, false, "far:1094", nil, ""},
		"a credential is for web servers":     {[]api.DatasetFile{both}, true, "", []string{"https://far/a"}, ""},
		"several web servers":                 {[]api.DatasetFile{at("a", "https://far/a"), at("b", "http://near:81/b?x=1")}, false, "", []string{"https://far/a", "http://near:81/b?x=1"}, ""},
		"the web has all, XRootD a part":      {[]api.DatasetFile{both, at("b", "https://far/b")}, false, "", []string{"https://far/a", "https://far/b"}, ""},
		"neither has all":                     {[]api.DatasetFile{at("a", "root://far//a"), at("b", "https://far/b")}, false, "", nil, "no source by root://"},
		"private at XRootD":                   {[]api.DatasetFile{at("a", "root://far//a")}, true, "", nil, "present to web servers only"},
		"a certificate of an address":         {[]api.DatasetFile{at("a", "https://192.0.2.1/a")}, false, "", nil, "by a name only"},
		"a URL with a directive":              {[]api.DatasetFile{at("a", "https://far/a;b")}, false, "", nil, "characters that caches don't take"},
		"a path within it with a directive":   {[]api.DatasetFile{at("a b", "https://far/a")}, false, "", nil, "characters that caches don't take"},
		"a URL with a variable of the server": {[]api.DatasetFile{at("a", "http://far/$host")}, false, "", nil, "characters that caches don't take"},
	} {
		got, why := BackingOf(c.files, c.private)
		if got.XRootD.Server != c.server || !slices.Equal(got.Web, c.web) || !strings.Contains(why, c.why) || (why == "") != (c.why == "") {
			t.Errorf("%s: %+v, %q; want %s, %v, %q", name, got, why, c.server, c.web, c.why)
		}
	}
	if got := URLs([]api.DatasetFile{both}, true, api.DatasetUse{Name: "d", Way: api.DatasetCached}, 2); !slices.Equal(got, []string{"http://127.0.0.1:10942/a"}) {
		t.Errorf("members read a private one at %q", got)
	}
}

func TestURLsLeadToSourcesOrToThePortOfTheCache(t *testing.T) {
	files := []api.DatasetFile{at("a", "https://far/a", "root://far//x/a")}
	for way, want := range map[api.DatasetWay][]string{
		api.DatasetCopy: nil, api.DatasetStream: {"https://far/a"}, api.DatasetCached: {"root://127.0.0.1:10942//x/a"},
	} {
		if got := URLs(files, false, api.DatasetUse{Name: "d", Way: way}, 2); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", way, got, want)
		}
	}
}

func TestAnyWayThatWasLeftOpenIsListed(t *testing.T) {
	files := []api.DatasetFile{{Path: "2016/a", URLs: []string{"https://far/a", "root://far//x/a"}}}
	use := api.ParseDatasetUse("d:auto")
	for way, want := range map[api.DatasetWay]string{api.DatasetCopy: "/datasets/d/2016/a", api.DatasetStream: "https://far/a", api.DatasetCached: "root://127.0.0.1:10942//x/a"} {
		decided := use.For(&api.Assignment{Data: []api.DataClaim{{Name: "other", Way: api.DatasetCopy}, {Name: "d", Way: way}}})
		if got := URLs(files, false, decided, 2); len(got) != 1 || got[0] != want {
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
