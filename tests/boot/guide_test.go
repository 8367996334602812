package boot

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// step is one command of a guide, and the lines of its output that the guide shows.
type step struct {
	command string
	shown   []string
}

// stepsOf reads the commands of a guide's section: lines after "$ " in its blocks of code.
func stepsOf(t *testing.T, guide, section string) (steps []step) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "guides", guide))
	must(t, err)
	_, text2, found := strings.Cut(string(text), "\n## "+section+"\n")
	if !found {
		t.Fatalf("%s has no section %q", guide, section)
	}
	body, _, _ := strings.Cut(text2, "\n## ")
	inside := false
	for line := range strings.Lines(body) {
		line = strings.TrimRight(line, "\n")
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case strings.HasPrefix(line, "```"):
			inside = !inside
		case inside && isCommand:
			steps = append(steps, step{command: command})
		case inside && len(steps) > 0:
			steps[len(steps)-1].shown = append(steps[len(steps)-1].shown, line)
		}
	}
	return steps
}

// The guide's own commands, one after the other as they are pasted into a shell: machines that are off become a cluster with MPI and Slurm, one dies and is
// replaced, files are saved and restored, and all machines are off and clean in the end.
func TestTheGuideOfWholeMachinesWorksAsWritten(t *testing.T) {
	var machines []vdc.MachineConfig
	for _, name := range []string{"bios1", "bios2", "uefi1", "uefi2"} {
		firmware := api.FirmwareBIOS
		if strings.HasPrefix(name, "uefi") {
			firmware = api.FirmwareUEFI
		}
		machines = append(machines, vdc.MachineConfig{Name: name, Firmware: firmware, MemoryMiB: memoryMiB})
	}
	s := newSite(t, machines)
	steps := stepsOf(t, "bare-metal.md", "From powered-off machines to a cluster and back")
	// What stands for these here is the site of the test, and its data centre.
	site := []string{"make build", "make testbed TESTBED_FLAGS='-bios 2 -uefi 2'", "sudo bin/nearmetal dev --provision nmprov0"}
	if len(steps) < len(site) || !slices.EqualFunc(steps[:len(site)], site, func(s step, want string) bool { return s.command == want }) {
		t.Fatalf("the guide does not begin with %q: %+v", site, steps)
	}
	s.paste(steps[len(site):])
	list := s.run("node", "list")
	for _, name := range []string{"bios1", "bios2", "uefi2"} {
		if r := s.record(name); r.Phase != api.MachineOff || r.Tenant != nil || r.Clean == nil {
			t.Errorf("in the end machine %s is %s, of %+v, cleaned %+v:\n%s", name, r.Phase, r.Tenant, r.Clean, list)
		}
		s.wantPower(name, api.PowerOff)
	}
}

// paste runs commands in one shell, as a user of this site has it, until the first that fails. What is shown of their output must be in it.
func (s *site) paste(steps []step) {
	s.t.Helper()
	bin := s.t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(bin, "vdcctl.real"), "github.com/nearmetal/nearmetal/testbed/vdc/vdcctl")
	if out, err := build.CombinedOutput(); err != nil {
		s.t.Fatalf("go build: %v: %s", err, out)
	}
	for name, script := range map[string]string{
		"nearmetal": fmt.Sprintf("NEARMETAL_STATE=%s exec %s \"$@\"", s.dir, s.program),
		"vdcctl":    fmt.Sprintf("verb=$1; shift; exec %s/vdcctl.real \"$verb\" -name %s \"$@\"", bin, s.name),
	} {
		must(s.t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	const mark = "@@ step"
	var script strings.Builder
	script.WriteString("set -e\n")
	for i, step := range steps {
		fmt.Fprintf(&script, "echo '%s %d'\ndate >&2\n%s\n", mark, i, step.command)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 25*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script.String())
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	var out, problems strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &problems
	began := time.Now()
	err := cmd.Run()
	s.t.Logf("measured: the guide took %.0f s", time.Since(began).Seconds())
	said := strings.Split(out.String(), mark+" ")[1:]
	if err != nil {
		last := len(said) - 1
		s.t.Fatalf("%q: %v; it said:\n%s\nand to standard error:\n%s", steps[last].command, err, said[last], tail(problems.String(), 40))
	}
	for i, step := range steps {
		lines := strings.Split(said[i], "\n")
		for _, want := range step.shown {
			if !slices.ContainsFunc(lines, func(line string) bool { return strings.TrimSpace(line) == want }) {
				s.t.Errorf("%s: did not print %q but:\n%s", step.command, want, said[i])
			}
		}
	}
}
