package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/hostcheck"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// The nodes of a site are checked by their own agents, at the time of the question and in their own namespaces: one node loses a program, and
// only the check of that node reports it, until the program is back.
func TestTheHostOfANodeIsCheckedByItsAgentWhenAsked(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "1")
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	nft, err = filepath.EvalSymlinks(nft)
	if err != nil {
		t.Fatal(err)
	}
	s.wantFinding("n1", "nftables", hostcheck.OK)
	s.onNode("n1", "mount", "--bind", "/dev/null", nft)
	s.wantFinding("n1", "nftables", hostcheck.Warning)
	s.wantFinding("n2", "nftables", hostcheck.OK)
	s.onNode("n1", "umount", nft)
	s.wantFinding("n1", "nftables", hostcheck.OK)
	if a := s.cli("node", "check", "n3"); a.code != exitNotFound || !strings.Contains(a.err, `node "n3" does not exist`) {
		t.Errorf("the check of an unknown node: exit code %d: %s", a.code, a.err)
	}
	s.wantDryRun()
}

// wantFinding checks a node's host and looks at one finding.
func (s *site) wantFinding(node, name string, want hostcheck.Status) {
	s.t.Helper()
	var all []hostcheck.Finding
	s.mustJSON(&all, "node", "check", node)
	for _, f := range all {
		if f.Name == name {
			if f.Status != want {
				s.t.Errorf("the check of node %s finds %s %s (%s), want %s", node, name, f.Status, f.Detail, want)
			}
			return
		}
	}
	s.t.Errorf("the check of node %s has no finding %s: %+v", node, name, all)
}

// onNode runs a command in the mount namespace of a node.
func (s *site) onNode(node string, command ...string) {
	s.t.Helper()
	args := append([]string{"--mount=" + filepath.Join(s.dir, "spaces", node, "mnt")}, command...)
	if out, err := exec.Command("nsenter", args...).CombinedOutput(); err != nil {
		s.t.Fatalf("on node %s: %v: %v: %s", node, command, err, out)
	}
}

const (
	hugePagesFile = "/proc/sys/vm/nr_hugepages"
	sysctlFile    = "/etc/sysctl.d/60-nearmetal.conf"
)

// wantDryRun has a dry run plan a change of this machine, which must not happen.
func (s *site) wantDryRun() {
	s.t.Helper()
	before, kept := readText(s.t, hugePagesFile), exists(sysctlFile)
	out := s.must("node", "prepare", "--dry-run", "--for", "vm", "--huge-pages", "1TiB")
	if !strings.Contains(out, "sysctl -w vm.nr_hugepages=") {
		s.t.Errorf("a dry run does not plan to reserve huge pages:\n%s", out)
	}
	if now := readText(s.t, hugePagesFile); now != before || exists(sysctlFile) != kept {
		s.t.Errorf("a dry run changed the machine: %s huge pages, before %s; %s exists: %v", now, before, sysctlFile, exists(sysctlFile))
	}
}

// A machine of its own becomes a node by the commands that the program shows beforehand, and only once.
func TestAMachineIsPreparedAsTheDryRunShowed(t *testing.T) {
	needs.Request(t, "NEARMETAL_GUEST", "make test-testbed, whose guests may be changed")
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(program(t, ordinary), append([]string{"node"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("nearmetal node %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	prepare := []string{"prepare", "--for", "vm", "--huge-pages", "16MiB"}
	shown := run(append(prepare, "--dry-run")...)
	if exists("/dev/net/tun") {
		t.Fatal("the machine has TUN devices already, so that the preparation proves nothing")
	}
	if done := run(prepare...); done != shown {
		t.Errorf("the dry run showed:\n%s\nthe preparation did:\n%s", shown, done)
	}
	if pages := readText(t, hugePagesFile); pages != "8" {
		t.Errorf("the machine has %s huge pages, want 8", pages)
	}
	if !exists("/dev/net/tun") {
		t.Errorf("the machine has no TUN devices after:\n%s", shown)
	}
	if again := run(prepare...); !strings.HasPrefix(again, "nothing to change\n") {
		t.Errorf("a second preparation says:\n%s", again)
	}
	run("check") // which exits with 1 if anything is missing
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}
