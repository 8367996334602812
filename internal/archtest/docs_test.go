package archtest

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

func TestTheDecisionsListTheDependenciesThatAreImportedAndNoOthers(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/decisions/008-dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]bool{} // by module path
	for _, module := range regexp.MustCompile(`[a-z0-9.-]+\.[a-z]+/[A-Za-z0-9./_-]*[A-Za-z0-9]`).FindAllString(string(page), -1) {
		reasons[module] = true
	}
	files, err := Load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{} // of the modules on the page
	for _, f := range files {
		for name, line := range f.Imports {
			if !strings.Contains(strings.SplitN(name, "/", 2)[0], ".") || within(name, ".") {
				continue // standard library, or this module
			}
			found := false
			for module := range reasons {
				if within(name, module) {
					found, used[module] = true, true
				}
			}
			if !found {
				t.Errorf("%s:%d: %s has no reason in docs/decisions/008-dependencies.md", f.Path, line, name)
			}
		}
	}
	for module := range reasons {
		if !used[module] {
			t.Errorf("docs/decisions/008-dependencies.md gives a reason for %s, which no file imports", module)
		}
	}
}

func TestEveryDecisionIsInTheIndex(t *testing.T) {
	t.Parallel()
	index, err := os.ReadFile("../../docs/decisions/README.md")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := fs.Glob(os.DirFS("../.."), "docs/decisions/[0-9]*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no decisions found: %v", err)
	}
	for i, page := range pages {
		if !strings.HasPrefix(path.Base(page), fmt.Sprintf("%03d-", i+1)) {
			t.Errorf("%s: want number %03d; decisions are numbered without a gap", page, i+1)
		}
	}
	for _, page := range pages {
		if !strings.Contains(string(index), "("+path.Base(page)+")") {
			t.Errorf("%s is not in docs/decisions/README.md", page)
		}
	}
}
