package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
)

// planningCost runs the own benchmarks of placement, from 100 to 100,000 nodes, and of admission, a queue of 10,000 requests.
func planningCost(ctx context.Context, o options, text *bytes.Buffer) error {
	for _, b := range []struct{ name, bench, of string }{
		{"Placement", "BenchmarkPlace", "./internal/placement"},
		{"Placement by topology", "BenchmarkPlaceOnTree", "./internal/placement"},
		{"Queue of 10,000 re-planned", "BenchmarkPlan10000", "./internal/admission"},
	} {
		if err := goBench(ctx, o, b.name, b.bench, b.of, text); err != nil {
			return err
		}
	}
	return nil
}

func goBench(ctx context.Context, o options, name, bench, of string, text *bytes.Buffer) error {
	cmd := exec.CommandContext(ctx, o.goTool, "test", "-run", "^$", "-bench", "^"+bench+"$", "-benchtime", "0.3s", of)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", bench, err, out)
	}
	fmt.Fprintf(text, "%s (go test -bench '^%s$' %s):\n", name, bench, of)
	for _, line := range regexp.MustCompile(`(?m)^Benchmark.*$`).FindAll(out, -1) {
		fmt.Fprintf(text, "  %s\n", bytes.TrimPrefix(bytes.TrimPrefix(line, []byte(bench)), []byte("/")))
	}
	return nil
}
