package placement

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/pool"
)

// Sizes of what is handed out to clusters.
const (
	// MaxNetworkIndex bounds a network's index: it names links and VXLAN networks on every node, and has 16 bits in a MAC.
	MaxNetworkIndex = 1<<16 - 1
	// MaxMembers is how many members the largest network holds: 4,096 addresses less network, gateway and broadcast.
	MaxMembers = 1<<(32-largeBits) - 3

	largeBits  = 20 // a network's subnet while the pool has room, or where its cluster needs one
	smallBits  = 22 // else
	smallBlock = 1<<(32-smallBits) - 3

	gatewayHost = 1
	firstHost   = 2

	firstUserID = 1_000_000 + 65_536
	userIDs     = 65_536
	// lastRange keeps IDs below 2^31: some file systems and programs take them for signed.
	lastRange = (1<<31-firstUserID)/userIDs - 1
)

var defaultSubnets, _ = pool.Cut(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64, 0, 0}), 10), smallBits)

// DefaultPool is where subnets come from unless the site says otherwise.
var DefaultPool = Pool{defaultSubnets}

// Pool is the address space that subnets are cut from. Its first block stays unused.
type Pool struct{ subnets pool.Subnets }

// NewPool checks that the prefix holds at least one subnet, and no addresses that mean something else everywhere.
func NewPool(prefix netip.Prefix) (Pool, error) {
	subnets, ok := pool.Cut(prefix, smallBits)
	if !ok || prefix.Bits() >= largeBits {
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

// Prefix is the whole pool.
func (p Pool) Prefix() netip.Prefix { return p.subnets.Prefix() }

// Numbers are those that clusters and their networks take, with their holders. A network's are free once it is gone, which is when its last
// port was proved clean. The user IDs of a cluster are free once nothing of it is held, quarantined assignments included.
type Numbers struct {
	pool    Pool
	indexes *pool.Pool[int]
	blocks  *pool.Pool[int] // small ones
	used    int             // of the blocks
	ranges  *pool.Pool[uint32]
	// subnets are all that are taken.
	subnets []netip.Prefix
	// subnets6 are the IPv6 subnets that are taken.
	subnets6 []netip.Prefix
	// vlans are the VLAN IDs that are taken, with their networks.
	vlans map[int]string
}

// Numbers returns what is taken of the pool by stored networks, clusters and quarantined assignments. Networks may have their subnets from
// another pool, which the site had before: the blocks of this one that they overlap are taken.
func (p Pool) Numbers(networks []*api.Network, records []*api.ClusterRecord, quarantined []*api.Quarantine) *Numbers {
	n := &Numbers{
		pool: p, indexes: pool.New(1, MaxNetworkIndex), blocks: pool.New(1, p.subnets.Count()-1), ranges: pool.New[uint32](0, lastRange),
		vlans: map[int]string{},
	}
	for _, network := range networks {
		n.indexes.Hold(network.Index, network.UID)
		if network.PKey != 0 && network.Refused == "" {
			n.holdPKey(network.UID, network.PKey)
		}
		if network.VLAN != 0 && network.Refused == "" {
			n.vlans[network.VLAN] = network.UID
		}
		n.holdBlocks(network.Prefix, network.UID)
		if network.HasIPv6() {
			n.subnets6 = append(n.subnets6, network.Prefix6)
		}
	}
	for _, r := range records {
		n.holdIDs(r.UserIDs, r.UID)
	}
	for _, q := range quarantined {
		n.holdIDs(q.Assignment.UserIDs, q.Assignment.ClusterUID)
	}
	return n
}

func (n *Numbers) holdIDs(ids api.IDRange, owner string) {
	if ids.Count > 0 && ids.First >= firstUserID {
		n.ranges.Hold((ids.First-firstUserID)/userIDs, owner)
	}
}

// holdBlocks takes all blocks that a subnet overlaps.
func (n *Numbers) holdBlocks(subnet netip.Prefix, owner string) {
	n.subnets = append(n.subnets, subnet)
	if !subnet.IsValid() || !subnet.Overlaps(n.pool.Prefix()) {
		return
	}
	first := 0
	if block, ok := n.pool.subnets.BlockOf(subnet.Addr()); ok {
		first = block
	}
	for block := first; block < n.pool.subnets.Count(); block++ {
		prefix, _ := n.pool.subnets.At(block)
		if !prefix.Overlaps(subnet) {
			return
		}
		n.blocks.Hold(block, owner)
		n.used++
	}
}

// UserIDs returns a range of user and group IDs for a cluster's user namespaces.
func (n *Numbers) UserIDs(clusterUID string) (api.IDRange, error) {
	number, ok := n.ranges.Take(clusterUID)
	if !ok {
		return api.IDRange{}, fmt.Errorf("all %d ranges of user IDs are in use: delete a cluster", lastRange+1)
	}
	return api.IDRange{First: firstUserID + number*userIDs, Count: userIDs}, nil
}

// Network gives a network its index and its subnet. The subnet is a large one while half of the pool is free, so that a cluster can grow; then
// the smallest that holds that many members.
func (n *Numbers) Network(network api.Network, members int) (api.Network, error) {
	bits := largeBits
	if members <= smallBlock && 2*(n.used+largeBlocks) > n.pool.subnets.Count() {
		bits = smallBits
	}
	subnet, ok := n.subnet(bits)
	if !ok && bits == largeBits && members <= smallBlock {
		subnet, ok = n.subnet(smallBits)
	}
	if !ok {
		return api.Network{}, fmt.Errorf("subnet pool %s has no room for another network of %d members: delete a cluster, or start the server with a larger pool (--network-pool)",
			n.pool, members)
	}
	return n.number(network, subnet)
}

// number gives a network an index beside its subnet.
func (n *Numbers) number(network api.Network, subnet netip.Prefix) (api.Network, error) {
	index, ok := n.indexes.Take(network.UID)
	if !ok {
		return api.Network{}, fmt.Errorf("all %d networks are in use: delete a cluster or a network", MaxNetworkIndex)
	}
	n.holdBlocks(subnet, network.UID)
	network.Index, network.Prefix, network.Gateway = index, subnet, pool.Offset(subnet.Addr(), gatewayHost)
	return network, nil
}

// Requested gives a project's network its index, and the subnet that its user requested.
func (n *Numbers) Requested(network api.Network, subnet netip.Prefix) (api.Network, error) {
	if err := n.pool.CheckSubnet(subnet); err != nil {
		return api.Network{}, err
	}
	if slices.ContainsFunc(n.subnets, subnet.Overlaps) {
		return api.Network{}, fmt.Errorf("subnet %s overlaps another network's: choose another, or omit it to get a free one", subnet)
	}
	return n.number(network, subnet)
}

// Bounds of the subnets that users request: a host number has 16 bits in a MAC.
const (
	largestSubnet  = 16
	smallestSubnet = 28
)

// CheckSubnet reports what is wrong with a requested subnet, whoever has it.
func (p Pool) CheckSubnet(subnet netip.Prefix) error {
	switch {
	case !subnet.IsValid() || !subnet.Addr().Is4():
		return fmt.Errorf("%q is not an IPv4 prefix: give one such as %s", subnet, p.example())
	case subnet != subnet.Masked():
		return fmt.Errorf("%s has bits beyond its length: give %s", subnet, subnet.Masked())
	case subnet.Bits() < largestSubnet || subnet.Bits() > smallestSubnet:
		return fmt.Errorf("%s has length /%d: give /%d to /%d", subnet, subnet.Bits(), largestSubnet, smallestSubnet)
	case !p.Prefix().Contains(subnet.Addr()) || subnet.Bits() < p.Prefix().Bits():
		return fmt.Errorf("%s is not in this site's pool for networks, %s: give a part of the pool, such as %s", subnet, p, p.example())
	}
	return nil
}

// example is the last subnet of the pool.
func (p Pool) example() netip.Prefix {
	last, _ := p.subnets.At(p.subnets.Count() - 1)
	return netip.PrefixFrom(last.Addr(), 24)
}

// largeBlocks is how many small blocks a large one has.
const largeBlocks = 1 << (smallBits - largeBits)

// subnet finds the lowest free one of a length.
func (n *Numbers) subnet(bits int) (netip.Prefix, bool) {
	if bits == smallBits {
		block, ok := n.blocks.Lowest()
		if !ok {
			return netip.Prefix{}, false
		}
		return n.pool.subnets.At(block)
	}
	for first := largeBlocks; first+largeBlocks <= n.pool.subnets.Count(); first += largeBlocks {
		free := true
		for block := first; block < first+largeBlocks && free; block++ {
			free = !n.blocks.Holds(block)
		}
		if free {
			subnet, _ := n.pool.subnets.At(first)
			return netip.PrefixFrom(subnet.Addr(), bits), true
		}
	}
	return netip.Prefix{}, false
}

// Room returns how many members a network's subnet holds.
func Room(network *api.Network) int { return 1<<(32-network.Prefix.Bits()) - 3 }

// MAC returns the address of a member's interface: administratively assigned unicast (IEEE 802c-2017, AAI: 02), two bytes "nm"
// for short, network index and host number.
func MAC(index, host int) string {
	return fmt.Sprintf("02:6e:%02x:%02x:%02x:%02x", index>>8&0xff, index&0xff, host>>8&0xff, host&0xff)
}
