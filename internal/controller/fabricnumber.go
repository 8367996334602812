package controller

import (
	"cmp"
	"errors"
	"slices"

	"github.com/nearmetal/nearmetal/api"
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
		n.VLAN, err = p.numbers().VLAN(n.UID, p.cfg.VLANs, want.vlan)
		return err
	case api.TechnologyInfiniBand:
		n.Partition = want.partition
		return p.givePKey(n, want)
	default:
		return nil
	}
}

func (p *pass) givePKey(n *api.Network, want onFabric) error {
	cells := p.cfg.Offers.Fabrics
	if len(cells) == 0 {
		return errors.New("the site controls no InfiniBand fabric")
	}
	n.Cell = cmp.Or(want.cell, slices.Min(cells))
	if !slices.Contains(cells, n.Cell) {
		return errors.New("the site controls no fabric of cell " + n.Cell)
	}
	pkey, err := p.numbers().PKey(n.UID, p.cfg.PKeys, want.pkey)
	n.PKey = pkey
	return err
}
