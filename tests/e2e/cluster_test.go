package e2e

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/hostsnapshot"
)

// nothingLeft looks at the whole host now and again when the test is over; whatever was left behind fails the test. Tests that call
// it can't run in parallel.
func nothingLeft(t *testing.T) {
	t.Helper()
	if err := hostsnapshot.AdoptOrphans(); err != nil {
		t.Fatal(err)
	}
	// alone.sh gives all tests a group of their own: a busy host's files, mounts and cgroups are not taken for theirs.
	opts := hostsnapshot.Options{FileRoots: fileRoots(), Group: uint32(os.Getegid())}
	before, err := hostsnapshot.Take(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		collectOrphans()
		_, differences, err := before.Settle(context.Background(), opts, 15*time.Second)
		if err != nil {
			t.Error(err)
		}
		for _, d := range differences {
			// Nobody else makes anything in the folder for temporary files, whatever group it has.
			if d.Verdict == hostsnapshot.Left || (d.Verdict == hostsnapshot.Unknown && strings.Contains(d.Key+d.Detail, os.TempDir()+"/")) {
				t.Error("left on the host:", d)
			}
		}
	})
}

// collectOrphans takes ended children off the process table: members of a crashed site fell to this process. Their sandbox ends after them, so it
// looks again until there has been none for a while.
func collectOrphans() {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	const short, long = 10, 400 // on a busy machine, a sandbox takes a while to see that all in it were collected
	quiet := short
	for idle := 0; idle < quiet; idle++ {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err != nil {
			return // there are no children at all
		}
		if pid > 0 {
			idle, quiet = 0, long
			continue
		}
		<-tick.C
	}
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
	out := openMPIWarning.ReplaceAllString(s.must("run", "c1", "-n", "2", "--", "hostname"), "")
	if got := strings.Fields(out); len(got) != 2 || got[0] == got[1] {
		t.Errorf("hostname on 2 ranks printed %q, want the names of both members", out)
	}
	s.must("run", "c1", "--", "sh", "-c", "echo result > kept")
	if a := s.cli("cluster", "delete", "c1"); a.code != exitUsage || !strings.Contains(a.err, "holds 1 file (7 bytes)") || !strings.Contains(a.err, "--yes") {
		t.Errorf("deleting a home with a file: exit code %d, want %d and how much it holds: %s", a.code, exitUsage, a.err)
	}
	s.must("run", "c1", "--", "rm", "kept")
	s.must("cluster", "delete", "c1") // an empty home needs no --yes
	if a := s.cli("cluster", "show", "c1"); a.code == 0 {
		t.Errorf("after delete the cluster still shows:\n%s", a.out)
	}
}

func TestAClusterAndItsJobsSurviveACrashOfTheServer(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 1)
	s.must("cluster", "create", "c1", "--size", "2", "--cores", "1", "--memory", "256MiB")
	var before, after api.Cluster
	s.mustJSON(&before, "cluster", "show", "c1")

	s.kill()
	s.start()
	s.waitForNodes(1)
	s.eventually(time.Minute, "the cluster to be ready again", func() bool {
		s.mustJSON(&after, "cluster", "show", "c1")
		return after.Status.Phase == api.ClusterReady
	})
	if after.UID != before.UID || after.Status.Generation != before.Status.Generation {
		t.Errorf("after the crash: cluster %s generation %d, want %s generation %d: nothing was decided anew",
			after.UID, after.Status.Generation, before.UID, before.Status.Generation)
	}
	if out := s.must("run", "c1", "-n", "1", "--", "echo", "still here"); strings.TrimSpace(out) != "still here" {
		t.Errorf("a job after the crash printed %q", out)
	}
}
