package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// switches are the IPv4 forwarding switches of the thread's namespace, one for each link, and those named below.
const switches = "/proc/sys/net/ipv4/conf/"

// Forwarding returns the links of the thread's namespace over which incoming IPv4 packets are forwarded, and whether forwarding is on for
// the machine as a whole (net.ipv4.ip_forward).
func Forwarding() (links []string, machine bool, err error) {
	entries, err := os.ReadDir(switches)
	if err != nil {
		return nil, false, fmt.Errorf("listing forwarding switches: %w", err)
	}
	for _, e := range entries {
		on, err := Forwards(e.Name())
		switch {
		case err != nil:
			return nil, false, err
		case e.Name() == "all":
			machine = on
		case e.Name() != "default" && e.Name() != "lo" && on:
			links = append(links, e.Name())
		}
	}
	return links, machine, nil
}

// Forwards reports whether IPv4 packets that come in over a link of the thread's namespace are forwarded; a link that is gone forwards none.
func Forwards(link string) (bool, error) {
	content, err := os.ReadFile(filepath.Join(switches, link, "forwarding"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading forwarding of %s: %w", link, err)
	}
	return strings.TrimSpace(string(content)) == "1", nil
}

// SetForwarding switches the forwarding of IPv4 packets that come in over a link of the thread's namespace.
func SetForwarding(link string, on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	return os.WriteFile(filepath.Join(switches, link, "forwarding"), []byte(value), 0o644)
}

// Lock waits for the namespace's lock, which all processes share that change what its links are used for, and returns what releases it.
// Nothing on disk stands for the lock, and it ends with its process.
func (h Handle) Lock() (release func(), err error) {
	file, err := os.Open(h.Path()) // a file of its own: a lock is that of an open file
	if err != nil {
		return nil, fmt.Errorf("opening a network namespace: %w", err)
	}
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, unix.EINTR) {
			_ = file.Close()
			return nil, fmt.Errorf("locking a network namespace: %w", err)
		}
	}
}
