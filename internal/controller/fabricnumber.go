package controller

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
)

// onFabric is what is wanted of a network on a fabric: a cell, and numbers of the site's pools; zero: any.
type onFabric struct {
	cell       string
	vlan, pkey int
	partition  api.Partition
}

// giveFabricNumber gives a network the number by which its fabric knows it: a VLAN ID, or a cell and a partition key. A network of tunnels has none.
func (p *pass) giveFabricNumber(n *api.Network, want onFabric) (err error) {
	switch n.Technology {
	case api.TechnologyVLAN:
		n.VLAN, err = p.numbers().VLAN(n.UID, p.cfg.VLANs, want.vlan, p.vlanFits)
		return err
	case api.TechnologyInfiniBand:
		n.Partition = want.partition
		return p.givePKey(n, want)
	default:
		return nil
	}
}

// vlanFits reports whether all managed switches can have a VLAN: members of a network may be at any of them.
func (p *pass) vlanFits(vid int) bool {
	for cell := range p.cfg.Offers.Switches {
		if p.cfg.Fabrics[cell].Check([]site.Network{{Number: vid}}) != nil {
			return false
		}
	}
	return true
}

// errLater: whether a fabric could have a network can't be known now.
var errLater = errors.New("its fabric can't be asked now")

// givePKey gives a network on InfiniBand its cell and its partition key. Keys that the fabric can't have, such as the operator's, are passed over. It
// returns errLater when that can't be known now.
func (p *pass) givePKey(n *api.Network, want onFabric) error {
	cells := p.cfg.Offers.Fabrics
	if len(cells) == 0 {
		return errors.New("the site controls no InfiniBand fabric")
	}
	n.Cell = cmp.Or(want.cell, slices.Min(cells))
	if !slices.Contains(cells, n.Cell) {
		return errors.New("the site controls no fabric of cell " + n.Cell)
	}
	pkey, err := p.numbers().PKey(n.UID, p.cfg.PKeys, want.pkey, func(pkey int) (bool, error) {
		err := p.cfg.Fabrics[n.Cell].Check([]site.Network{{Number: pkey, Partition: want.partition}})
		refusal := (*site.Refusal)(nil)
		switch {
		case err == nil:
			return true, nil
		case !errors.As(err, &refusal):
			return false, fmt.Errorf("%w: fabric %s: %w", errLater, n.Cell, err)
		case refusal.Number == 0 || want.pkey != 0:
			return false, fmt.Errorf("fabric %s: %w", n.Cell, err)
		default:
			return false, nil
		}
	})
	n.PKey = pkey
	return err
}
