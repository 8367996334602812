package e2e

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/hostsnapshot"
)

// nothingLeft looks at the whole host now and again when the test is over; whatever was left behind fails the test.
func nothingLeft(t *testing.T) {
	t.Helper()
	if err := hostsnapshot.AdoptOrphans(); err != nil {
		t.Fatal(err)
	}
	opts := hostsnapshot.Options{FileRoots: fileRoots()}
	before, err := hostsnapshot.Take(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, differences, err := before.Settle(context.Background(), opts, 15*time.Second)
		if err != nil {
			t.Error(err)
		}
		for _, d := range hostsnapshot.Counting(differences) {
			t.Error("left on the host:", d)
		}
	})
}

// fileRoots are the default ones with this test's own folder for temporary files in place of those that all programs share.
func fileRoots() []string {
	roots := []string{os.TempDir()}
	for _, root := range hostsnapshot.DefaultFileRoots {
		if root != "/tmp" && root != "/var/tmp" {
			roots = append(roots, root)
		}
	}
	return roots
}

func TestAClusterRunsAnMPIJobAndLeavesNothing(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 1)

	s.must("cluster", "create", "c1", "--size", "2", "--cores", "1", "--memory", "256MiB")
	var c api.Cluster
	s.mustJSON(&c, "cluster", "show", "c1")
	if c.Status.Phase != api.ClusterReady || len(c.Status.Members) != 2 {
		t.Fatalf("after create: phase %s with %d members, want ready with 2", c.Status.Phase, len(c.Status.Members))
	}
	out := s.must("run", "c1", "-n", "2", "--", "hostname")
	if got := strings.Fields(out); len(got) != 2 || got[0] == got[1] {
		t.Errorf("hostname on 2 ranks printed %q, want the names of both members", out)
	}
	s.must("cluster", "delete", "c1")
	if a := s.cli("cluster", "show", "c1"); a.code == 0 {
		t.Errorf("after delete the cluster still shows:\n%s", a.out)
	}
}
