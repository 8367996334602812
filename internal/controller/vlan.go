package controller

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
)

// freeVLAN returns the requested VLAN ID, or with 0 the lowest free one of the pool. Networks keep their IDs until they are forgotten, so none is
// given again before all members of its last network are proved clean.
func freeVLAN(pool api.VLANPool, requested int, stored []*api.Network, beside []api.Network) (int, error) {
	taken := map[int]bool{}
	for _, n := range stored {
		taken[n.VLAN] = n.Refused == ""
	}
	for i := range beside {
		taken[beside[i].VLAN] = beside[i].Refused == ""
	}
	if requested != 0 {
		switch {
		case !pool.Has(requested):
			return 0, fmt.Errorf("VLAN %d is not in the site's pool (%s)", requested, pool)
		case taken[requested]:
			return 0, fmt.Errorf("VLAN %d was given to another network by then", requested)
		}
		return requested, nil
	}
	for vid := pool.First; pool.Has(vid); vid++ {
		if !taken[vid] {
			return vid, nil
		}
	}
	return 0, fmt.Errorf("all VLANs of the site's pool (%s) are in use: delete a network on one", pool)
}
