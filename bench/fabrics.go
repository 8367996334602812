package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
)

// fabricBenchmark is one that part fabrics runs.
type fabricBenchmark struct {
	about, pattern, of string
	times              int
	// programs are what it needs beside Go.
	programs []string
}

func fabricBenchmarks() []fabricBenchmark {
	return []fabricBenchmark{
		{
			"a change of one of 100 partitions on a simulated fabric of 648 hosts, until both ports' tables show it; by hand, the file, SIGHUP and smpquery",
			"^BenchmarkAPartitionChangeIsVerified$", "./internal/fabric/site/infiniband/opensm", 20,
			[]string{"ibsim", "opensm", "ibnetdiscover", "smpquery"},
		},
		{
			"a virtual function assigned and released on the model host; by hand, the same writes without owners and read-back",
			"^BenchmarkAFunctionIsAssignedAndReleased$", "./internal/fabric/node/sriov", 201, nil,
		},
		{
			"a group of 1,000 placed on 100,000 nodes of a fat tree, by the clock (p50-ms, p99-ms) and in processor time (cpu)",
			"^BenchmarkPlaceOnTree$/^nodes=100000$/^gang-1000", "./internal/placement", 500, nil,
		},
	}
}

// fabrics measures partitions, functions of adapters and placement by topology, by the benchmarks of their packages.
func fabrics(ctx context.Context, o options, log *slog.Logger, text *bytes.Buffer) error {
	fmt.Fprintf(text, "InfiniBand and functions of adapters, without hardware, on %s at load %s; quartiles in parentheses, intervals of 95%% in brackets\n", coresOf(), load())
	for _, b := range fabricBenchmarks() {
		if missing := missingProgram(b.programs); missing != "" {
			log.Warn(b.about+" omitted: not installed; setup/install.sh test installs it", "program", missing)
			continue
		}
		cmd := exec.CommandContext(ctx, o.goTool, "test", "-run", "^$", "-bench", b.pattern, "-benchtime", fmt.Sprintf("%dx", b.times), b.of)
		cmd.Env = append(os.Environ(), "NEARMETAL_FABRICS=1")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", b.pattern, err, out)
		}
		lines, err := benchmarkLines(string(out))
		if err != nil {
			return fmt.Errorf("%s: %w", b.pattern, err)
		}
		fmt.Fprintf(text, "  %s, %d times\n%s", b.about, b.times, lines)
	}
	text.WriteString("\n")
	return nil
}

// missingProgram returns the first that is not installed; "": all are.
func missingProgram(programs []string) string {
	for _, name := range programs {
		if _, err := exec.LookPath(name); err != nil {
			return name
		}
	}
	return ""
}
