// Command nearmetal-member is the first process of every member: it runs sshd, tells the node agent when the member is ready
// and supervises its jobs. See package member.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/nearmetal/nearmetal/internal/member"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "nearmetal-member:", err)
		os.Exit(1)
	}
}

func run() error {
	// The member's cores and memory are the tenant's: one thread at a time, a small heap.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(50)
	cfg, err := member.LoadConfig(memberconfig.Path)
	if err != nil {
		return err
	}
	cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("member", cfg.Member)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// Noted but not obeyed: a closed terminal or log pipe must not end the member. Ignoring them would be inherited by jobs.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE, syscall.SIGHUP)
	return member.Run(ctx, cfg)
}
