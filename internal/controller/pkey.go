package controller

import (
	"cmp"
	"errors"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// givePKey gives a network on InfiniBand its cell and its partition key.
func (p *pass) givePKey(n *api.Network, in *api.NetworkIntent) error {
	n.Technology, n.Partition = in.Technology, in.Partition
	cells := p.cfg.Offers.Fabrics
	if len(cells) == 0 {
		return errors.New("the site controls no InfiniBand fabric")
	}
	n.Cell = cmp.Or(in.Cell, slices.Min(cells))
	if !slices.Contains(cells, n.Cell) {
		return errors.New("the site controls no fabric of cell " + n.Cell)
	}
	pkey, err := p.numbers().PKey(n.UID, p.cfg.PKeys, in.PKey)
	n.PKey = pkey
	return err
}
