package member

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// children starts processes and waits for all there are: those it started, and orphans, which the kernel gives to the first
// process of a PID namespace. Package os/exec can't be used beside it, since waiting for any child takes its children too.
type children struct {
	mu      sync.Mutex
	waiting map[int]chan syscall.WaitStatus
}

func newChildren() *children { return &children{waiting: map[int]chan syscall.WaitStatus{}} }

// start runs the program and returns its PID and a channel that gets its status once it has ended.
func (c *children) start(path string, args []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
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

// reap waits for children until ctx ends.
func (c *children) reap(ctx context.Context) {
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
func (c *children) reapOne() bool {
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
