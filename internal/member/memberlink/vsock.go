package memberlink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"
)

// reservedPorts are the ports of a virtual machine that only its root can use, as of TCP (LAST_RESERVED_PORT of net/vmw_vsock/af_vsock.c).
// A connection from one of them comes from the member's root, as one to a Unix socket of mode 0600 does.
const reservedPorts = 1023

// VsockAddr is one end of a vsock connection (vsock(7)): the number of a virtual machine, its CID, and a port.
type VsockAddr struct{ CID, Port uint32 }

// Network returns "vsock".
func (VsockAddr) Network() string { return "vsock" }

func (a VsockAddr) String() string { return fmt.Sprintf("%d:%d", a.CID, a.Port) }

// Vsock is the member agent's end of a vsock, in a virtual machine. CID 2 is the host.
type Vsock struct{ To VsockAddr }

func openVsock(address string) (Dialer, error) {
	cid, port, ok := strings.Cut(address, ":")
	c, cidErr := strconv.ParseUint(cid, 10, 32)
	p, portErr := strconv.ParseUint(port, 10, 32)
	if !ok || cidErr != nil || portErr != nil {
		return nil, fmt.Errorf("the address of a vsock link must be CID:PORT, such as 2:7070, not %q", address)
	}
	return Vsock{VsockAddr{uint32(c), uint32(p)}}, nil
}

// Dial connects from a port that only root can use.
func (v Vsock) Dial(ctx context.Context) (net.Conn, error) {
	conn, err := socket.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0, "vsock", nil)
	if err != nil {
		return nil, fmt.Errorf("this machine has no vsock: %w", err)
	}
	if err := bindReserved(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if _, err := conn.Connect(ctx, &unix.SockaddrVM{CID: v.To.CID, Port: v.To.Port}); err != nil {
		return nil, errors.Join(fmt.Errorf("connecting to vsock %s: %w", v.To, err), conn.Close())
	}
	return newVsockConn(conn)
}

// bindReserved takes a free one of the reserved ports.
func bindReserved(conn *socket.Conn) error {
	var err error
	for port := uint32(reservedPorts); port > 0; port-- {
		err = conn.Bind(&unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: port})
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("taking a vsock port below %d: %w", reservedPorts+1, err)
	}
	return nil
}

// vsockConn is a connection.
type vsockConn struct {
	*socket.Conn
	local, remote VsockAddr
}

func newVsockConn(conn *socket.Conn) (net.Conn, error) {
	local, err := conn.Getsockname()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	remote, err := conn.Getpeername()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return vsockConn{conn, vsockAddr(local), vsockAddr(remote)}, nil
}

func vsockAddr(sa unix.Sockaddr) VsockAddr {
	if vm, ok := sa.(*unix.SockaddrVM); ok {
		return VsockAddr{vm.CID, vm.Port}
	}
	return VsockAddr{}
}

func (c vsockConn) LocalAddr() net.Addr  { return c.local }
func (c vsockConn) RemoteAddr() net.Addr { return c.remote }

// ListenVsock listens on a port of this host for the member that runs in the virtual machine with this CID. A CID is one virtual
// machine's for as long as that is not clean.
func ListenVsock(port uint32, member string, cid uint32) (Endpoint, error) {
	conn, err := socket.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0, "vsock", nil)
	if err != nil {
		return Endpoint{}, fmt.Errorf("this machine has no vsock: %w", err)
	}
	err = conn.Bind(&unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: port})
	if err == nil {
		err = conn.Listen(unix.SOMAXCONN)
	}
	if err != nil {
		return Endpoint{}, errors.Join(fmt.Errorf("listening on vsock port %d: %w", port, err), conn.Close())
	}
	return Endpoint{vsockListener{conn, VsockAddr{unix.VMADDR_CID_ANY, port}}, vsockMachine{member, cid}}, nil
}

type vsockListener struct {
	conn    *socket.Conn
	address VsockAddr
}

// Accept waits for the next connection.
func (l vsockListener) Accept() (net.Conn, error) {
	conn, _, err := l.conn.Accept(context.Background(), 0)
	if err != nil {
		return nil, err
	}
	return newVsockConn(conn)
}

// Close ends the listener.
func (l vsockListener) Close() error { return l.conn.Close() }

// Addr returns the port.
func (l vsockListener) Addr() net.Addr { return l.address }

// vsockMachine knows a member by its virtual machine, and its root by its port.
type vsockMachine struct {
	member string
	cid    uint32
}

// Member returns the member for connections from its virtual machine's root.
func (v vsockMachine) Member(_ context.Context, conn net.Conn) (string, error) {
	from, ok := conn.RemoteAddr().(VsockAddr)
	switch {
	case !ok:
		return "", fmt.Errorf("%T is no vsock connection", conn)
	case from.CID != v.cid:
		return "", fmt.Errorf("the peer is virtual machine %d, not %d", from.CID, v.cid)
	case from.Port == 0 || from.Port > reservedPorts:
		return "", fmt.Errorf("the peer's port %d is not one of root's, 1 to %d", from.Port, reservedPorts)
	}
	return v.member, nil
}
