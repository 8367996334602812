// Command nearmetal is the control plane, the node agent and the command line of Nearmetal in one binary.
//
// It only wires: what it can do is in internal/cli (commands) and internal/server (what runs).
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/nearmetal/nearmetal/internal/cli"
	"github.com/nearmetal/nearmetal/internal/config"
)

func main() {
	interrupts := make(chan os.Signal, 2)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	os.Exit(cli.Run(context.Background(), cli.Invocation{
		Args:       os.Args[1:],
		Streams:    config.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr},
		Getenv:     os.Getenv,
		Interrupts: interrupts,
		Commands:   cli.Commands{},
	}))
}
