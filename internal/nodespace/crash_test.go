//go:build failpoints

package nodespace

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// TestLife makes node spaces and removes them; TestAKillAtAnyFailpointIsMendedByTheNextProcess runs it in a process that dies.
func TestLife(t *testing.T) {
	needs.Child(t, "NEARMETAL_TEST_STATE")
	dir := os.Getenv("NEARMETAL_TEST_STATE")
	if _, err := Ensure(context.Background(), Config{StateDir: dir, Nodes: []string{"n1", "n2"}, Egress: true}); err != nil {
		t.Fatal(err)
	}
	if err := Remove(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
}

func TestAKillAtAnyFailpointIsMendedByTheNextProcess(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var marks []string
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`failpoint\.Hit\("([^"]+)"\)`).FindAllStringSubmatch(string(source), -1) {
			marks = append(marks, m[1], m[1]+":2")
		}
	}
	onHost(t, func(host netns.Handle) {
		addUplink(t)
		dir := t.TempDir()
		before := hostState(t, dir)
		for _, mark := range marks {
			cmd := exec.Command(os.Args[0], "-test.run=^TestLife$")
			cmd.Env = append(os.Environ(), "NEARMETAL_FAILPOINT="+mark, "NEARMETAL_TEST_STATE="+dir)
			out, err := cmd.CombinedOutput()
			status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if killed := ok && status.Signal() == syscall.SIGKILL; !killed && mark[len(mark)-2:] != ":2" {
				t.Errorf("%s: the process was not killed there: %v\n%s", mark, err, out)
			}
			spaces := ensure(t, Config{StateDir: dir, Nodes: []string{"n1", "n2"}, Egress: true})
			for _, space := range spaces.Nodes {
				if got := sh(t, space, "hostname; ls /sys/class/net"); got != space.Name+"\nlo\nunderlay" {
					t.Errorf("%s: on %s: got %q", mark, space.Name, got)
				}
			}
			remove(t, dir)
			if after := hostState(t, dir); after != before {
				t.Errorf("%s: got\n%s\nwant\n%s", mark, after, before)
			}
		}
	})
}
