// Package children is how the first process of a machine or of a member keeps its children: it starts processes and waits for all there
// are, orphans too. Package os/exec can't be used beside it, since waiting for any child takes its children too. Start with Children.
package children

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Children starts processes and waits for all there are: those it started, and orphans, which the kernel gives to the first process of a
// PID namespace. It is safe for concurrent use.
type Children struct {
	mu      sync.Mutex
	waiting map[int]chan syscall.WaitStatus
}

// New knows no children yet.
func New() *Children { return &Children{waiting: map[int]chan syscall.WaitStatus{}} }

// Start runs the program and returns its PID and a channel that gets its status once it has ended.
func (c *Children) Start(path string, args []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	// Held while the process is made, so that it is known here before it can be waited for.
	c.mu.Lock()
	defer c.mu.Unlock()
	pid, err := syscall.ForkExec(path, args, attr)
	if err != nil {
		return 0, nil, err
	}
	ended := make(chan syscall.WaitStatus, 1)
	c.waiting[pid] = ended
	return pid, ended, nil
}

// Runs tells whether a process that was started here has not ended.
func (c *Children) Runs(pid int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting[pid] != nil
}

// Reap waits for children until ctx ends.
func (c *Children) Reap(ctx context.Context) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGCHLD)
	defer signal.Stop(signals)
	for {
		for c.reapOne() {
		}
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
	}
}

// reapOne waits for one child that has ended and returns false when there is none.
func (c *Children) reapOne() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
	if err == syscall.EINTR {
		return true
	}
	if err != nil || pid <= 0 {
		return false
	}
	if ended, ok := c.waiting[pid]; ok {
		ended <- status
		delete(c.waiting, pid)
	}
	return true
}
