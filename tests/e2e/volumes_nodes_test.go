package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// A volume lies on one node, and members of a cluster on two others have it, too. A node falls silent while a process in its member writes to the volume
// on and on, over a network that still carries it. Before another member takes the place of that one, what the process writes arrives no more, also not
// once the node is heard again.
func TestAVolumeReachesOtherNodesAndIsTakenFromOneThatIsLost(t *testing.T) {
	needs.Request(t, "NEARMETAL_NFS", "make test-volume-guest, whose guest has a kernel with an NFS server and client")
	program(t, failpoints)
	dir := diskOfItsOwn(t)
	nothingLeft(t)
	s := newSiteIn(t, failpoints, filepath.Join(dir, "s"), "--nodes", "4", "--node-cores", "1", "--volume-pool-size", "512MiB")
	arms := armory{t, t.TempDir()}
	s.start(arms.environment())
	s.waitForNodes(4)
	// Agents die amid what they do for volumes that cross; the next ones find what is there.
	marks := []string{"agent.before-sharing", "agent.after-sharing"}
	wantDeaths := func(when string) {
		t.Helper()
		for _, mark := range marks {
			if _, died := arms.disarm(mark); !died {
				t.Errorf("%s, no agent came by %s", when, mark)
			}
		}
	}
	for _, mark := range marks {
		arms.arm(mark)
	}
	s.must("volume", "create", "data", "--size", "64MiB", "--timeout", "2m")
	var v api.VolumeStatus
	s.mustJSON(&v, "volume", "show", "data")
	s.cluster("c", 3, "--volume", "data")
	wantDeaths("when members began")
	names := first(3, "c")
	before := s.waitMembers("c", names)
	far := ""
	for name, m := range placed(before) {
		if m.Node != v.Node && name != "c-0" { // c-0 runs the commands
			far = name
		}
	}
	s.must("run", "c", "-n", "3", "--", "sh", "-c", "hostname > /volumes/data/$(hostname) && sync")
	if got, want := s.outputOf("c", "cat /volumes/data/c-*"), strings.Join(names, "\n"); got != want {
		t.Errorf("members on three nodes wrote %q, want %q", got, want)
	}
	if got := s.outputOf("c", "stat -c %U /volumes/data/"+far+"; head -c 100M /dev/zero 2>&1 >/volumes/data/big; rm /volumes/data/big"); !strings.HasPrefix(got, "hpc\n") || !strings.Contains(got, "No space left") {
		t.Errorf("another member's file and more than the volume holds: %q, want its user, and no space left", got)
	}

	old := s.oldMember(before, far)
	writer := exec.Command("nsenter", "--target", fmt.Sprint(old.pid), "--user", "--mount", "--setuid", "1000", "--setgid", "1000", "--", "sh", "-c",
		"while :; do echo old >> /volumes/data/log; sync /volumes/data/log; done 2>/dev/null")
	writer.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := writer.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-writer.Process.Pid, syscall.SIGKILL)
		_ = writer.Wait()
	})
	lines := func() string { return s.outputOf("c", "cat /volumes/data/log 2>/dev/null | wc -l") }
	s.eventually(time.Minute, "the writer to write", func() bool { return lines() != "0" })

	for _, mark := range marks {
		arms.arm(mark)
	}
	s.cutBoth(old.Node)
	after := s.waitClusterFor(5*time.Minute, "c", "ready with another "+far, func(c api.Cluster) bool {
		m := placed(c)[far]
		return c.Status.Phase == api.ClusterReady && m.Node != old.Node && m.Phase == api.MemberReady
	})
	wantDeaths("when a node was shut out")
	written := lines()
	s.must("run", "c", "-n", "3", "--", "sh", "-c", "echo new > /volumes/data/new-$(hostname) && sync")
	if now := lines(); now != written {
		t.Errorf("a member whose place another has took the log from %s lines to %s", written, now)
	}
	if !alive(writer.Process.Pid) || !alive(old.pid) {
		t.Error("the old member or its writer has ended: what is checked here shows nothing")
	}
	s.mendNetwork(old.Node)
	s.eventually(2*time.Minute, "the old member to be ended", func() bool { return !alive(old.pid) })
	s.waitForNodes(4)
	if now := lines(); now != written {
		t.Errorf("once its node was heard again, the old member's writer took the log from %s lines to %s", written, now)
	}
	if err := syscall.Kill(-writer.Process.Pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}

	// The node that was lost carries a member with the volume again, once nothing is left of the old one.
	s.must("cluster", "scale", "c", "--size", "4", "--timeout", "3m")
	grown := s.waitMembers("c", first(4, "c"))
	if m := placed(grown)["c-3"]; m.Node != old.Node {
		t.Errorf("c-3 is on %s, want it on %s, which was lost; the others are on %v", m.Node, old.Node, placed(after))
	}
	if got := s.outputOf("c", "cat /volumes/data/new-*"); got != "new\nnew\nnew" {
		t.Errorf("the files of three members: %q", got)
	}
	s.must("run", "c", "-n", "4", "--", "sh", "-c", "echo last > /volumes/data/last-$(hostname) && sync")

	// The way to the volume's node is cut, amid writes. The cluster ends all the same.
	pid := s.processAt(grown, placed(grown)["c-3"])
	stuck := exec.Command("nsenter", "--target", fmt.Sprint(pid), "--all", "--setuid", "1000", "--setgid", "1000", "--", "sh", "-c", "while :; do echo stuck >> /volumes/data/stuck; done")
	if err := stuck.Start(); err != nil {
		t.Fatal(err)
	}
	s.eventually(time.Minute, "another writer to write", func() bool { return s.outputOf("c", "cat /volumes/data/stuck 2>/dev/null | wc -l") != "0" })
	s.nft(v.Node, "table inet cut {\nchain input { type filter hook input priority -300; udp dport 4789 drop; }\nchain output { type filter hook output priority -300; udp dport 4789 drop; }\n}\n")
	s.must("cluster", "delete", "c", "--yes")
	_ = stuck.Wait() // it ended with its member
	s.mendNetwork(v.Node)
	s.must("volume", "delete", "data", "--now", "--yes")
}

// diskOfItsOwn is a directory on a file system that says that it is large: that of the guest is in memory, and has no room for pools.
func diskOfItsOwn(t *testing.T) string {
	t.Helper()
	dir := shortDir(t)
	script := fmt.Sprintf("truncate -s 32G %s.img && mkfs.ext4 -q -O ^has_journal %[1]s.img && mount -o loop %[1]s.img %[1]s && rmdir %[1]s/lost+found", dir)
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("sh", "-ec", "umount "+dir+" && rm "+dir+".img").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	return dir
}
