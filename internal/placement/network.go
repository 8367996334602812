package placement

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/nearmetal/nearmetal/api"
)

// Sizes of what a network index stands for.
const (
	// MaxNetworkIndex bounds the index: it names VXLAN networks, links and ID ranges on every node.
	MaxNetworkIndex = 4095
	// MaxMembers is how many members one cluster's /20 holds: 4,096 addresses less network, gateway and broadcast.
	MaxMembers = subnetAddresses - 3

	subnetBits      = 20
	subnetAddresses = 1 << (32 - subnetBits)
	firstIDBase     = 1_000_000
	idsPerNetwork   = 65_536
	gatewayHost     = 1
	firstHost       = 2
	lastHost        = subnetAddresses - 2
)

// DefaultPool is where cluster subnets come from unless the site says otherwise: room for 1,023 live clusters.
var DefaultPool = Pool{prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64, 0, 0}), 10)}

// Pool is the address space that cluster subnets are cut from, /20 by /20: network index i has block i. Block 0 stays unused.
type Pool struct{ prefix netip.Prefix }

// NewPool checks that the prefix holds at least one cluster subnet, and no addresses that mean something else everywhere.
func NewPool(prefix netip.Prefix) (Pool, error) {
	if !prefix.Addr().Is4() || prefix.Bits() >= subnetBits {
		return Pool{}, fmt.Errorf("subnet pool %s has no room for cluster subnets: give an IPv4 prefix of /19 or shorter, such as %s", prefix, DefaultPool)
	}
	for _, reserved := range []string{"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "198.18.0.0/15", "224.0.0.0/3"} {
		if prefix.Overlaps(netip.MustParsePrefix(reserved)) {
			return Pool{}, fmt.Errorf("subnet pool %s overlaps %s, which is reserved: give a private prefix, such as %s", prefix.Masked(), reserved, DefaultPool)
		}
	}
	return Pool{prefix: prefix.Masked()}, nil
}

func (p Pool) String() string { return p.prefix.String() }

// MaxIndex is the highest network index the pool has a subnet for.
func (p Pool) MaxIndex() int {
	return min(MaxNetworkIndex, 1<<(subnetBits-p.prefix.Bits())-1)
}

// Network derives everything about the network with this index.
func (p Pool) Network(index int, egress bool) (api.Network, error) {
	if index < 1 || index > p.MaxIndex() {
		return api.Network{}, fmt.Errorf("network index %d is not between 1 and %d, the size of subnet pool %s", index, p.MaxIndex(), p)
	}
	base := offset(p.prefix.Addr(), uint32(index)*subnetAddresses)
	return api.Network{
		Index: index, Prefix: netip.PrefixFrom(base, subnetBits), Gateway: offset(base, gatewayHost), Egress: egress,
		IDBase: firstIDBase + uint32(index)*idsPerNetwork, IDCount: idsPerNetwork,
	}, nil
}

// IndexOf returns the index of the network an address belongs to; false when it is outside of the pool.
func (p Pool) IndexOf(a netip.Addr) (int, bool) {
	if !p.prefix.Contains(a) {
		return 0, false
	}
	index := int(hostNumber(p.prefix.Addr(), a) / subnetAddresses)
	return index, index >= 1 && index <= p.MaxIndex()
}

// Prefix is the whole pool.
func (p Pool) Prefix() netip.Prefix { return p.prefix }

// IndexOfMAC returns the index of the network that a member's interface is in, whatever pool its address was from.
func IndexOfMAC(mac string) (int, bool) {
	var high, low, hostHigh, hostLow int
	_, err := fmt.Sscanf(mac, "02:6e:%02x:%02x:%02x:%02x", &high, &low, &hostHigh, &hostLow)
	return high<<8 | low, err == nil && high<<8|low > 0
}

// IndexesInUse collects the network indexes that must not be handed out: those of recorded clusters, and of quarantined
// assignments, whose processes may still run under the network's user IDs after their cluster is gone. The site may have had another pool
// when those were made: the blocks of this pool that hold their addresses are in use, too.
func (p Pool) IndexesInUse(records []api.ClusterRecord, quarantined []api.Quarantine) map[int]bool {
	used := map[int]bool{}
	for _, r := range records {
		if r.Network.Index != 0 {
			used[r.Network.Index] = true
		}
		if index, ok := p.IndexOf(r.Network.Prefix.Addr()); ok {
			used[index] = true
		}
	}
	for _, q := range quarantined {
		if index, ok := IndexOfMAC(q.Assignment.MAC); ok {
			used[index] = true
		}
		if index, ok := p.IndexOf(q.Assignment.Address); ok {
			used[index] = true
		}
	}
	return used
}

// LowestFree returns the network with the lowest index that is not in use.
func (p Pool) LowestFree(inUse map[int]bool, egress bool) (api.Network, error) {
	for index := 1; index <= p.MaxIndex(); index++ {
		if !inUse[index] {
			return p.Network(index, egress)
		}
	}
	return api.Network{}, fmt.Errorf("all %d cluster networks of subnet pool %s are in use: delete a cluster, or start the server with a larger pool (--network-pool)",
		p.MaxIndex(), p)
}

// MAC returns the address of a member's interface: administratively assigned unicast (IEEE 802c-2017, AAI: 02), two bytes "nm"
// for short, network index and host number.
func MAC(index, host int) string {
	return fmt.Sprintf("02:6e:%02x:%02x:%02x:%02x", index>>8&0xff, index&0xff, host>>8&0xff, host&0xff)
}

func offset(a netip.Addr, by uint32) netip.Addr {
	b := a.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+by)
	return netip.AddrFrom4(b)
}

func hostNumber(base, a netip.Addr) uint32 {
	from, to := base.As4(), a.As4()
	return binary.BigEndian.Uint32(to[:]) - binary.BigEndian.Uint32(from[:])
}
