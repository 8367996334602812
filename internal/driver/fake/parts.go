package fake

import (
	"context"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// NewMetal makes a driver that carries whole machines on a machine.
func NewMetal(host *Host, attacher fabric.Attacher) *Driver {
	return &Driver{host: host, attacher: attacher, stack: api.StackMetal}
}

// StartPart makes a part ready as its behaviour says; it implements driver.PartCarrier.
func (d *Driver) StartPart(ctx context.Context, m driver.Member) error {
	if !m.Assignment.IsPart() {
		return fmt.Errorf("starting part %q: it is a member of its own", m.Assignment.ID)
	}
	return d.Start(ctx, m)
}

// attach makes the ports of a member, each at the place that its kind calls for.
func (d *Driver) attach(ctx context.Context, m driver.Member) error {
	for n := range m.Assignment.Ports {
		place := fabric.Place{Kind: m.Assignment.Ports[n].Kind, At: fmt.Sprintf("fake%d", n)}
		switch place.Kind {
		case api.PortVeth, "":
			place = fabric.Namespace("/fake/" + m.Assignment.ID)
		case api.PortVF, api.PortPF:
			place.At = fmt.Sprintf("0000:fa:%02x.%d", n/8, n%8)
		}
		if err := d.attacher.Attach(ctx, fabric.PortOf(&m.Assignment, n), place); err != nil {
			return err
		}
	}
	return nil
}

var _ driver.PartCarrier = (*Driver)(nil)
