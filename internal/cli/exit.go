package cli

import (
	"context"
	"errors"
	"fmt"
)

// Exit codes. `run` returns the job's own code when the job ran; see docs/cli.md about telling them apart.
const (
	ExitOK           = 0
	ExitFailed       = 1   // the command failed for another reason than those below
	ExitUsage        = 2   // wrong usage or invalid input
	ExitNotFound     = 3   // what was named does not exist
	ExitConflict     = 4   // exists already, or is not in the right phase (not ready)
	ExitRefused      = 5   // the cluster can't be placed
	ExitUnreachable  = 6   // the server can't be reached
	ExitUnauthorized = 7   // no token, a wrong one, or not allowed
	ExitInterrupted  = 130 // ended by Ctrl-C, as shells count it: 128 + SIGINT
)

// errInterrupted is why a command ended that was interrupted.
var errInterrupted = errors.New("interrupted")

// exitError carries an exit code; a nil err says nothing more (it has been said).
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usage is the error of wrong usage or invalid input.
func usage(format string, args ...any) error {
	return &exitError{ExitUsage, fmt.Errorf(format, args...)}
}

// exitCode maps an error of a server or of the way there to an exit code.
func exitCode(err error) int {
	switch {
	case errors.Is(err, errInterrupted), errors.Is(err, context.Canceled):
		return ExitInterrupted
	default:
		return ExitFailed
	}
}
