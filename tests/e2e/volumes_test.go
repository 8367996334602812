package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// outputOf is what a command on a cluster printed, without what Open MPI says of the host.
func (s *site) outputOf(cluster, line string) string {
	s.t.Helper()
	return strings.TrimSpace(openMPIWarning.ReplaceAllString(s.must("run", cluster, "--", "sh", "-c", line), ""))
}

func TestVolumesAndHomesOutliveTheirClusters(t *testing.T) {
	program(t, ordinary)
	needs.Program(t, "mkfs.xfs")
	needs.Program(t, "mkfs.ext4")
	nothingLeft(t)
	s := startSite(t, 1, "--volume-pool-size", "1GiB")

	s.must("volume", "create", "data", "--size", "128MiB", "--io-limit", "64MiB", "--timeout", "1m")
	s.must("cluster", "create", "c1", "--size", "2", "--memory", "256MiB", "--volume", "data", "--home", "user:128MiB")
	var first api.Cluster
	s.mustJSON(&first, "cluster", "show", "c1")
	if out := s.must("cluster", "show", "c1"); !strings.Contains(out, "data (/volumes/data)") || !strings.Contains(out, "the user's, which is kept") {
		t.Errorf("cluster show names neither volume nor home:\n%s", out)
	}
	s.outputOf("c1", "echo first > /volumes/data/file && chmod 600 /volumes/data/file && echo kept > ~/file")
	if got := s.outputOf("c1", "head -c 200M /dev/zero 2>&1 > /volumes/data/big; rm /volumes/data/big"); !strings.Contains(got, "No space left") {
		t.Errorf("200 MiB in a volume of 128 MiB: %q, want no space left", got)
	}
	if a := s.cli("cluster", "create", "c2", "--memory", "256MiB", "--volume", "data"); a.code != exitConflict || !strings.Contains(a.err, "c1") {
		t.Errorf("a second writer: exit code %d, want %d and the first one's name: %s", a.code, exitConflict, a.err)
	}
	if a := s.cli("volume", "delete", "data"); a.code != exitConflict {
		t.Errorf("deleting a volume in use: exit code %d, want %d: %s", a.code, exitConflict, a.err)
	}
	s.must("volume", "snapshot", "create", "data@before")

	// The members outlive a crash of everything else, and keep their volumes.
	s.kill()
	s.start()
	s.waitForNodes(1)
	s.eventually(time.Minute, "the cluster to be ready again", func() bool {
		var c api.Cluster
		s.mustJSON(&c, "cluster", "show", "c1")
		return c.Status.Phase == api.ClusterReady
	})
	if got := s.outputOf("c1", "echo second > /volumes/data/file; cat ~/file"); got != "kept" {
		t.Errorf("after the crash the home's file holds %q, want what was written", got)
	}
	limitIO(s, 2)
	changeVolumesOf(s, "c1")
	s.must("cluster", "delete", "c1") // without a question: nothing is lost

	s.must("cluster", "create", "other", "--memory", "256MiB")
	s.must("cluster", "create", "c2", "--memory", "256MiB", "--volume", "data:/srv/data:ro", "--home", "user")
	if got := s.outputOf("c2", "cat /srv/data/file ~/file; stat -c %U:%a /srv/data/file; touch /srv/data/new 2>&1 || true"); !strings.HasPrefix(got, "second\nkept\nhpc:600\n") ||
		!strings.Contains(got, "Read-only file system") {
		t.Errorf("another cluster finds %q, want the files of the first, and none to write", got)
	}
	s.must("cluster", "delete", "other")
	s.must("cluster", "delete", "c2")

	s.must("volume", "restore", "data@before")
	s.must("cluster", "create", "c3", "--memory", "256MiB", "--volume", "data", "--home", "none")
	if got := s.outputOf("c3", "cat /volumes/data/file; ls -A /home/*"); got != "first" {
		t.Errorf("after the snapshot was restored, and without a home: %q, want the file as it was, and an empty home", got)
	}
	sum := s.outputOf("c3", "head -c 3M /dev/urandom > /volumes/data/random && sync && sha256sum < /volumes/data/random")
	s.must("cluster", "delete", "c3")

	backup := filepath.Join(t.TempDir(), "data.tar.zst")
	s.must("volume", "backup", "data", backup)
	s.must("volume", "delete", "data", "--now", "--yes")
	whole, err := os.ReadFile(backup)
	if err != nil {
		t.Fatal(err)
	}
	cut := append(whole[:len(whole)/2:len(whole)/2], whole[len(whole)-1024:]...) // with an end that seems right
	if err := os.WriteFile(backup+".cut", cut, 0o600); err != nil {
		t.Fatal(err)
	}
	if a := s.cli("volume", "create", "data", "--from-backup", backup+".cut"); a.code == 0 || !strings.Contains(a.err, "nothing of it is left") {
		t.Errorf("a volume of a damaged backup: exit code %d: %s", a.code, a.err)
	}
	s.eventually(time.Minute, "the volume of the damaged backup to be gone", func() bool { return s.cli("volume", "show", "data").code == exitNotFound })
	s.must("volume", "create", "data", "--from-backup", backup)
	s.must("cluster", "create", "c4", "--memory", "256MiB", "--volume", "data", "--home", "none")
	if got := s.outputOf("c4", "cat /volumes/data/file; stat -c %U:%a /volumes/data/file; sha256sum < /volumes/data/random"); got != "first\nhpc:600\n"+sum {
		t.Errorf("the volume of the backup holds %q, want the files of the first with the hash %s", got, sum)
	}
	s.must("cluster", "delete", "c4")
	clusterHomeStep(t, s)

	var volumes []api.VolumeStatus
	s.mustJSON(&volumes, "volume", "list")
	for _, v := range volumes {
		s.must("volume", "delete", v.Name, "--now", "--yes")
	}
	if len(volumes) != 2 {
		t.Errorf("there were %d volumes, want data and the user's home", len(volumes))
	}
	s.eventually(time.Minute, "the volumes to be gone", func() bool {
		s.mustJSON(&volumes, "volume", "list")
		return len(volumes) == 0
	})
}

// limitIO changes the limit of the volume data, which this many members have, and looks for it in the kernel.
func limitIO(s *site, members int) {
	s.t.Helper()
	kernel := func(rate string) int {
		files, err := filepath.Glob("/sys/fs/cgroup/nearmetal/*/*/io.max")
		v1, err1 := filepath.Glob("/sys/fs/cgroup/blkio/nearmetal/*/*/blkio.throttle.write_bps_device")
		if err != nil || err1 != nil {
			s.t.Fatal(err, err1)
		}
		count := 0
		for _, file := range append(files, v1...) {
			text, _ := os.ReadFile(file)
			for line := range strings.Lines(string(text)) {
				if fields := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '=' || r == '\n' }); slices.Contains(fields, rate) {
					count++
				}
			}
		}
		return count
	}
	holds := func(rate string) {
		s.t.Helper()
		s.eventually(time.Minute, "the members to be held to "+rate+" bytes per second", func() bool { return kernel(rate) == members })
	}
	holds("67108864")
	s.must("volume", "resize", "data", "--io-limit", "32MiB")
	holds("33554432")
	if out := s.must("volume", "show", "data"); !strings.Contains(out, "32MiB/s read and 32MiB/s written by each member") {
		s.t.Errorf("volume show does not show the limit:\n%s", out)
	}
	if a := s.cli("volume", "resize", "data", "--io-limit", "1000"); a.code == 0 || !strings.Contains(a.err, "is not a limit of I/O; give 1MiB to 1TiB") {
		s.t.Errorf("a limit of 1000 bytes: exit code %d: %s", a.code, a.err)
	}
	s.must("volume", "resize", "data", "--io-limit", "none")
	s.eventually(time.Minute, "the limit to be lifted", func() bool { return kernel("33554432") == 0 })
}

// changeVolumesOf attaches a volume to a running cluster of two members and detaches it again, with a crash of everything else in between.
func changeVolumesOf(s *site, name string) {
	s.t.Helper()
	before := s.outputOf(name, "cut -d ' ' -f 22 /proc/1/stat")
	s.must("volume", "create", "more", "--size", "64MiB", "--timeout", "1m")
	s.must("volume", "attach", "more:/srv/more", name)
	s.outputOf(name, "echo added > /srv/more/file")
	job := strings.TrimSpace(s.must("run", name, "--detach", "--", "sh", "-c", "cd /srv/more; touch ~/there; exec sleep 1000"))
	s.outputOf(name, "until test -e ~/there; do :; done")
	if a := s.cli("volume", "detach", "more", name, "--timeout", "5s"); a.code == 0 || !strings.Contains(a.err, `files of /srv/more are still open in member `+name+`-0 by "sleep" (PID `) {
		s.t.Errorf("detaching a volume with open files: exit code %d: %s", a.code, a.err)
	}
	if a := s.cli("volume", "delete", "more"); a.code != exitConflict {
		s.t.Errorf("deleting a volume that is being detached: exit code %d, want %d: %s", a.code, exitConflict, a.err)
	}
	if out := s.must("volume", "show", "more"); !strings.Contains(out, name+" (detaching)") {
		s.t.Errorf("volume show does not say that it is being detached:\n%s", out)
	}
	s.must("volume", "attach", "more:/srv/more", name) // after all
	s.kill()
	s.start()
	s.waitForNodes(1)
	if got := s.outputOf(name, "cat /srv/more/file /volumes/data/file"); got != "added\nsecond" {
		s.t.Errorf("after a crash, the volumes hold %q", got)
	}
	s.must("job", "cancel", job)
	s.must("volume", "detach", "more", name)
	if got := s.outputOf(name, "ls -A /srv/more; cut -d ' ' -f 22 /proc/1/stat"); got != before {
		s.t.Errorf("after it was detached, its directory and the start of the member are %q, want nothing and %q", got, before)
	}
	s.must("volume", "delete", "more", "--now", "--yes")
}
