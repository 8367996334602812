package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/config"
)

func testConfig(dir, listen string) Config {
	return Config{Server: config.Server{StateDir: dir, Listen: listen}, Log: slog.New(slog.DiscardHandler)}
}

func TestASecondServerOnOneStateDirectoryIsRefusedAndToldWhoHoldsIt(t *testing.T) {
	dir := t.TempDir()
	first, err := Open(testConfig(dir, "127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	_, err = Open(testConfig(dir, "127.0.0.1:0"))
	if !errors.Is(err, ErrStateInUse) || !strings.Contains(err.Error(), "--state") {
		t.Fatalf("got %v; want that the directory is in use and what to do", err)
	}
}

func TestAPortInUseIsToldAndTheStateDirectoryIsFreeAgain(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	_, err = Open(testConfig(dir, taken.Addr().String()))
	if err == nil || !strings.Contains(err.Error(), "port in use") || !strings.Contains(err.Error(), "--listen") {
		t.Fatalf("got %v; want that the port is in use and what to do", err)
	}
	again, err := Open(testConfig(dir, "127.0.0.1:0"))
	if err != nil {
		t.Fatalf("after a failed start the state directory is still locked: %v", err)
	}
	_ = again.Close()
}

func TestTheSocketAnswersItsOwnerAndIsClosedToOthers(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(testConfig(dir, "127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	path := filepath.Join(dir, config.SocketName)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("socket: %v, %v; want mode 0600", info, err)
	}
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		// The directory of a test may be too deep for the path of a socket.
		d, err := os.Open(dir)
		if err != nil {
			return nil, err
		}
		defer d.Close()
		return new(net.Dialer).DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(int(d.Fd()))+"/"+config.SocketName)
	}}}
	resp, err := client.Get("http://nearmetal/v1/clusters")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %d, want 200", resp.StatusCode)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("a server that is told to end gives %v, want no error", err)
	}
}

func TestLoopbackNameserversAreNotGivenToMembers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	text := "# comment\nnameserver 127.0.0.53\nnameserver 192.0.2.1\nnameserver ::1\nsearch example.org\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := nameservers(path)
	if len(got) != 1 || got[0].String() != "192.0.2.1" {
		t.Errorf("got %v, want only 192.0.2.1", got)
	}
}
