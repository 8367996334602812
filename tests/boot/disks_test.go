package boot

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/diskserver"
)

// A machine on another node than its block volume writes all the time. Its agent falls silent, and the machine does not. Once another has taken its place,
// beside the volume, nothing that the first writes arrives, and the second has all that was written before.
func TestABlockVolumeFollowsItsMachineToAnotherNode(t *testing.T) {
	s := newNodes(t, "--nodes", "2", "--node-cores", "2", "--volume-pool-size", "1GiB")
	s.run("volume", "create", "disk", "--size", "128MiB", "--kind", "block", "--node", "n1")
	s.run("node", "drain", "n1")
	s.run("cluster", "create", "d1", "--stack", "vm", "--memory", "512MiB", "--env", "debian-mpi", "--volume", "disk")
	if on := s.cluster("d1").Status.Members[0].Node; on != "n2" {
		t.Fatalf("the member is on node %s", on)
	}
	s.run("node", "undrain", "n1")
	for words, args := range map[string][]string{
		"move it offline": {"cluster", "migrate", "d1", "d1-0", "--to", "n1"},
		"only a cluster of one member, without spares, can have one": {"cluster", "scale", "d1", "--size", "2"},
		"in use by cluster d1": {"cluster", "create", "d2", "--stack", "vm", "--env", "debian-mpi", "--volume", "disk"},
		"attached to cluster":  {"volume", "delete", "disk", "--now", "--yes"},
	} {
		s.refused(words, args...)
	}
	// A process between them ends: the machine waits, and goes on.
	s.run("cluster", "ssh", "d1", "--", "echo kept >/volumes/disk/file; sync")
	for _, process := range disksOf(t, s.dir) {
		must(t, syscall.Kill(process, syscall.SIGKILL))
	}
	const count = `nohup sh -c 'n=0; while :; do n=$((n+1)); echo $n >/volumes/disk/count; sync; done' >/dev/null 2>&1 & until [ "$(cat /volumes/disk/count)" -gt 3 ]; do sleep 0.2; done 2>/dev/null`
	s.run("cluster", "ssh", "d1", "--", count)
	if n := len(disksOf(t, s.dir)); n != 3 {
		t.Errorf("%d processes serve and carry the disk, want 3", n)
	}

	agent := s.agentOf("n2")
	must(t, syscall.Kill(agent, syscall.SIGSTOP))
	t.Cleanup(func() { _ = syscall.Kill(agent, syscall.SIGCONT) })
	s.until(virtualDeadline, "the member to be replaced on n1", func() bool {
		c := s.cluster("d1")
		return c.Status.Phase == api.ClusterReady && slices.ContainsFunc(c.Status.Members, func(m api.MemberStatus) bool { return m.Node == "n1" && m.Phase == api.MemberReady })
	})
	if n := len(machinesOf(t, "d1")); n != 2 {
		t.Fatalf("%d machines run, want the first one, too", n)
	}
	seen := strings.Fields(s.run("cluster", "ssh", "d1", "--", "cat /volumes/disk/file /volumes/disk/count"))
	if len(seen) != 2 || seen[0] != "kept" {
		t.Errorf("the second machine reads %q", seen)
	}
	image := s.imageOf("n1")
	before, err := os.ReadFile(image)
	must(t, err)
	s.run("cluster", "ssh", "d1", "--", "sleep 3")
	after, err := os.ReadFile(image)
	must(t, err)
	if counters(before) != counters(after) {
		t.Error("the image changes: the first machine still writes")
	}

	must(t, syscall.Kill(agent, syscall.SIGCONT))
	s.until(virtualDeadline, "the first machine to end", func() bool { return len(machinesOf(t, "d1")) == 1 })
	s.run("cluster", "delete", "d1", "--yes")
	s.until(virtualDeadline, "all that served the disk to end", func() bool { return len(disksOf(t, s.dir)) == 0 })
	s.run("volume", "delete", "disk", "--now", "--yes")
	left, err := filepath.Glob(filepath.Join(s.dir, "nodes", "*", "sharing", "*"))
	must(t, err)
	more, err := filepath.Glob(filepath.Join(s.dir, "nodes", "*", "volumes", "disks", "*"))
	must(t, err)
	if all := slices.Concat(left, more); len(all) > 0 {
		t.Errorf("left of it: %q", all)
	}
}

// counters is how often the digits of a counter and their newline begin a block of an image.
func counters(image []byte) (text string) {
	const block = 1024
	for at := 0; at+block <= len(image); at += block {
		if line, _, ok := bytes.Cut(image[at:at+12], []byte("\n")); ok {
			if _, err := strconv.Atoi(string(line)); err == nil {
				text += string(line) + " "
			}
		}
	}
	return text
}

// imageOf is the image of the only volume of a node.
func (s *site) imageOf(node string) string {
	s.t.Helper()
	// The file system of the pool is mounted where the agent is.
	root := filepath.Join("/proc", strconv.Itoa(s.agentOf(node)), "root")
	all, err := filepath.Glob(filepath.Join(root, s.dir, "nodes", node, "volumes", "images", "*", "volume"))
	must(s.t, err)
	if len(all) != 1 {
		s.t.Fatalf("node %s has the images %q", node, all)
	}
	return all[0]
}

// agentOf is the process of a node's agent.
func (s *site) agentOf(node string) int {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "nodes", node, "lock"))
	must(s.t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	must(s.t, err)
	return pid
}

// disksOf are the processes of a site that serve block volumes and carry them between nodes.
func disksOf(t *testing.T, dir string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && bytes.HasPrefix(line, []byte(diskserver.Name+"\x00"+dir)) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			must(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}
