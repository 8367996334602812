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
	"time"

	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/silencetest"
	"github.com/nearmetal/nearmetal/internal/trust"
)

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
			took := silencetest.Held(t, said, func(t *testing.T, l net.Listener) {
				log := slog.New(slog.DiscardHandler)
				s, err := New(Config{Secrets: trust.Secrets{{Key: make([]byte, sha256.Size)}}, SiteTime: time.Now, Log: log})
				if err != nil {
					t.Error(err)
					return
				}
				server := HTTPServer(s.Handler(), log)
				_ = server.Serve(l)
				_ = server.Close()
			})
			if took > 3*time.Minute {
				t.Errorf("the connection was held for %s", took)
			}
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
