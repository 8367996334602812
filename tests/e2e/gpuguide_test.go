package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// guideCommands are the commands of a guide between two of its headings, in their order.
func guideCommands(t *testing.T, guide, from, to string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "guides", guide))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n"+from+"\n")
	part, _, ends := strings.Cut(rest, "\n"+to+"\n")
	if !found || !ends {
		t.Fatalf("%s has no part from %q to %q", guide, from, to)
	}
	var commands strings.Builder
	for i, block := range strings.Split(part, "```\n") {
		if i%2 == 1 {
			commands.WriteString(block)
		}
	}
	return commands.String()
}

// The guide runs as it is written, in one shell, on PoCL. A person's next command comes when the server listens; the shell waits for that.
func TestTheGuideOneGPUThreeWaysRunsAsWritten(t *testing.T) {
	programs := gpuPrograms(t)
	nothingLeft(t)
	dir, path := t.TempDir(), filepath.Dir(program(t, ordinary))
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(programs, filepath.Join(dir, "bin", "gpuremote")); err != nil {
		t.Fatal(err)
	}
	icd := filepath.Join(programs, "nearmetal.icd")
	if _, err := os.Stat(icd); err != nil { // make gpuremote writes it, and a build for tests does not
		if err := os.WriteFile(icd, []byte("libnearmetal_opencl.so\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	commands := guideCommands(t, "gpu-remote.md", "## The first way: directly", "## CUDA")
	const starts = "--listen tcp:127.0.0.1:7070 &\n"
	if strings.Count(commands, starts) != 1 || !strings.Contains(commands, "measure gpu") {
		t.Fatalf("the guide's commands start no server, or measure nothing:\n%s", commands)
	}
	commands = strings.Replace(commands, starts, starts+"until [ -S gpu.sock ]; do sleep 0.1; done\n", 1)
	shell := exec.CommandContext(t.Context(), "bash", "-ec", commands)
	shell.Dir, shell.Env, shell.WaitDelay = dir, append(os.Environ(), "PATH="+path+":"+os.Getenv("PATH")), time.Second
	out, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	if n := strings.Count(string(out), "pathfinder  "); n < 3 {
		t.Errorf("the last kernel ran %d times, want it by three ways:\n%s", n, out)
	}
	for _, want := range []string{"Platform #0", "shared memory / local", "published / local"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	for _, name := range []string{"report.txt", "report.html", "report.json", "runs.jsonl"} {
		if _, err := os.Stat(filepath.Join(dir, "results", name)); err != nil {
			t.Errorf("the guide promises %s: %v", name, err)
		}
	}
}
