package apiserver

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// oneToken knows the token "good".
type oneToken struct{}

func (oneToken) Verify(bearer string) (tenancy.Principal, bool) {
	return tenancy.Principal{Role: api.RoleAdmin}, bearer == "good"
}

// pipes is a listener whose connections are in memory, so that time is pretended.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func TestWhoShowsNoTokenAndSendsNoBodyHoldsNoConnection(t *testing.T) {
	for name, c := range map[string]struct {
		said string
		held bool
	}{
		"no token":     {"POST /v1/clusters HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", false},
		"a wrong one":  {"POST /v1/clusters HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer bad\r\nTransfer-Encoding: chunked\r\n\r\n", false},
		"an open path": {"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", false},
		"a good token": {"POST /v1/clusters HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\nContent-Length: 1000\r\n\r\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &Server{cfg: Config{Tokens: oneToken{}, Log: slog.New(slog.DiscardHandler)}}
				server, connections := s.httpServer(s.authenticate(http.NotFoundHandler())), make(pipes, 1)
				ended := make(chan error, 1)
				go func() { ended <- server.Serve(connections) }()
				ours, theirs := net.Pipe()
				connections <- theirs
				if _, err := ours.Write([]byte(c.said)); err != nil {
					t.Fatal(err)
				}
				_ = ours.SetReadDeadline(time.Now().Add(time.Hour))
				_, err := io.Copy(io.Discard, ours)
				if held := errors.Is(err, os.ErrDeadlineExceeded); held != c.held {
					t.Errorf("the connection is held for an hour: %v, want %v", held, c.held)
				}
				_ = ours.Close()
				close(connections)
				_ = server.Close()
				if err := <-ended; !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
			})
		})
	}
}
