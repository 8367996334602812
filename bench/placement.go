package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
)

// placementCost runs the placement package's own benchmark, from 100 to 100,000 nodes.
func placementCost(ctx context.Context, o options, text *bytes.Buffer) error {
	cmd := exec.CommandContext(ctx, o.goTool, "test", "-run", "^$", "-bench", "^BenchmarkPlace$", "-benchtime", "0.3s", "./internal/placement")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("placement's benchmark (leave it out with -placement=false): %w: %s", err, out)
	}
	fmt.Fprintf(text, "Placement (go test -bench Place ./internal/placement):\n")
	for _, line := range regexp.MustCompile(`(?m)^BenchmarkPlace/.*$`).FindAll(out, -1) {
		fmt.Fprintf(text, "  %s\n", bytes.TrimPrefix(line, []byte("BenchmarkPlace/")))
	}
	return nil
}
