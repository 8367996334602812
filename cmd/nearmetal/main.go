// Command nearmetal is the control plane, the node agent and the command line of Nearmetal in one binary.
//
// It only wires: what it can do is in internal/cli (commands) and internal/server (what runs).
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/agent"
	"github.com/nearmetal/nearmetal/internal/cli"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/demo"
	"github.com/nearmetal/nearmetal/internal/dev"
	"github.com/nearmetal/nearmetal/internal/environment/build"
	"github.com/nearmetal/nearmetal/internal/measure/study"
	"github.com/nearmetal/nearmetal/internal/server"
	"github.com/nearmetal/nearmetal/internal/telemetry"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == agent.BuildCommand {
		if err := buildWorker(os.Args[2:]); err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		return
	}
	interrupts := make(chan os.Signal, 2)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	os.Exit(cli.Run(context.Background(), cli.Invocation{
		Args:       os.Args[1:],
		Streams:    config.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr},
		Getenv:     os.Getenv,
		Interrupts: interrupts,
		Commands: cli.Commands{
			Dev: func(ctx context.Context, opts config.Dev) error {
				return logged(opts.Streams, opts.Log, func(log *slog.Logger) error { return dev.Main(ctx, opts, log) })
			},
			Server: func(ctx context.Context, opts config.Server) error {
				return logged(opts.Streams, opts.Log, func(log *slog.Logger) error { return server.Main(ctx, opts, log) })
			},
			Agent: func(ctx context.Context, opts config.Agent) error {
				return logged(opts.Streams, opts.Log, func(log *slog.Logger) error { return agent.Main(ctx, opts, log) })
			},
			Keys: server.Keys{Now: time.Now}, Host: agent.Host{},
			Demo: func(ctx context.Context, opts config.Demo) error {
				return logged(opts.Streams, opts.Log, func(log *slog.Logger) error {
					return demo.Run(ctx, demo.Options{Demo: opts, Serve: embedded(log)}, opts.Streams.Out)
				})
			},
			RemoteData: remoteData, SoftwareCache: softwareCache, GPUStudy: gpuStudy,
		},
	}))
}

// remoteData runs the study of remote data, and prints what it measured.
func remoteData(ctx context.Context, opts config.RemoteData, c *client.Client) error {
	var cluster *study.Cluster
	if c != nil {
		cluster = &study.Cluster{Service: c, Name: opts.Cluster, Far: opts.Far, Load: opts.Load, Out: opts.Out}
	}
	report, err := study.Remote{
		Cluster: cluster,
		Out:     opts.Out, Python: opts.Python, Rounds: opts.Rounds, Megabytes: opts.Megabytes,
		Matrix: study.Matrix{
			Delays: opts.Delays, Losses: fractions(opts.Losses), Duplicates: fractions(opts.Duplicates), Rates: opts.Rates, Jobs: opts.Jobs, Loaders: opts.Loaders,
			Members: opts.Members,
		},
		Say: func(format string, args ...any) { _, _ = fmt.Fprintf(opts.Streams.Err, format+"\n", args...) },
	}.Run(ctx)
	if err != nil {
		return err
	}
	return report.WriteText(opts.Streams.Out)
}

// softwareCache runs the study of a program whose files are far away, and prints what it measured.
func softwareCache(ctx context.Context, opts config.SoftwareCache) error {
	report, err := study.Software{
		Out: opts.Out, Tree: opts.Tree, Command: opts.Command, Megabytes: opts.Megabytes, Delay: opts.Delay, Rate: opts.Rate, Rounds: opts.Rounds,
		Say: func(format string, args ...any) { _, _ = fmt.Fprintf(opts.Streams.Err, format+"\n", args...) },
	}.Run(ctx)
	if err != nil {
		return err
	}
	return report.WriteText(opts.Streams.Out)
}

// fractions are percentages as fractions.
func fractions(percent []float64) []float64 {
	var all []float64
	for _, p := range percent {
		all = append(all, p/100)
	}
	return all
}

// gpuStudy is the study of one GPU by several ways, and prints what it measured.
func gpuStudy(ctx context.Context, opts config.GPUStudy) error {
	report, err := study.GPU{
		Out: opts.Out, Programs: agent.GPUPrograms(opts.Programs), API: opts.API, Size: opts.Size, Kernels: opts.Kernels, Rounds: opts.Rounds,
		Member: opts.Member, InMember: opts.InMember, Expected: opts.Expected,
		Say: func(format string, args ...any) { _, _ = fmt.Fprintf(opts.Streams.Err, format+"\n", args...) },
	}.Run(ctx)
	if err != nil {
		return err
	}
	return report.WriteText(opts.Streams.Out)
}

// buildWorker carries out one build; its argument are the CPUs to be kept to.
func buildWorker(args []string) error {
	if len(args) > 0 {
		return agent.LimitBuild(args[0])
	}
	return build.Worker(context.Background())
}

// embedded is a site on this machine, reached through its Unix socket.
func embedded(log *slog.Logger) demo.Serve {
	return func(ctx context.Context, opts config.Dev, ready func(demo.Client)) error {
		api, err := client.New(client.Options{Addr: "unix:" + filepath.Join(opts.StateDir, config.SocketName)})
		if err != nil {
			return err
		}
		return dev.Run(ctx, opts, log, func(string) { ready(api) })
	}
}

// logged runs a long-running command with a logger on its error stream.
func logged(streams config.Streams, opts config.Log, run func(*slog.Logger) error) error {
	log, err := telemetry.Logger(streams.Err, opts)
	if err != nil {
		return err
	}
	return run(log)
}
