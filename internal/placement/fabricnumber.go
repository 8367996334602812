package placement

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
)

// PKey gives a network the requested partition key, or with 0 the lowest free one of the pool. Networks keep their keys until they are forgotten, so
// none is given again before all members of its last network are proved clean.
//
// Fits says of a key that is free whether the network's fabric can have it. Its error ends the search, and nothing is given.
//
// Ports of whole nodes are in partitions by the indexes of their networks (decision 031), so both are of one range of numbers.
func (n *Numbers) PKey(network string, pool api.PKeyPool, requested int, fits func(pkey int) (bool, error)) (int, error) {
	if requested != 0 {
		switch {
		case !pool.Has(requested):
			return 0, fmt.Errorf("partition key %s is not in the site's pool (%s)", api.PKeyText(requested), pool)
		case n.indexes.Holds(requested):
			return 0, fmt.Errorf("partition key %s was given to another network by then", api.PKeyText(requested))
		}
		pool = api.PKeyPool{First: requested, Last: requested}
	}
	for pkey := pool.First; pool.Has(pkey); pkey++ {
		if n.indexes.Holds(pkey) {
			continue
		}
		fit, err := fits(pkey)
		if err != nil {
			return 0, err
		}
		if fit {
			n.holdPKey(network, pkey)
			return pkey, nil
		}
	}
	return 0, fmt.Errorf("all partition keys of the site's pool (%s) are in use: delete a network, or a cluster, on InfiniBand", pool)
}

// VLAN gives a network the requested VLAN ID, or with 0 the lowest free one of the pool. Networks keep their IDs until they are forgotten, so none is
// given again before all members of its last network are proved clean. Fits says of an ID that is free whether the site's switches can have it.
func (n *Numbers) VLAN(network string, pool api.VLANPool, requested int, fits func(vid int) bool) (int, error) {
	if requested != 0 {
		switch {
		case !pool.Has(requested):
			return 0, fmt.Errorf("VLAN %d is not in the site's pool (%s)", requested, pool)
		case n.vlans[requested] != "":
			return 0, fmt.Errorf("VLAN %d was given to another network by then", requested)
		case !fits(requested):
			return 0, fmt.Errorf("VLAN %d is not among those that the site's switches leave to it; choose another one, or omit it", requested)
		}
		n.vlans[requested] = network
		return requested, nil
	}
	for vid := pool.First; pool.Has(vid); vid++ {
		if n.vlans[vid] == "" && fits(vid) {
			n.vlans[vid] = network
			return vid, nil
		}
	}
	return 0, fmt.Errorf("all VLANs of the site's pool (%s) are in use: delete a network, or a cluster, on one", pool)
}

func (n *Numbers) holdPKey(network string, pkey int) {
	n.indexes.Hold(pkey, "partition of "+network)
}

// GUID returns the port GUID of a member on InfiniBand, in 16 hexadecimal digits. It is an EUI-64 with the bit for local administration, like the
// member's MAC on Ethernet: 0e6d0000, network index and host number. A site gives neither number to anybody else before the member is proved clean.
func GUID(index, host int) string {
	return fmt.Sprintf("0e6d0000%04x%04x", index&0xffff, host&0xffff)
}
