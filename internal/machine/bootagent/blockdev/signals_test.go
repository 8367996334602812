package blockdev

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A machine's root is gone when the call that keeps its device attached is interrupted.
func TestNoSignalInterruptsTheCallThatKeepsADevice(t *testing.T) {
	thread, ended := make(chan int, 1), make(chan error, 1)
	go func() {
		ended <- uninterrupted(func() error {
			thread <- unix.Gettid()
			return unix.Nanosleep(&unix.Timespec{Nsec: (300 * time.Millisecond).Nanoseconds()}, nil) // it would return EINTR
		})
	}()
	id := <-thread
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the call ended with: %v", err)
			}
			return
		case <-ticker.C:
			_ = unix.Tgkill(os.Getpid(), id, unix.SIGURG)
		}
	}
}
