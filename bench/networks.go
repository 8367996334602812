package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// networkBenchmark is one that part networks runs.
type networkBenchmark struct {
	name, of string
	rounds   int
}

func networkBenchmarks() []networkBenchmark {
	const fabric, responder = "./internal/fabric/node", "./internal/responder"
	return []networkBenchmark{{"TenantPaths", fabric, 61}, {"Limits", fabric, 5}, {"NetworkChange", fabric, 21}, {"DHCP", responder, 101}}
}

// tenantNetworks measures what networks of projects cost packets and nodes, by the benchmarks of the node's packages. Links by hand, or the same node
// without what is measured, take turns with each.
func tenantNetworks(ctx context.Context, o options, text *bytes.Buffer) error {
	fmt.Fprintf(text, "Networks of projects, on %s at load %s; intervals of 95%% in brackets\n", coresOf(), load())
	for _, b := range networkBenchmarks() {
		cmd := exec.CommandContext(ctx, o.goTool, "test", "-run", "^$", "-bench", "^Benchmark"+b.name+"$", "-benchtime", fmt.Sprintf("%dx", b.rounds), b.of)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", b.name, err, out)
		}
		lines, err := benchmarkLines(string(out))
		if err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
		fmt.Fprintf(text, "  %s, %d rounds\n%s", b.name, b.rounds, lines)
	}
	text.WriteString("\n")
	return nil
}

// benchmarkLines writes what `go test -bench` printed, a metric a line. A value with ends of an interval, NAME-low and NAME-high, has them in
// brackets, and one with quartiles, NAME-q1 and NAME-q3, in parentheses.
func benchmarkLines(output string) (string, error) {
	var b strings.Builder
	for line := range strings.Lines(output) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		_, name, _ := strings.Cut(fields[0], "/")
		if at := strings.LastIndex(name, "-"); at > 0 {
			name = name[:at] // the number of processors
		}
		values := map[string]string{}
		var units []string
		for i := 2; i+1 < len(fields); i += 2 {
			if _, err := strconv.ParseFloat(fields[i], 64); err != nil {
				return "", fmt.Errorf("%q is no value of %s", fields[i], fields[0])
			}
			values[fields[i+1]] = fields[i]
			units = append(units, fields[i+1])
		}
		if name != "" {
			fmt.Fprintf(&b, "    %s\n", strings.ReplaceAll(name, "_", " "))
		}
		slices.Sort(units)
		for _, unit := range units {
			writeMetric(&b, unit, values)
		}
	}
	if b.Len() == 0 {
		return "", fmt.Errorf("no benchmark ran: %s", output)
	}
	return b.String(), nil
}

// writeMetric writes one value with its spread, and nothing for the ends of a spread.
func writeMetric(b *strings.Builder, unit string, values map[string]string) {
	spreads := [][4]string{{"-low", "-high", "[", "]"}, {"-q1", "-q3", "(", ")"}}
	for _, s := range spreads {
		for _, end := range s[:2] {
			if of, is := strings.CutSuffix(unit, end); is && values[of] != "" {
				return
			}
		}
	}
	fmt.Fprintf(b, "      %-28s %s", unit, values[unit])
	for _, s := range spreads {
		if low, high := values[unit+s[0]], values[unit+s[1]]; low != "" && high != "" {
			fmt.Fprintf(b, " %s%s, %s%s", s[2], low, high, s[3])
		}
	}
	b.WriteString("\n")
}
