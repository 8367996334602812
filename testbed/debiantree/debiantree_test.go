package debiantree

import (
	"os"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
)

func TestATreeHasWhatBoots(t *testing.T) {
	needs.Request(t, "NEARMETAL_GUESTS", "make test-testbed")
	needs.Root(t, "makes a Debian system")
	tree := Ensure(t)
	for _, name := range []string{"vmlinuz", "tree/lib/modules", "root.erofs", "sums"} {
		if info, err := os.Stat(tree.Path(name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
