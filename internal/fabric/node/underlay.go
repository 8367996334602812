package node

import (
	"cmp"
	"context"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Underlay reads what the link that bears the node's underlay address carries now.
func (f *Fabric) Underlay(ctx context.Context) (fabric.Underlay, error) {
	if err := ctx.Err(); err != nil {
		return fabric.Underlay{}, err
	}
	under := fabric.Underlay{BitsPerSecond: f.cfg.UplinkRate}
	if err := f.readTrunk(&under); err != nil || !f.cfg.Underlay.IsValid() {
		return under, err
	}
	err := f.node.Do(func() error {
		addresses, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
		if err != nil {
			return fmt.Errorf("reading addresses: %w", err)
		}
		for _, a := range addresses {
			if addressPrefix(a).Addr() != f.cfg.Underlay {
				continue
			}
			link, err := netlink.LinkByIndex(a.LinkIndex)
			if err != nil {
				return fmt.Errorf("reading the link of underlay address %v: %w", f.cfg.Underlay, err)
			}
			under.MTU = cmp.Or(f.cfg.UnderlayMTU, link.Attrs().MTU)
			under.BitsPerSecond = cmp.Or(f.cfg.UplinkRate, rateOf(link))
		}
		return nil
	})
	return under, err
}
