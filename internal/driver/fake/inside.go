package fake

import (
	"context"
	"fmt"
	"net"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// listened is what its host listens to in a member, by port.
type listened struct{ inside map[int]net.Addr }

// Inside is where a port is that the host listens to in a member (driver.LoopbackListener); nil: it listened to none such.
func (h *Host) Inside(id string, port int) net.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.members[id]; m != nil {
		return m.inside[port]
	}
	return nil
}

// ListenInside listens at a port of this machine, which Host.Inside tells.
func (d *Driver) ListenInside(ctx context.Context, id string, port int) (net.Listener, error) {
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	m := d.host.members[id]
	if m == nil || m.state != driver.StateRunning {
		return nil, driver.ErrNotFound
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	if m.inside == nil {
		m.inside = map[int]net.Addr{}
	}
	m.inside[port] = l.Addr()
	return l, nil
}

var _ driver.LoopbackListener = (*Driver)(nil)

// Dial connects to what Host.Listen made a member serve.
func (d *Driver) Dial(_ context.Context, id string, port int) (net.Conn, error) {
	h := d.host
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.members[id]
	switch {
	case m == nil:
		return nil, fmt.Errorf("connecting to port %d of member %q: %w", port, id, driver.ErrNotFound)
	case m.state != driver.StateRunning:
		return nil, fmt.Errorf("connecting to port %d of member %q: the member is %s", port, id, m.state)
	case m.services[port] == nil:
		return nil, fmt.Errorf("connecting to port %d of member %q: connection refused", port, id)
	}
	near, far := net.Pipe()
	go m.services[port](far)
	return near, nil
}
