package cgroup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// freezerTree is a control group tree made of plain files, with one member's group in it.
func freezerTree(t *testing.T, v2 bool, files map[string]string) (*Groups, string) {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, parentName, "n1", "m")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tree := hierarchy{mountPoint: root, v2: v2}
	if !v2 {
		tree.controllers = []string{"freezer"}
	}
	return &Groups{group: "n1", trees: []hierarchy{tree}}, dir
}

func TestAGroupThatIsHalfFrozenCountsAsFrozen(t *testing.T) {
	for _, tt := range []struct {
		name  string
		v2    bool
		files map[string]string
		want  bool
	}{
		{"v1 thawed", false, map[string]string{"freezer.state": "THAWED\n"}, false},
		{"v1 on the way", false, map[string]string{"freezer.state": "FREEZING\n"}, true},
		{"v1 frozen", false, map[string]string{"freezer.state": "FROZEN\n"}, true},
		{"v1 group gone", false, nil, false},
		{"v2 thawed", true, map[string]string{"cgroup.freeze": "0\n", "cgroup.events": "populated 1\nfrozen 0\n"}, false},
		{"v2 on the way", true, map[string]string{"cgroup.freeze": "1\n", "cgroup.events": "populated 1\nfrozen 0\n"}, true},
		{"v2 frozen", true, map[string]string{"cgroup.freeze": "1\n", "cgroup.events": "populated 1\nfrozen 1\n"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, _ := freezerTree(t, tt.v2, tt.files)
			if got := c.Frozen("m"); got != tt.want {
				t.Errorf("got %t, want %t", got, tt.want)
			}
		})
	}
}

func TestAVersion2GroupIsFrozenWhenTheKernelSaysSoAndNotBefore(t *testing.T) {
	c, dir := freezerTree(t, true, map[string]string{"cgroup.freeze": "0\n", "cgroup.events": "populated 1\nfrozen 0\n"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := c.Freeze(ctx, "m")
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "frozen 0") {
		t.Errorf("while the kernel says that it is not: got %v, want what the kernel says", err)
	}
	if text, _ := os.ReadFile(filepath.Join(dir, "cgroup.freeze")); !strings.HasPrefix(string(text), "1") {
		t.Errorf("cgroup.freeze holds %q, want 1", text)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.events"), []byte("populated 1\nfrozen 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := c.Freeze(ctx, "m"); err != nil {
		t.Errorf("once it is frozen: %v", err)
	}
	if err := c.Thaw(ctx, "m"); !errors.Is(err, context.Canceled) {
		t.Errorf("thawing, while the kernel says that it is frozen: got %v", err)
	}
	if text, _ := os.ReadFile(filepath.Join(dir, "cgroup.freeze")); !strings.HasPrefix(string(text), "0") {
		t.Errorf("cgroup.freeze holds %q, want 0", text)
	}
}

func TestAHostWithoutAFreezerSaysWhatToDo(t *testing.T) {
	c := &Groups{group: "n1", trees: []hierarchy{{mountPoint: t.TempDir(), controllers: []string{"memory"}}}}
	if err := c.Freeze(t.Context(), "m"); err == nil || !strings.Contains(err.Error(), "mount -t cgroup -o freezer") {
		t.Errorf("got %v, want the command that mounts one", err)
	}
	if err := c.Thaw(t.Context(), "m"); err != nil {
		t.Errorf("thawing where nothing can be frozen: %v", err)
	}
}
