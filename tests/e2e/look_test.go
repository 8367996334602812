package e2e

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// volatile are the parts of what is listed that differ without anything being left.
var volatile = regexp.MustCompile(`(?m)^\d+: |@if\d+|# handle \d+|counter packets \d+ bytes \d+|\bqlen \d+`)

// lookAtNodes lists what is on every node of the site, from inside its namespaces: links, rules, mounts; and what the site keeps of
// members outside of them: control groups and files. The agent itself is no part of it. Two looks with the same clusters
// are the same.
func (s *site) lookAtNodes() string {
	s.t.Helper()
	nodes, err := filepath.Glob(filepath.Join(s.dir, "nodes", "*"))
	if err != nil || len(nodes) == 0 {
		s.t.Fatalf("no nodes in %s: %v", s.dir, err)
	}
	var look []string
	for _, dir := range nodes {
		node := filepath.Base(dir)
		look = append(look, "node "+node)
		for _, list := range []string{
			"ip -o link show", "ip -o address show", "nft list ruleset",
			// Root, target and type of every mount; IDs and options are volatile.
			`awk '{ for (i = 7; $i != "-"; i++) {} print "mount", $4, $5, $(i+1) }' /proc/self/mountinfo`,
		} {
			pins := filepath.Join(s.dir, "spaces", node)
			cmd := exec.Command("nsenter", "--net="+filepath.Join(pins, "net"), "--mount="+filepath.Join(pins, "mnt"), "sh", "-c", list)
			var complaints strings.Builder // ip complains of peers in namespaces of other sites
			cmd.Stderr = &complaints
			out, err := cmd.Output()
			if err != nil {
				s.t.Fatalf("on node %s: %s: %v\n%s%s", node, list, err, out, &complaints)
			}
			look = append(look, s.withoutOtherSites(volatile.ReplaceAllString(string(out), "")))
		}
		look = append(look, below(filepath.Join(dir, "members"))...)
		look = append(look, below(filepath.Join(dir, "control"))...)
	}
	return strings.Join(append(look, below(filepath.Join(s.dir, "home"))...), "\n")
}

// withoutOtherSites leaves away the lines about temporary files of others, such as the pins of a site that another test made
// before these namespaces were made. A pool of volumes is the node's and stays mounted once it was needed; what is mounted of its volumes counts.
func (s *site) withoutOtherSites(list string) string {
	lines := slices.DeleteFunc(strings.Split(list, "\n"), func(line string) bool {
		if strings.HasSuffix(line, "/volumes/images xfs") {
			return true
		}
		return (strings.Contains(line, " /tmp/") || strings.Contains(line, os.TempDir()+"/")) && !strings.Contains(line, s.dir+"/")
	})
	return strings.Join(lines, "\n")
}

// withoutGoneMountsOfOthers leaves away what others on the host have unmounted meanwhile, such as network namespaces that had names when the
// node's namespaces were made. What appears stays: that could be the cluster's.
func (s *site) withoutGoneMountsOfOthers(before, now string) string {
	is := strings.Split(now, "\n")
	lines := slices.DeleteFunc(strings.Split(before, "\n"), func(line string) bool {
		return strings.HasPrefix(line, "mount ") && !strings.Contains(line, s.dir+"/") && !slices.Contains(is, line)
	})
	return strings.Join(lines, "\n")
}

// wantNothingOf checks that the nodes look as they did before a cluster, and that no control group or process on the whole host
// bears its UID. A deleted cluster is clean by definition: there is nothing to wait for.
func (s *site) wantNothingOf(uid, before string) {
	s.t.Helper()
	now := s.lookAtNodes()
	if before = s.withoutGoneMountsOfOthers(before, now); now != before {
		s.t.Errorf("the nodes are not as they were before the cluster:\n%s", lineDiff(before, now))
	}
	for _, dir := range below("/sys/fs/cgroup") {
		if strings.Contains(dir, uid) {
			s.t.Errorf("left of the cluster: control group %s", dir)
		}
	}
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range commands {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), uid) {
			s.t.Errorf("left of the cluster: process %s: %s", file, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
}

// below lists the directories below one, as far as it exists.
func below(dir string) []string {
	var found []string
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && path != dir && entry.IsDir() {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// lineDiff lists the lines that only one of two texts has.
func lineDiff(before, after string) string {
	was, is := strings.Split(before, "\n"), strings.Split(after, "\n")
	var diff []string
	for _, line := range is {
		if !slices.Contains(was, line) {
			diff = append(diff, "+ "+line)
		}
	}
	for _, line := range was {
		if !slices.Contains(is, line) {
			diff = append(diff, "- "+line)
		}
	}
	return strings.Join(diff, "\n")
}
