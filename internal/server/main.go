package server

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/nearmetal/nearmetal/internal/config"
)

// Main runs `nearmetal server` until ctx ends.
func Main(ctx context.Context, opts config.Server, log *slog.Logger) error {
	s, err := Open(Config{Server: opts, Log: log})
	if err != nil {
		return err
	}
	return s.Run(ctx, func() {
		_, _ = fmt.Fprintf(opts.Streams.Err, "nearmetal server: listening on %s, state in %s\n", s.Addresses()[0], opts.StateDir)
	})
}
