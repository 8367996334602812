package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/nearmetal/nearmetal/api/client"
)

func (a *app) nodeConsole() *cobra.Command {
	var password bool
	cmd := &cobra.Command{
		Use: "console NAME", Short: "Connect to a machine's serial console", Args: oneArg("node"), ValidArgsFunction: a.completeMachines(1),
		Long: `Connect this terminal to a machine's serial console. Like in ssh, "~." at the beginning of a line ends it, and "~~" sends a "~".

--password prints the user and the password to log in with instead; each boot has its own.`,
	}
	cmd.Flags().BoolVar(&password, "password", false, "print user and password of the present boot")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		if !password {
			return a.console(cmd.Context(), c, args[0])
		}
		login, err := c.ConsoleLogin(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, login, func(w io.Writer) { fields(w, "User", login.User, "Password", login.Password) })
	}
	return cmd
}

// console joins the terminal and a console until one of them ends.
func (a *app) console(ctx context.Context, c *client.Client, name string) error {
	stream, err := c.ConnectConsole(ctx, name)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.Streams.Err, "connected to the console of %s; ~. at the beginning of a line ends it\n", name)
	return a.joinConsole(ctx, stream, name, (&escaper{atStart: true}).filter)
}

// joinConsole joins the terminal and the stream of a console until one of them ends. filter finds the user's wish to leave in what is typed. Without
// a filter, nothing is typed, and Ctrl-C is the announced way to leave.
func (a *app) joinConsole(ctx context.Context, stream *client.Tunnel, name string, filter func([]byte) ([]byte, bool)) error {
	defer func() { _ = stream.Close() }()
	if in, ok := a.Streams.In.(*os.File); ok && filter != nil && term.IsTerminal(int(in.Fd())) {
		before, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return fmt.Errorf("make the terminal raw: %w", err)
		}
		defer func() {
			_ = term.Restore(int(in.Fd()), before)
			fmt.Fprintf(a.Streams.Err, "\nleft the console of %s\n", name)
		}()
	}
	ended := make(chan error, 2)
	go func() {
		_, err := io.Copy(a.Streams.Out, stream)
		ended <- err
	}()
	if filter != nil {
		go func() {
			switch err := copyTyped(stream, a.Streams.In, filter); {
			case errors.Is(err, errLeft):
				ended <- nil
			case err != nil:
				ended <- err
			default:
				_ = stream.CloseWrite() // what the console still says is shown
			}
		}()
	}
	select {
	case err := <-ended:
		if err != nil {
			return fmt.Errorf("the console of %s broke off: %w", name, err)
		}
		return nil
	case <-ctx.Done():
		if filter == nil {
			return &exitError{code: ExitInterrupted}
		}
		return ctx.Err()
	}
}

// errLeft: the user has left, by an escape.
var errLeft = errors.New("left")

// copyTyped passes on what filter leaves of what is typed, until its end, or until the user leaves (errLeft).
func copyTyped(w io.Writer, r io.Reader, filter func([]byte) ([]byte, bool)) error {
	buf := make([]byte, 1024)
	for {
		n, err := r.Read(buf)
		pass, left := filter(buf[:n])
		if len(pass) > 0 {
			if _, err := w.Write(pass); err != nil {
				return err
			}
		}
		switch {
		case left:
			return errLeft
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// escaper finds ~. at the beginning of a line in what is typed. What begins a line is what follows a carriage return or line feed, as in ssh(1).
type escaper struct {
	atStart bool // the next byte begins a line
	tilde   bool // a ~ that began a line is held back
}

// filter returns what is to be passed on of the next bytes, and whether the user left.
func (e *escaper) filter(typed []byte) (pass []byte, left bool) {
	for _, b := range typed {
		if e.tilde {
			e.tilde = false
			switch b {
			case '.':
				return pass, true
			case '~':
				pass = append(pass, '~')
				e.atStart = false
				continue
			}
			pass = append(pass, '~')
		} else if e.atStart && b == '~' {
			e.tilde = true
			continue
		}
		pass = append(pass, b)
		e.atStart = b == '\r' || b == '\n'
	}
	return pass, false
}
