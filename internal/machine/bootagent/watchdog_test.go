package bootagent

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestTheWatchdogOfAMachineIsFedFromTheMomentThatItIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "watchdog0")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := &Agent{log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		a.watchMachine(ctx, path)
	}()
	if err := unix.Mkfifo(path, 0o600); err != nil { // its driver comes later
		t.Fatal(err)
	}
	device, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	if err := device.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		fed := []byte{'-'}
		if _, err := device.Read(fed); err != nil {
			t.Fatalf("it was fed %d times: %v", n, err)
		}
		if fed[0] == 'V' {
			t.Error("it was told to stop when it is closed")
		}
	}
	<-watching
	cancel()
	if _, err := io.Copy(io.Discard, device); err != nil {
		t.Errorf("it is fed although the machine ends: %v", err)
	}
}
