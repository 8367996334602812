package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// A library layer comes to running members, stays while it is used, is there for members that come later, and leaves nothing.
func TestALibraryLayerIsAddedToARunningClusterAndTakenAway(t *testing.T) {
	program(t, ordinary)
	needs.Program(t, "mkfs.erofs")
	needs.Program(t, "mmdebstrap")
	nothingLeft(t)
	sources := t.TempDir()
	tree := filepath.Join(sources, "tree/bin")
	if err := os.MkdirAll(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	shell, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "sh"), shell, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(sources, 0o755); err != nil { // builds have a user of their own
		t.Fatal(err)
	}
	recipes := t.TempDir()
	for name, text := range map[string]string{
		"base.yaml": "name: small\ndescription: a base\nbase: {directory: tree}\nstacks: [container]\n",
		"solver.yaml": "name: solver\ndescription: a solver\nbase: {environment: small}\n" +
			"files:\n  - {path: /solver/bin/solve, content: \"#!/bin/sh\\necho solved by $(hostname)\\n\", mode: \"755\"}\n",
	} {
		if err := os.WriteFile(filepath.Join(recipes, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := startSite(t, 1, "--build-sources", sources)
	s.must("env", "build", "--quiet", "-f", filepath.Join(recipes, "base.yaml"))
	s.must("env", "build", "--quiet", "-f", filepath.Join(recipes, "solver.yaml"))
	s.must("cluster", "create", "c1", "--memory", "256MiB")
	before := s.outputOf("c1", "cat /proc/sys/kernel/random/boot_id; cat /proc/1/stat | cut -d' ' -f22")

	s.must("cluster", "layer", "add", "c1", "solver", "--timeout", "1m")
	if got := s.outputOf("c1", "cat /proc/sys/kernel/random/boot_id; cat /proc/1/stat | cut -d' ' -f22"); got != before {
		t.Errorf("the member was started again: %q, was %q", got, before)
	}
	const solve = "/layers/solver/solver/bin/solve"
	if got := s.outputOf("c1", solve+"; stat -c %U "+solve+"; touch /layers/solver/new 2>&1 || true"); !strings.HasPrefix(got, "solved by c1-0\nroot\n") || !strings.Contains(got, "Read-only file system") {
		t.Errorf("the first member finds %q", got)
	}
	if got := s.outputOf("c1", "ls -A /layers/solver"); got != "solver" {
		t.Errorf("the layer has %q, want what it adds to its base alone", got)
	}
	s.must("cluster", "scale", "c1", "--size", "2")
	if got := s.must("cluster", "ssh", "c1", "c1-1", "--", solve); strings.TrimSpace(got) != "solved by c1-1" {
		t.Errorf("a member that came later says %q", got)
	}
	if a := s.cli("env", "delete", "solver"); a.code != exitConflict || !strings.Contains(a.err, "cluster c1") {
		t.Errorf("deleting the environment of a layer: exit code %d: %s", a.code, a.err)
	}
	if out := s.must("cluster", "layer", "list", "c1"); !strings.Contains(out, "ready") || !strings.Contains(out, "/layers/solver") {
		t.Errorf("layer list says:\n%s", out)
	}

	// The members outlive a crash of everything else, with their layers.
	s.kill()
	s.start()
	s.waitForNodes(1)
	s.eventually(time.Minute, "the cluster to be ready again", func() bool {
		var c api.Cluster
		s.mustJSON(&c, "cluster", "show", "c1")
		return c.Status.Phase == api.ClusterReady && c.Status.ReadyMembers == 2 && len(c.Status.Layers) == 1 && c.Status.Layers[0].State == api.LayerReady
	})

	s.must("cluster", "ssh", "c1", "c1-0", "--", "cd /layers/solver/solver && { sleep 1000 >/dev/null 2>&1 & echo $! > ~/holder; }")
	a := s.cli("cluster", "layer", "remove", "c1", "solver", "--timeout", "10s")
	if a.code == 0 || !strings.Contains(a.err, "files of /layers/solver are still open in member c1-0") || !strings.Contains(a.err, `"sleep" (PID `) {
		t.Errorf("removing a layer that is used: exit code %d: %s%s", a.code, a.out, a.err)
	}
	s.must("cluster", "ssh", "c1", "c1-0", "--", "kill $(cat ~/holder)")
	s.must("cluster", "layer", "remove", "c1", "solver", "--timeout", "1m")
	if got := s.outputOf("c1", "test -e "+solve+" || echo gone"); got != "gone" {
		t.Errorf("after its removal: %q", got)
	}
	s.must("env", "delete", "solver")
	s.must("env", "delete", "small")
	s.must("cluster", "delete", "c1", "--yes")
}
