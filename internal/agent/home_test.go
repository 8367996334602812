package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// fill makes files below a directory, with their content.
func fill(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAHomesFilesAreCountedAndLinksAreNotFollowed(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	fill(t, outside, map[string]string{"secret": strings.Repeat("x", 1000)})
	fill(t, dir, map[string]string{"hpc/a": "12345", "hpc/sub/b": "123", "hpc/.hidden": ""})
	for name, target := range map[string]string{"out": outside, "loop": ".", "gone": "nowhere"} {
		if err := os.Symlink(target, filepath.Join(dir, "hpc", name)); err != nil {
			t.Fatal(err)
		}
	}
	links := int64(len(outside) + len(".") + len("nowhere")) // a link's size is the length of its target
	got, err := homeUsage(t.Context(), dir)
	if want := (api.HomeUsage{Files: 6, Bytes: 8 + links}); err != nil || got != want {
		t.Errorf("counted %+v, %v; want %+v", got, err, want)
	}
}

func TestAHomeWithoutFilesIsEmpty(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "hpc", "work"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, home := range []string{dir, filepath.Join(dir, "never-made")} {
		if got, err := homeUsage(t.Context(), home); err != nil || !got.Empty() {
			t.Errorf("counted %+v, %v in %s; want nothing", got, err, home)
		}
	}
}

func TestCountingAHomeStopsAtItsLimits(t *testing.T) {
	deep := t.TempDir()
	fill(t, deep, map[string]string{filepath.Join(strings.Repeat("d/", maxCountDepth+2), "f"): ""})
	if got, err := homeUsage(t.Context(), deep); err != nil || !got.AtLeast || got.Files != 0 {
		t.Errorf("too deep: counted %+v, %v; want at least", got, err)
	}
	wide := t.TempDir()
	files := map[string]string{}
	for i := range 2*batch + 1 {
		files[fmt.Sprint(i)] = "x"
	}
	fill(t, wide, files)
	root, err := os.OpenRoot(wide)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	c := homeCount{ctx: t.Context(), left: batch + 1}
	if err := c.count(root, 1); err != nil || !c.usage.AtLeast || c.usage.Files != batch+1 {
		t.Errorf("too many: counted %+v, %v; want at least %d", c.usage, err, batch+1)
	}
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := homeUsage(late, wide); err != nil || !got.AtLeast || got.Empty() {
		t.Errorf("too long: counted %+v, %v; want at least 0", got, err)
	}
	if got, err := homeUsage(t.Context(), wide); err != nil || got.AtLeast || got.Files != 2*batch+1 {
		t.Errorf("counted %+v, %v; want all %d", got, err, 2*batch+1)
	}
}
