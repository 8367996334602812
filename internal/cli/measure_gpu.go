package cli

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/internal/config"
)

func (a *app) measureGPUCommand() *cobra.Command {
	opts := config.GPUStudy{Streams: a.Streams}
	cmd := &cobra.Command{
		Use:   "gpu",
		Short: "Run eight classic kernels on one GPU by several ways",
		Long: `Run eight classic kernels (backprop, bfs, cfd, hotspot, lud, nn, nw, pathfinder) on this machine's GPU: with its own driver, by a server through shared
memory, and by the same server over loopback TCP. With --member also in a member of a cluster, whose GPU is on another node. The ways take turns at
each kernel. Every result is checked, and every call of the API is timed. Write each run to DIR/runs.jsonl, and DIR/report.json, DIR/report.html and
DIR/report.txt at the end, with the ratios beside those of a published study.

A study that was stopped goes on with the runs that are missing. The server is started for the study and ends with it. On a machine without a GPU,
PoCL is the OpenCL device (Debian: pocl-opencl-icd). The programs of remote GPUs come from 'make gpuremote'.`,
		Example: `  nearmetal measure gpu --size test --out results
  nearmetal measure gpu --api cuda --size published --rounds 8 --member c1/c1-1`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.Member != "" {
				cluster, member, _ := strings.Cut(opts.Member, "/")
				if cluster == "" || member == "" {
					return usage("--member is %q; write CLUSTER/MEMBER, like c1/c1-1", opts.Member)
				}
				opts.InMember = func(ctx context.Context, script string) ([]byte, error) {
					return a.inMember(ctx, cluster, member, script)
				}
				opts.Expected = func(ctx context.Context) (float64, error) { return a.expectedGPU(ctx, cluster, member) }
			}
			return call(cmd.Context(), "measure gpu", a.Commands.GPUStudy, opts)
		},
	}
	cmd.Flags().StringVar(&opts.Out, "out", "gpu", "directory of the results")
	cmd.Flags().StringVar(&opts.API, "api", "opencl", "API of the GPU: opencl or cuda")
	cmd.Flags().StringVar(&opts.Size, "size", "published", "size of the problems: test, published or large")
	cmd.Flags().StringSliceVar(&opts.Kernels, "kernel", nil, "kernels to run (default: all)")
	cmd.Flags().IntVar(&opts.Rounds, "rounds", 6, "how often each way is measured")
	cmd.Flags().StringVar(&opts.Member, "member", "", "CLUSTER/MEMBER with a remote GPU of another node, to measure over the cluster's network, too")
	cmd.Flags().StringVar(&opts.Programs, "gpu-programs", "", "folder with the programs of remote GPUs (default: gpuremote beside this program, else /usr/lib/nearmetal/gpuremote)")
	return a.connects(cmd)
}

// inMember runs a shell script in a member, and returns what it prints.
func (a *app) inMember(ctx context.Context, cluster, member, script string) ([]byte, error) {
	var out, said bytes.Buffer
	own := &app{Invocation: a.Invocation, cancel: a.cancel, connection: a.connection}
	own.Streams, own.Interrupts = config.Streams{In: strings.NewReader(""), Out: &out, Err: &said}, nil
	err := own.throughSSH(ctx, "ssh", cluster, member, func(acc *access) []string { return []string{"--", acc.member, script} })
	a.clients = append(a.clients, own.clients...)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("in %s: %w: %s", member, err, strings.TrimSpace(said.String()))
	}
	return out.Bytes(), nil
}

// expectedGPU is what a member's GPU was expected to cost when it was chosen.
func (a *app) expectedGPU(ctx context.Context, cluster, member string) (cost float64, err error) {
	c, err := a.client(0)
	if err != nil {
		return 0, err
	}
	ex, err := c.Explain(ctx, cluster)
	if err != nil {
		return 0, err
	}
	for _, u := range ex.GPUs {
		if u.Member == member {
			cost = max(cost, u.Cost)
		}
	}
	return cost, nil
}
