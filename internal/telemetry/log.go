// Package telemetry makes the loggers of the long-running commands.
package telemetry

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/nearmetal/nearmetal/internal/config"
)

// Logger writes records of a level and above to w, as text or JSON lines.
func Logger(w io.Writer, opts config.Log) (*slog.Logger, error) {
	var level slog.Level
	if opts.Level != "" {
		if err := level.UnmarshalText([]byte(opts.Level)); err != nil {
			return nil, fmt.Errorf("log level %q is none of debug, info, warn, error", opts.Level)
		}
	}
	handler := &slog.HandlerOptions{Level: level}
	switch opts.Format {
	case "json":
		return slog.New(slog.NewJSONHandler(w, handler)), nil
	case "", "text":
		return slog.New(slog.NewTextHandler(w, handler)), nil
	default:
		return nil, fmt.Errorf("log format %q is neither text nor json", opts.Format)
	}
}
