package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api/client"
)

// onEach lets a command do one thing to each of the names given, one after the other. do returns the line that tells what became of it; what
// could not be done is the command's error, and keeps nothing from the others.
func (a *app) onEach(cmd *cobra.Command, do func(ctx context.Context, c *client.Client, name string) (string, error)) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		var failed []error
		for _, name := range unique(args) {
			done, err := do(cmd.Context(), c, name)
			if err != nil {
				failed = append(failed, err)
				continue
			}
			fmt.Fprintln(a.Streams.Out, done)
		}
		return joined(failed)
	}
	return cmd
}

// joined is one error of several; its exit code is the first one's.
func joined(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	code := exitCode(errs[0])
	for i, err := range errs {
		errs[i] = advise(err)
	}
	return &exitError{code, several(errs)}
}

// several are errors that are told one after the other, each as one.
type several []error

func (s several) Error() string {
	texts := make([]string, len(s))
	for i, err := range s {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "\nError: ")
}

func (s several) Unwrap() []error { return s }

// unique are the names without repetitions.
func unique(names []string) []string {
	var out []string
	for _, name := range names {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}
