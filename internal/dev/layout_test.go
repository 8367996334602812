package dev

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/config"
)

func TestTheNodesOfASiteAreNotDividedAnewWhileMembersRun(t *testing.T) {
	dir := t.TempDir()
	member := filepath.Join(dir, "nodes", "n1", "members", "u1.c1-0.1")
	for _, step := range []struct {
		what    string
		members bool
		layout  layout
		ok      bool
	}{
		{"the first start", false, layout{2, 2}, true},
		{"the same again, with members", true, layout{2, 2}, true},
		{"more nodes, with members", true, layout{4, 1}, false},
		{"other cores, with members", true, layout{2, 3}, false},
		{"the same after a refusal", true, layout{2, 2}, true},
		{"more nodes, once they are gone", false, layout{4, 1}, true},
		{"the former, with members of the new", true, layout{2, 2}, false},
	} {
		if err := os.RemoveAll(member); err != nil {
			t.Fatal(err)
		}
		if step.members {
			if err := os.MkdirAll(member, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		err := keepLayout(dir, step.layout)
		if (err == nil) != step.ok || err != nil && !strings.Contains(err.Error(), "--nodes") {
			t.Errorf("%s: got %v, want it to be taken: %v", step.what, err, step.ok)
		}
	}
}

func TestWhereASiteIsIsToldUnlessItIsWhereAllLook(t *testing.T) {
	for dir, want := range map[string]string{
		config.StateDir:       "",
		config.StateDir + "/": "",
		"/tmp/nm":             "NEARMETAL_STATE=/tmp/nm nearmetal node list",
	} {
		if got := reach(dir); (got == "") != (want == "") || !strings.HasSuffix(got, want) {
			t.Errorf("%s: %q, want %q", dir, got, want)
		}
	}
}
