// Package virtioport is a guest's end of virtio-serial ports (virtio 1.2, section 5.3), as connections.
//
// A port has a name and one stream of bytes. The host's end comes and goes, and a read returns io.EOF while it is away. What a guest closes
// the host does not see: whoever speaks over a port leaves it to the host to end what is said. Start with Open; Taken is for the host's end.
package virtioport

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoHost: nothing on the host is connected to the port now.
var ErrNoHost = errors.New("the host is not connected to the port")

// Open opens the port of a name, which only one process can at a time. It returns ErrNoHost while the host's end is away, and
// os.ErrNotExist where there is no such port, or its driver (virtio_console) is not loaded.
func Open(name string) (net.Conn, error) {
	device, err := find("/sys/class/virtio-ports", name)
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join("/dev", device), os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("port %s: %w", name, err)
	}
	connected, err := hostConnected(file)
	if err == nil && !connected {
		err = ErrNoHost
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("port %s: %w", name, err), file.Close())
	}
	return conn{file, address(name)}, nil
}

// find returns the device of a port.
func find(class, name string) (string, error) {
	files, err := filepath.Glob(filepath.Join(class, "*", "name"))
	if err != nil {
		return "", err
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(text)) == name {
			return filepath.Base(filepath.Dir(file)), nil
		}
	}
	return "", fmt.Errorf("port %s: %w", name, os.ErrNotExist)
}

// hostConnected reports whether the host's end is there: the driver says that it hung up otherwise.
func hostConnected(file *os.File) (connected bool, err error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return false, err
	}
	var pollErr error
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLOUT}}
		_, pollErr = unix.Poll(fds, 0)
		connected = fds[0].Revents&unix.POLLHUP == 0
	})
	return connected, errors.Join(err, pollErr)
}

type conn struct {
	*os.File
	at address
}

func (c conn) LocalAddr() net.Addr  { return c.at }
func (c conn) RemoteAddr() net.Addr { return c.at }

// address is that of both ends: the name of the port.
type address string

func (address) Network() string  { return "virtio-serial" }
func (a address) String() string { return string(a) }
