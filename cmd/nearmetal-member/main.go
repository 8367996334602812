// Command nearmetal-member is the first process of every member: it runs sshd, tells the node agent when the member is ready
// and supervises its jobs. See package member. Started by the name of a
// sandbox, of a home's server or of a disk's, it is one: see packages sandbox, homeserver and diskserver.
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

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/diskserver"
	"github.com/nearmetal/nearmetal/internal/homeserver"
	"github.com/nearmetal/nearmetal/internal/member"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
	"github.com/nearmetal/nearmetal/internal/sandbox"
)

func main() {
	if os.Args[0] == sandbox.Name {
		_ = sandbox.Hold() // it has told its maker
		os.Exit(1)
	}
	if os.Args[0] == homeserver.Name {
		_ = homeserver.Hold() // it has told its maker
		os.Exit(1)
	}
	if os.Args[0] == diskserver.Name {
		_ = diskserver.Hold() // it has told its maker
		os.Exit(1)
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "nearmetal-member:", err)
		os.Exit(1)
	}
}

func run() error {
	// The member's cores and memory are the tenant's: one thread at a time, a small heap.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(50)
	// Orphans of the member's processes come to this one, too, where it is not the first of its PID namespace.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the parent of orphans: %w", err)
	}
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
