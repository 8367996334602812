package memberlink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Unix is the member agent's end of a Unix socket.
type Unix struct{ Path string }

// Dial connects to the socket.
func (u Unix) Dial(ctx context.Context) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", u.Path)
}

// ListenUnix makes a member's socket, in place of a former one. Whoever connects to it is the member of this ID, since the socket is
// where no other member finds it. owner is the host UID and GID of the member's root: the socket is given to it with mode 0600, and
// connections of others are refused, except for those of this process's own user (tests, and members without a user namespace).
func ListenUnix(path, member string, owner uint32) (Endpoint, error) {
	listener, err := listenUnix(path, owner)
	if err != nil {
		return Endpoint{}, fmt.Errorf("the member's socket %s can't be made: %w", path, err)
	}
	return Endpoint{&unixListener{listener, path}, unixOwner{member, owner}}, nil
}

// listenUnix binds the socket through the open directory, since the path of a Unix socket holds 107 bytes at most (sun_path, unix(7))
// and a state directory may lie deeper.
func listenUnix(path string, owner uint32) (*net.UnixListener, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	short := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// The short name is void once the directory is closed, and Close removes the socket by its real one.
	listener.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(path, 0o600), os.Lchown(path, int(owner), int(owner))); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// unixListener removes its socket when it is closed.
type unixListener struct {
	*net.UnixListener
	path string
}

// Close ends the listener and removes the socket.
func (l *unixListener) Close() error {
	err := l.UnixListener.Close()
	if removeErr := os.Remove(l.path); removeErr != nil && !errors.Is(removeErr, os.ErrNotExist) {
		err = errors.Join(err, removeErr)
	}
	return err
}

// unixOwner knows a member by its socket, and its root by its user.
type unixOwner struct {
	member string
	owner  uint32
}

// Member returns the socket's member for peers that are its root.
func (u unixOwner) Member(_ context.Context, conn net.Conn) (string, error) {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return "", fmt.Errorf("%T is no connection of a Unix socket", conn)
	}
	uid, err := peerUID(socket)
	if err != nil {
		return "", err
	}
	if uid != u.owner && int(uid) != os.Geteuid() {
		return "", fmt.Errorf("the peer is user %d, not the member's root %d", uid, u.owner)
	}
	return u.member, nil
}

// peerUID returns the user a connection comes from, as the kernel noted it (SO_PEERCRED, unix(7)).
func peerUID(conn *net.UnixConn) (uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, credErr
	}
	return cred.Uid, nil
}
