// Package cli is the command line: it turns arguments into requests to a server and answers into text.
//
// It must never decide anything about clusters, and never exit the process: Run returns the exit code. What the long-running
// commands (dev, server, agent, demo) do is passed in as functions. Start with Run.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/config"
)

// Commands are the long-running commands, wired in by cmd.
type Commands struct {
	Dev    func(ctx context.Context, opts config.Dev) error
	Server func(ctx context.Context, opts config.Server) error
	Agent  func(ctx context.Context, opts config.Agent) error
	Demo   func(ctx context.Context, opts config.Demo) error
	// RemoteData is a study on this machine, or in a cluster of the server that a client leads to.
	RemoteData func(ctx context.Context, opts config.RemoteData, c *client.Client) error
	// SoftwareCache is a study on this machine.
	SoftwareCache func(ctx context.Context, opts config.SoftwareCache) error
	// GPUStudy is another.
	GPUStudy func(ctx context.Context, opts config.GPUStudy) error
	// Keys are those of a site on this machine.
	Keys SiteKeys
	// Host is this machine.
	Host Host
}

// Invocation is everything one run of the program depends on.
type Invocation struct {
	// Args are the arguments without the program's name.
	Args    []string
	Streams config.Streams
	// Getenv reads the environment.
	Getenv func(string) string
	// Interrupts delivers the signals that ask the program to end; the first one ends every command but `run`, which
	// cancels its job first. A nil channel never does.
	Interrupts <-chan os.Signal
	// CancelPatience is how long run waits for the end of a job that it cancelled; 0: 20 s.
	CancelPatience time.Duration
	// Now is the clock that ages and elapsed times are told by; nil: time.Now.
	Now      func() time.Time
	Commands Commands
}

// Run runs one command and returns the exit code of the process; see the exit codes in docs/cli.md.
func Run(ctx context.Context, inv Invocation) int {
	if inv.Getenv == nil {
		inv.Getenv = func(string) string { return "" }
	}
	if inv.Now == nil {
		inv.Now = time.Now
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a := &app{Invocation: inv, cancel: cancel}
	root := a.root()
	root.SetArgs(inv.Args)
	root.SetIn(inv.Streams.In)
	root.SetOut(inv.Streams.Out)
	root.SetErr(inv.Streams.Err)
	err := root.ExecuteContext(ctx)
	for _, c := range a.clients {
		c.Close()
	}
	if err != nil && errors.Is(context.Cause(ctx), errInterrupted) {
		err = interrupted(err)
	}
	code := report(inv.Streams.Err, err)
	a.warnOfTokenEnd()
	return code
}

// app is the state the commands share.
type app struct {
	Invocation
	cancel     context.CancelCauseFunc
	connection connectionFlags
	clients    []*client.Client
	// ends is when the token in use ends, in Unix seconds, by the newest answer; 0: not known, or never.
	ends atomic.Int64
}

// ownInterrupts marks commands that handle the first interrupt themselves.
const ownInterrupts = "own-interrupts"

// root builds the tree of commands.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "nearmetal",
		Short: "On-demand, isolated HPC clusters",
		Long: `Nearmetal turns servers into on-demand, isolated HPC clusters and runs MPI jobs on them.

Commands that talk to a server find it by NEARMETAL_ADDR (HOST:PORT, https://HOST:PORT or unix:PATH) and
NEARMETAL_TOKEN_FILE; without them they use the Unix socket in the state directory (NEARMETAL_STATE, by default
` + config.StateDir + `), which only its owner can open.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,

		SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return cmd.Help()
		},
		PersistentPreRun: func(cmd *cobra.Command, _ []string) { a.watchInterrupts(cmd) },
	}
	root.SetFlagErrorFunc(flagError)
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(
		a.demoCommand(), a.measureCommand(), a.devCommand(), a.serverCommand(), a.agentCommand(), a.siteCommand(),
		a.clusterCommand(), a.connects(a.runCommand()), a.jobCommand(), a.copyCommand(), a.queueCommand(), a.auditCommand(), a.networkCommand(), a.fabricCommand(), a.gpuCommand(), a.securityGroupCommand(), a.volumeCommand(), a.datasetCommand(), a.addressCommand(), a.nodeCommand(),
		a.envCommand(), a.projectCommand(), a.shapeCommand(), a.tokenCommand(), a.usageCommand(), a.energyCommand(), a.whoamiCommand(), a.completionCommand(), a.versionCommand(),
	)
	return root
}

// watchInterrupts ends the command at the first interrupt, unless it handles interrupts itself.
func (a *app) watchInterrupts(cmd *cobra.Command) {
	if a.Interrupts == nil || cmd.Annotations[ownInterrupts] != "" {
		return
	}
	ctx := cmd.Context()
	go func() {
		select {
		case <-a.Interrupts:
			a.cancel(errInterrupted)
		case <-ctx.Done():
		}
	}()
}

// unknownCommand says what was mistyped and what was perhaps meant.
func unknownCommand(cmd *cobra.Command, name string) error {
	message := fmt.Sprintf("%s has no command %q", cmd.CommandPath(), name)
	if s := cmd.SuggestionsFor(name); len(s) > 0 {
		return usage("%s; did you mean %q? See '%s --help'", message, s[0], cmd.CommandPath())
	}
	return usage("%s; see '%s --help'", message, cmd.CommandPath())
}

// report writes the error for people and returns its exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return ExitOK
	}
	var carried *exitError
	if errors.As(err, &carried) && carried.err == nil {
		return carried.code // it has been said
	}
	fmt.Fprintf(w, "Error: %v\n", advise(err))
	return exitCode(err)
}
