package fake

import (
	"context"
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
