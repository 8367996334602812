package demo

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
)

// oversubscription says which members share a core; "" when none does.
func oversubscription(c api.Cluster) string {
	users := map[int][]string{}
	for _, m := range c.Status.Members {
		for _, cpu := range m.CPUs {
			users[cpu] = append(users[cpu], m.Name)
		}
	}
	for cpu, names := range users {
		if len(names) > 1 {
			return fmt.Sprintf("%s share CPU %d. Ranks that share a core wait for each other's time slices; these figures say nothing about separate cores.",
				strings.Join(names, " and "), cpu)
		}
	}
	if c.Status.Oversubscribed {
		return "members may share cores with other members of this machine; these figures say nothing about cores of their own."
	}
	return ""
}

// machine describes this machine.
func machine() []measure.Condition {
	var kernel unix.Utsname
	_ = unix.Uname(&kernel)
	return []measure.Condition{
		{Name: "Processor", Value: processor()},
		{Name: "Kernel", Value: fmt.Sprintf("%s %s %s", text(kernel.Sysname[:]), text(kernel.Release[:]), text(kernel.Machine[:]))},
		{Name: "System", Value: release()},
		{Name: "Load before", Value: load() + " (1 minute average; other work on this machine shows in the spread)"},
	}
}

// load is the average number of runnable processes over the last minute.
func load() string {
	average, _, _ := strings.Cut(strings.TrimSpace(read("/proc/loadavg")), " ")
	return average
}

func processor() string {
	model, virtual := "unknown", ""
	lines := bufio.NewScanner(strings.NewReader(read("/proc/cpuinfo")))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		switch strings.TrimSpace(name) {
		case "model name":
			model = strings.TrimSpace(value)
		case "flags":
			if strings.Contains(value+" ", " hypervisor ") {
				virtual = ", in a virtual machine"
			}
		}
	}
	return fmt.Sprintf("%s, %d CPUs%s", model, runtime.NumCPU(), virtual)
}

func release() string {
	for line := range strings.Lines(read("/etc/os-release")) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(name, `"`)
		}
	}
	return "unknown"
}

// mpiVersion reads the ping-pong's header line.
func mpiVersion(output []byte) string {
	for line := range bytes.Lines(output) {
		var header struct {
			MPI string `json:"mpi"`
		}
		if json.Unmarshal(line, &header) == nil && header.MPI != "" {
			return header.MPI
		}
	}
	return "unknown"
}

func read(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(content)
}

func text(field []byte) string { return string(bytes.TrimRight(field, "\x00")) }

func list(cpus []int) string {
	parts := make([]string, len(cpus))
	for i, c := range cpus {
		parts[i] = fmt.Sprint(c)
	}
	return strings.Join(parts, ", ")
}
