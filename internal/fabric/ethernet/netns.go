package ethernet

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespace is an open network namespace.
type namespace struct {
	file *os.File
}

// openNamespace opens the network namespace at path.
func openNamespace(path string) (namespace, error) {
	file, err := os.Open(path)
	if err != nil {
		return namespace{}, fmt.Errorf("opening network namespace: %w", err)
	}
	return namespace{file: file}, nil
}

// do calls f on a thread inside the namespace. Go moves goroutines between threads at will, so f gets a goroutine that is tied to
// its thread; a thread that can't come back is given up with its goroutine, by not unlocking it.
func (n namespace) do(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			result <- fmt.Errorf("opening this thread's network namespace: %w", err)
			return
		}
		defer home.Close()
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			result <- fmt.Errorf("entering network namespace %s: %w", n.file.Name(), err)
			return
		}
		err = f()
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

func (n namespace) close() { n.file.Close() }
