package foreignimage

import (
	"os"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/testbed/debiantree"
)

func TestDisksAreMadeOnceAndKept(t *testing.T) {
	needs.Request(t, "NEARMETAL_GUESTS", "make test-testbed")
	needs.Root(t, "makes a tree of Debian packages")
	first := Cloud(t)
	t.Logf("a Debian system with cloud-init: %s", first.Path)
	t.Logf("a system without any agent: %s", Bare(t, debiantree.Ensure(t).Path("vmlinuz")).Path)
	info, err := os.Stat(first.Path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := os.Stat(Cloud(t).Path)
	if err != nil || !os.SameFile(info, again) {
		t.Errorf("a disk that was there was made again (%v)", err)
	}
}
