package placement

import (
	"fmt"
	"net/netip"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/pool"
)

// Sizes of what a network index stands for.
//
// How many clusters can live at once follows from addresses: each cluster has a /20, whatever its size. The default pool has 1,023 of them
// beside the first, which stays unused, and 10.0.0.0/8 has 4,095. The index itself could be higher: a VNI has 24 bits, a MAC has 16 for it,
// and the ranges of user IDs stay below 2^31 up to index 32,751. So more clusters need smaller subnets. For that, Pool must choose a block
// by the cluster's size, apart from the index. IndexOf must look up the block among stored networks. Check and scale-up must refuse what
// the cluster's own block can't hold. And fabric.MaxIndex must grow with MaxNetworkIndex. Assign takes subnets of any size.
const (
	// MaxNetworkIndex bounds the index: it names VXLAN networks, links and ID ranges on every node.
	MaxNetworkIndex = 4095
	// MaxMembers is how many members one cluster's /20 holds: 4,096 addresses less network, gateway and broadcast.
	MaxMembers = 1<<(32-subnetBits) - 3

	subnetBits    = 20
	firstIDBase   = 1_000_000
	idsPerNetwork = 65_536
	gatewayHost   = 1
	firstHost     = 2
)

var defaultSubnets, _ = pool.Cut(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64, 0, 0}), 10), subnetBits)

// DefaultPool is where cluster subnets come from unless the site says otherwise: room for 1,023 live clusters.
var DefaultPool = Pool{defaultSubnets}

// Pool is the address space that cluster subnets are cut from, /20 by /20: network index i has block i. Block 0 stays unused.
type Pool struct{ subnets pool.Subnets }

// NewPool checks that the prefix holds at least one cluster subnet, and no addresses that mean something else everywhere.
func NewPool(prefix netip.Prefix) (Pool, error) {
	subnets, ok := pool.Cut(prefix, subnetBits)
	if !ok || subnets.Count() < 2 {
		return Pool{}, fmt.Errorf("subnet pool %s has no room for cluster subnets: give an IPv4 prefix of /19 or shorter, such as %s", prefix, DefaultPool)
	}
	for _, reserved := range []string{"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "198.18.0.0/15", "224.0.0.0/3"} {
		if prefix.Overlaps(netip.MustParsePrefix(reserved)) {
			return Pool{}, fmt.Errorf("subnet pool %s overlaps %s, which is reserved: give a private prefix, such as %s", prefix.Masked(), reserved, DefaultPool)
		}
	}
	return Pool{subnets}, nil
}

func (p Pool) String() string { return p.Prefix().String() }

// MaxIndex is the highest network index the pool has a subnet for.
func (p Pool) MaxIndex() int { return min(MaxNetworkIndex, p.subnets.Count()-1) }

// Network derives everything about the network with this index.
func (p Pool) Network(index int, egress bool) (api.Network, error) {
	prefix, ok := p.subnets.At(index)
	if !ok || index < 1 || index > p.MaxIndex() {
		return api.Network{}, fmt.Errorf("network index %d is not between 1 and %d, the size of subnet pool %s", index, p.MaxIndex(), p)
	}
	return api.Network{
		Index: index, Prefix: prefix, Gateway: pool.Offset(prefix.Addr(), gatewayHost), Egress: egress,
		IDBase: firstIDBase + uint32(index)*idsPerNetwork, IDCount: idsPerNetwork,
	}, nil
}

// IndexOf returns the index of the network an address belongs to; false when it is outside of the pool.
func (p Pool) IndexOf(a netip.Addr) (int, bool) {
	index, ok := p.subnets.BlockOf(a)
	return index, ok && index >= 1 && index <= p.MaxIndex()
}

// Prefix is the whole pool.
func (p Pool) Prefix() netip.Prefix { return p.subnets.Prefix() }

// IndexOfMAC returns the index of the network that a member's interface is in, whatever pool its address was from.
func IndexOfMAC(mac string) (int, bool) {
	var high, low, hostHigh, hostLow int
	_, err := fmt.Sscanf(mac, "02:6e:%02x:%02x:%02x:%02x", &high, &low, &hostHigh, &hostLow)
	return high<<8 | low, err == nil && high<<8|low > 0
}

// Indexes returns the pool of network indexes. Those of recorded clusters are held, and those of quarantined assignments, whose processes
// may still run under the network's user IDs after their cluster is gone. The site may have had another pool of subnets when those were
// made: the blocks of this one that hold their addresses are held, too.
func (p Pool) Indexes(records []api.ClusterRecord, quarantined []api.Quarantine) *pool.Pool[int] {
	indexes := pool.New(1, p.MaxIndex())
	for _, r := range records {
		if r.Network.Index != 0 {
			indexes.Hold(r.Network.Index, r.UID)
		}
		if index, ok := p.IndexOf(r.Network.Prefix.Addr()); ok {
			indexes.Hold(index, r.UID)
		}
	}
	for _, q := range quarantined {
		if index, ok := IndexOfMAC(q.Assignment.MAC()); ok {
			indexes.Hold(index, q.Assignment.ClusterUID)
		}
		if index, ok := p.IndexOf(q.Assignment.Address()); ok {
			indexes.Hold(index, q.Assignment.ClusterUID)
		}
	}
	return indexes
}

// TakeNetwork gives the network with the lowest free index to a cluster.
func (p Pool) TakeNetwork(indexes *pool.Pool[int], clusterUID string, egress bool) (api.Network, error) {
	index, ok := indexes.Take(clusterUID)
	if !ok {
		return api.Network{}, fmt.Errorf("all %d cluster networks of subnet pool %s are in use: delete a cluster, or start the server with a larger pool (--network-pool)",
			p.MaxIndex(), p)
	}
	return p.Network(index, egress)
}

// MAC returns the address of a member's interface: administratively assigned unicast (IEEE 802c-2017, AAI: 02), two bytes "nm"
// for short, network index and host number.
func MAC(index, host int) string {
	return fmt.Sprintf("02:6e:%02x:%02x:%02x:%02x", index>>8&0xff, index&0xff, host>>8&0xff, host&0xff)
}
