package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// connectionFlags say which server a command talks to.
type connectionFlags struct {
	addr      string
	tokenFile string
}

// connects adds the flags of the connection to a command that talks to a server, and to those below it.
func (a *app) connects(cmd *cobra.Command) *cobra.Command {
	flags := cmd.PersistentFlags()
	flags.StringVar(&a.connection.addr, "addr", "", "server: HOST:PORT, https://HOST:PORT or unix:PATH (NEARMETAL_ADDR)")
	flags.StringVar(&a.connection.tokenFile, "token-file", "", "token file; the socket needs none (NEARMETAL_TOKEN_FILE)")
	return cmd
}

// state is the state directory the environment names, or the default.
func (a *app) state() string {
	if dir := a.Getenv("NEARMETAL_STATE"); dir != "" {
		return dir
	}
	return config.StateDir
}

// client returns a client of the server that flags and environment name, in this order; else of this machine's by its socket.
func (a *app) client(timeout time.Duration) (*client.Client, error) {
	opts := client.Options{Addr: a.setting(a.connection.addr, "NEARMETAL_ADDR"), Timeout: timeout}
	if opts.Addr == "" {
		opts.Addr = "unix:" + filepath.Join(a.state(), config.SocketName)
	}
	host, err := client.Host(opts.Addr)
	if err != nil {
		return nil, &exitError{ExitUsage, err}
	}
	path := a.setting(a.connection.tokenFile, "NEARMETAL_TOKEN_FILE")
	if host != "" && path == "" {
		path = filepath.Join(a.state(), config.TokenName)
	}
	// The socket needs no token, but who names one means to be who it says.
	if path != "" {
		token, err := trust.ReadToken(path)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("there is no token file %s", path)
		}
		if err != nil {
			return nil, &exitError{ExitUnauthorized, fmt.Errorf("%w; set NEARMETAL_TOKEN_FILE to a copy of the token file that the "+
				"server wrote (DIR/token)", err)}
		}
		opts.Bearer = token.Bearer()
		if host != "" {
			opts.TLS = trust.ClientTLS(token.Pin, host)
		}
	}
	opts.TokenEnds = a.tokenEnds
	c, err := client.New(opts)
	if err != nil {
		return nil, &exitError{ExitUsage, err}
	}
	a.clients = append(a.clients, c)
	return c, nil
}

// advise adds to the error of a server that can't be reached what to do about it.
func advise(err error) error {
	var unreachable *client.UnreachableError
	if !errors.As(err, &unreachable) || errors.Is(err, trust.ErrWrongServer) {
		return err
	}
	unix := strings.HasPrefix(unreachable.Addr, "unix:")
	switch {
	case unix && errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w; start one with 'nearmetal dev', or set NEARMETAL_ADDR and NEARMETAL_TOKEN_FILE to one that runs elsewhere", err)
	case unix && errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; only the owner of the server may open its socket: become that user, or use NEARMETAL_ADDR and a token", err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w; is it running there?", err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w; is the address right, and is it reachable from here?", err)
	default:
		return err
	}
}
