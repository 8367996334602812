package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// clusterHomeStep creates a cluster whose home is a volume of its own, fills it, and deletes both.
func clusterHomeStep(t *testing.T, s *site) {
	t.Helper()
	s.must("cluster", "create", "c4", "--memory", "256MiB", "--home", "96MiB")
	if out := s.must("cluster", "show", "c4"); !strings.Contains(out, "a volume of 96MiB, which is deleted with the cluster") {
		t.Errorf("cluster show does not name the home:\n%s", out)
	}
	homes := func() []api.VolumeStatus {
		var all, own []api.VolumeStatus
		s.mustJSON(&all, "volume", "list")
		for _, v := range all {
			if v.Cluster == "c4" {
				own = append(own, v)
			}
		}
		return own
	}
	own := homes()
	if len(own) != 1 || own[0].Size != 96<<20 || len(own[0].Clusters) != 1 || own[0].Clusters[0].Cluster != "c4" {
		t.Fatalf("the volumes of cluster c4 are %+v, want its home", own)
	}
	if got := s.outputOf("c4", "head -c 120M /dev/zero 2>&1 > ~/big; rm ~/big; echo mine > ~/file; cat ~/file"); !strings.Contains(got, "No space left") || !strings.HasSuffix(got, "mine") {
		t.Errorf("120 MiB in a home of 96 MiB: %q, want no space left, and a file", got)
	}
	if a := s.cli("cluster", "create", "c5", "--memory", "256MiB", "--volume", own[0].Name); a.code != exitUsage || !strings.Contains(a.err, "is the home of a cluster") {
		t.Errorf("another cluster attaches the home: exit code %d, want %d: %s", a.code, exitUsage, a.err)
	}
	if a := s.cli("volume", "delete", own[0].Name, "--now", "--yes"); a.code != exitConflict {
		t.Errorf("deleting the home of a cluster: exit code %d, want %d: %s", a.code, exitConflict, a.err)
	}
	if a := s.cli("cluster", "delete", "c4"); a.code != exitUsage || !strings.Contains(a.err, "its shared home holds 1 file") {
		t.Errorf("deleting a cluster whose home holds a file: exit code %d, want %d and the number of files: %s", a.code, exitUsage, a.err)
	}
	s.must("cluster", "delete", "c4", "--yes")
	s.eventually(time.Minute, "the home to be wiped", func() bool { return len(homes()) == 0 })
}
