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
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/measure"
)

// experiment describes what is measured and under which conditions; the runs come later.
func (v *visit) experiment(cpus []int) measure.Experiment {
	return measure.Experiment{
		Title: "MPI ping-pong: a container cluster and the bare host, on the same cores",
		Summary: "Two ranks send a message back and forth. On the host they run as plain processes, in the cluster as a job on two " +
			"members, pinned to the same cores, from the same file. Both sides use Open MPI's TCP transport and no other: members are " +
			"separate machines to each other and share no memory, so the host's ranks are not allowed to either. The host's messages " +
			"cross the loopback interface, the cluster's a veth pair and a bridge; the difference is the price of the private network. " +
			"The dotted line shows what the host does through shared memory, which no network can.",
		Axis:    measure.Axis{Name: "Message size", Unit: "B", Bytes: true},
		Metrics: measure.PingPongMetrics(),
		Sides: []measure.Side{
			{Name: hostSide, Description: fmt.Sprintf("bare processes on CPUs %s; Open MPI btl tcp,self over lo", list(cpus))},
			{Name: clusterSide, Description: fmt.Sprintf("container members on CPUs %s, one core each; Open MPI btl tcp,self over eth0 (veth, bridge)", list(cpus))},
			{Name: memorySide, Description: fmt.Sprintf("bare processes on CPUs %s; Open MPI btl vader,self (shared memory), measured once", list(cpus)), Reference: true},
		},
		Highlights: []measure.Highlight{
			{Metric: measure.LatencyUS, Side: clusterSide, X: 8, Goal: goal},
			{Metric: measure.BandwidthMBPerS, Side: clusterSide, X: 4 << 20, Goal: goal},
		},
		Oversubscribed: oversubscription(v.cluster),
		Conditions: append(machine(),
			measure.Condition{Name: "Per run", Value: fmt.Sprintf("%d ms a message size, median of 5 loops after a warm-up", v.milliseconds())},
			measure.Condition{Name: "Nearmetal", Value: config.Version()}),
	}
}

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
	load, _, _ := strings.Cut(strings.TrimSpace(read("/proc/loadavg")), " ")
	return []measure.Condition{
		{Name: "Processor", Value: processor()},
		{Name: "Kernel", Value: fmt.Sprintf("%s %s %s", text(kernel.Sysname[:]), text(kernel.Release[:]), text(kernel.Machine[:]))},
		{Name: "System", Value: release()},
		{Name: "Load before", Value: load + " (1 minute average; other work on this machine shows in the spread)"},
	}
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
