package hostsnapshot

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
)

func TestWhatAnotherObservedProgramMakesInOursIsNotOurs(t *testing.T) {
	needs.Root(t, "gives folders to groups")
	const group, other = firstGroup + 5, firstGroup + 6
	shared := filepath.Join(t.TempDir(), "shared")
	for path, group := range map[string]int{"": group, "/own": 0, "/own/given": 1000, "/other": other, "/other/given": 1000} {
		if err := os.MkdirAll(shared+path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(shared+path, -1, group); err != nil {
			t.Fatal(err)
		}
	}
	c := &collector{opts: Options{Group: group}, oursDirs: map[string]bool{}}
	for path, want := range map[string]bool{"": true, "/own": true, "/own/given": true, "/other": false, "/other/given": false} {
		if got := c.ours(shared + path); got != want {
			t.Errorf("shared%s is ours: %t, want %t", path, got, want)
		}
	}
}
