package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// Exit codes. `run` returns the job's own code when the job ran; see docs/cli.md about telling them apart.
const (
	ExitOK           = 0
	ExitFailed       = 1   // the command failed for another reason than those below
	ExitUsage        = 2   // wrong usage or invalid input
	ExitNotFound     = 3   // what was named does not exist
	ExitConflict     = 4   // exists already, or is not in the right phase (not ready)
	ExitRefused      = 5   // the cluster, or more members of it, can't be placed
	ExitUnreachable  = 6   // the server can't be reached
	ExitUnauthorized = 7   // no token, a wrong one, or not allowed
	ExitInterrupted  = 130 // ended by Ctrl-C, as shells count it: 128 + SIGINT
)

// exitMeanings are for the documentation.
var exitMeanings = []struct {
	code    int
	meaning string
}{
	{ExitOK, "done"},
	{ExitFailed, "failed, for another reason than those below"},
	{ExitUsage, "wrong usage or invalid input; nothing was changed"},
	{ExitNotFound, "a named object does not exist"},
	{ExitConflict, "the object exists already, or its phase does not allow the request (not ready)"},
	{ExitRefused, "the cluster, or more members of it, can't be placed; the message names the binding constraint"},
	{ExitUnreachable, "the server can't be reached"},
	{ExitUnauthorized, "no token, a wrong one, or not allowed"},
	{ExitInterrupted, "interrupted, by Ctrl-C or SIGTERM"},
}

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

// interrupted returns the error of a command that an interrupt ended with err. A command whose announced end is Ctrl-C reports no error: only
// the exit code shows the interrupt.
func interrupted(err error) error {
	var carried *exitError
	switch {
	case errors.As(err, &carried) && carried.err == nil:
		return &exitError{code: ExitInterrupted}
	case errors.Is(err, context.Canceled):
		return &exitError{ExitInterrupted, errInterrupted}
	}
	return &exitError{ExitInterrupted, err}
}

// usage is the error of wrong usage or invalid input.
func usage(format string, args ...any) error {
	return &exitError{ExitUsage, fmt.Errorf(format, args...)}
}

// exitCode maps an error of a server or of the way there to an exit code.
func exitCode(err error) int {
	var (
		carried     *exitError
		answered    *client.Error
		unreachable *client.UnreachableError
		invalid     *manifest.Invalid
	)
	switch {
	case errors.As(err, &carried):
		return carried.code
	case errors.Is(err, errInterrupted), errors.Is(err, context.Canceled):
		return ExitInterrupted
	case errors.As(err, &answered):
		if answered.Code == "no_room" || answered.Code == "over_quota" {
			return ExitRefused
		}
		return exitOfStatus(answered.Status)
	case errors.Is(err, trust.ErrWrongServer):
		return ExitUnauthorized
	case errors.As(err, &unreachable):
		return ExitUnreachable
	case errors.As(err, &invalid):
		return ExitUsage
	default:
		return ExitFailed
	}
}

// exitOfStatus maps the status of a server's answer.
func exitOfStatus(status int) int {
	switch status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge:
		return ExitUsage
	case http.StatusUnauthorized, http.StatusForbidden:
		return ExitUnauthorized
	case http.StatusNotFound:
		return ExitNotFound
	case http.StatusConflict:
		return ExitConflict
	case http.StatusServiceUnavailable:
		return ExitUnreachable
	default:
		return ExitFailed
	}
}
