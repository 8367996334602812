package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// dirDisplay has the socket of a machine's screen, which QEMU makes itself: it is the only directory of a member in which QEMU can make anything.
const (
	dirDisplay  = "display"
	fileDisplay = "vnc.sock"
)

func (d *Driver) makeDisplayDir(id string, user int) error {
	dir := d.path(id, dirDisplay)
	return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, user, user))
}

// Display connects to the screen of a member's machine. QEMU's VNC server has no password: the way there is what is guarded.
func (d *Driver) Display(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	conn, err := d.dialDisplay(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("the display of member %q: %w", id, err)
	}
	return conn, nil
}

func (d *Driver) dialDisplay(ctx context.Context, id string) (net.Conn, error) {
	seen, err := d.running(ctx, id)
	if err != nil {
		return nil, err
	}
	if !seen.member.Assignment.Display {
		return nil, errors.New("its machine has no display")
	}
	return dialOwned(ctx, d.path(id, filepath.Join(dirDisplay, fileDisplay)), seen.member.Assignment.UserIDs.First)
}

// dialOwned connects to a Unix socket in a directory that belongs to an untrusted user, and to nobody but that user. A link there is not followed:
// it could lead to a socket that only this process may open.
func dialOwned(ctx context.Context, path string, user uint32) (net.Conn, error) {
	file, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(file) }()
	var stat unix.Stat_t
	if err := unix.Fstat(file, &stat); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fmt.Errorf("%s is no socket", path)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", file))
	if err != nil {
		return nil, err
	}
	if err := ownedBy(conn, user); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// ownedBy refuses a connection whose other end is another user's (SO_PEERCRED, unix(7)).
func ownedBy(conn net.Conn, user uint32) error {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	if peer.Uid != user {
		return fmt.Errorf("user %d listens there, not the cluster's user %d", peer.Uid, user)
	}
	return nil
}

var _ driver.DisplaySharer = (*Driver)(nil)
