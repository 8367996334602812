package bootapi

import (
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/internal/boot"
)

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

func TestWhoSaysNothingHoldsNoConnection(t *testing.T) {
	for name, said := range map[string]string{
		"nothing":         "",
		"half a header":   "POST " + boot.HelloPath + " HTTP/1.1\r\nHost: x\r\n",
		"half a body":     "POST " + boot.HelloPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
		"a body unasked":  "GET " + boot.AgentBinaryPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
		"one to nowhere":  "POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
		"a whole request": "POST " + boot.HelloPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := slog.New(slog.DiscardHandler)
				s, err := New(Config{Secret: make([]byte, sha256.Size), SiteTime: time.Now, Log: log})
				if err != nil {
					t.Fatal(err)
				}
				server, connections := HTTPServer(s.Handler(), log), make(pipes, 1)
				ended := make(chan error, 1)
				go func() { ended <- server.Serve(connections) }()
				ours, theirs := net.Pipe()
				connections <- theirs
				if _, err := ours.Write([]byte(said)); err != nil {
					t.Fatal(err)
				}
				begun := time.Now()
				_ = ours.SetReadDeadline(begun.Add(time.Hour))
				if _, err := io.Copy(io.Discard, ours); errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error("the connection is held for an hour")
				}
				if took := time.Since(begun); took > 3*time.Minute {
					t.Errorf("the connection was held for %s", took)
				}
				close(connections)
				_ = server.Close()
				if err := <-ended; !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
			})
		})
	}
}

func TestOneConnectionTooManyIsClosed(t *testing.T) {
	state := atMost(2)
	for i, want := range []error{os.ErrDeadlineExceeded, os.ErrDeadlineExceeded, io.EOF} {
		ours, theirs := net.Pipe()
		state(theirs, http.StateNew)
		_ = ours.SetReadDeadline(time.Now())
		if _, err := ours.Read(make([]byte, 1)); !errors.Is(err, want) {
			t.Errorf("connection %d: %v, want %v", i, err, want)
		}
	}
}
