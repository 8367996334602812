package container

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// inside opens the network namespace of a running member. It is opened first and then made sure of: from then on no other
// process can be taken for the member's first one.
func (d *Driver) inside(id string) (netns.Handle, sight, error) {
	if !validName(id) {
		return netns.Handle{}, sight{}, driver.ErrNotFound
	}
	h, err := d.host()
	if err != nil {
		return netns.Handle{}, sight{}, err
	}
	seen := d.look(h, id)
	switch seen.state {
	case driver.StateAbsent:
		return netns.Handle{}, seen, driver.ErrNotFound
	case driver.StateRunning:
	case driver.StatePaused:
		return netns.Handle{}, seen, errors.New("the member is paused; resume its cluster first")
	default:
		return netns.Handle{}, seen, fmt.Errorf("the member is not running (%s)", seen.state)
	}
	space, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", seen.init))
	if err != nil {
		return netns.Handle{}, seen, err
	}
	if !h.cgroups.Contains(id, seen.init) {
		return netns.Handle{}, seen, errors.Join(errors.New("the member has just ended"), space.Close())
	}
	return space, seen, nil
}

// Dial connects to a TCP port of a member from within its own network namespace, where no rule of the host is in the way. A service
// that listens on its loopback only is reached, too, as by a user who is logged in there.
func (d *Driver) Dial(ctx context.Context, id string, port int) (net.Conn, error) {
	conn, err := d.dial(ctx, id, port)
	if err != nil {
		return nil, fmt.Errorf("connecting to port %d of member %q: %w", port, id, err)
	}
	return conn, nil
}

func (d *Driver) dial(ctx context.Context, id string, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, errors.New("a port is a number from 1 to 65535")
	}
	space, seen, err := d.inside(id)
	if err != nil {
		return nil, err
	}
	defer func() { _ = space.Close() }()
	var conn net.Conn
	err = space.Do(func() error {
		// A single numeric address is connected to on this very thread, which is what is in the namespace.
		var dialer net.Dialer
		var err error
		conn, err = dialer.DialContext(ctx, "tcp4", netip.AddrPortFrom(seen.member.Assignment.Address(), uint16(port)).String())
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENETUNREACH) {
			conn, err = dialer.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		}
		return err
	})
	return conn, err
}

// ListenInside listens at a port of a member's loopback.
func (d *Driver) ListenInside(ctx context.Context, id string, port int) (net.Listener, error) {
	listener, err := d.listenInside(ctx, id, port)
	if err != nil {
		return nil, fmt.Errorf("listening at port %d of member %q: %w", port, id, err)
	}
	return listener, nil
}

func (d *Driver) listenInside(ctx context.Context, id string, port int) (net.Listener, error) {
	space, _, err := d.inside(id)
	if err != nil {
		return nil, err
	}
	defer func() { _ = space.Close() }()
	var listener net.Listener
	err = space.Do(func() (err error) {
		// The socket is of the namespace that this thread is in, and stays so.
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		return err
	})
	return listener, err
}

// Mend attaches the port of a running member again, which makes anew what is gone of it and leaves alone what is there.
func (d *Driver) Mend(ctx context.Context, id string) error {
	if err := d.mend(ctx, id); err != nil {
		return fmt.Errorf("repairing the port of member %q: %w", id, err)
	}
	return nil
}

func (d *Driver) mend(ctx context.Context, id string) error {
	space, seen, err := d.inside(id)
	if err != nil {
		return err
	}
	defer func() { _ = space.Close() }()
	return d.attach(ctx, *seen.member, seen.init)
}

// attach makes the member's ports in the network namespace of its first process. The way by the process stays good for as long as
// the member lives; by an open handle it would end with the handle.
func (d *Driver) attach(ctx context.Context, m driver.Member, pid int) error {
	for n := range m.Assignment.Ports {
		port := fabric.PortOf(&m.Assignment, n)
		place := fabric.Namespace(fmt.Sprintf("/proc/%d/ns/net", pid))
		if port.OnFunction() {
			pci, err := pciOf(sysfs, port.Function)
			if err != nil {
				return err
			}
			place = fabric.Place{Kind: port.Function.Kind, At: pci, Namespace: place.At}
		}
		if err := d.cfg.Attacher.Attach(ctx, port, place); err != nil {
			return err
		}
	}
	return nil
}

var (
	_ driver.Driver = (*Driver)(nil)
	_ driver.Pauser = (*Driver)(nil)
	_ driver.Dialer = (*Driver)(nil)
	_ driver.Mender = (*Driver)(nil)

	_ driver.LoopbackListener = (*Driver)(nil)
)
