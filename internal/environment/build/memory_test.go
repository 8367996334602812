package build

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
)

// TestAControlGroupBoundsMemory needs no tools of builds, so that guests with other control groups can run it.
func TestAControlGroupBoundsMemory(t *testing.T) {
	needs.Root(t, "makes control groups")
	for range 2 { // the second finds what a killed agent left
		g, err := makeGroup("build-bound", 64<<20)
		if err != nil {
			t.Fatal(err)
		}
		inside := func(bytes string) error {
			return exec.Command("sh", "-c", "echo 0 > "+g.path()+"/cgroup.procs && exec dd if=/dev/zero of=/dev/null count=1 bs="+bytes).Run()
		}
		if err := inside("10M"); err != nil || g.exceeded() != nil {
			t.Errorf("within the limit: %v, %v", err, g.exceeded())
		}
		err = inside("128M")
		if err == nil || g.exceeded() == nil || !strings.Contains(g.exceeded().Error(), "more than the 64 MiB") {
			t.Errorf("beyond the limit: %v, %v", err, g.exceeded())
		}
		t.Cleanup(func() {
			if err := g.remove(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(g.dir); !os.IsNotExist(err) {
				t.Errorf("the group is left: %v", err)
			}
		})
	}
}
