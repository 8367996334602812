package pool

import (
	"encoding/binary"
	"net/netip"
)

// Subnets is an IPv4 prefix cut into equal blocks, which are numbered from 0.
type Subnets struct {
	prefix netip.Prefix
	bits   int
}

// Cut cuts a prefix into blocks of a length in bits. It reports false when the prefix is not IPv4, or shorter than one block.
func Cut(prefix netip.Prefix, bits int) (Subnets, bool) {
	if !prefix.IsValid() || !prefix.Addr().Is4() || bits < prefix.Bits() || bits > 32 {
		return Subnets{}, false
	}
	return Subnets{prefix.Masked(), bits}, true
}

// Prefix returns all of it.
func (s Subnets) Prefix() netip.Prefix { return s.prefix }

// Count returns how many blocks there are.
func (s Subnets) Count() int { return 1 << (s.bits - s.prefix.Bits()) }

// At returns a block; false when there is none of this number.
func (s Subnets) At(block int) (netip.Prefix, bool) {
	if block < 0 || block >= s.Count() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(Offset(s.prefix.Addr(), uint32(block)<<(32-s.bits)), s.bits), true
}

// BlockOf returns the number of the block that an address is in; false when it is in none.
func (s Subnets) BlockOf(a netip.Addr) (int, bool) {
	if !s.prefix.Contains(a) {
		return 0, false
	}
	return int(Host(s.prefix.Addr(), a) >> (32 - s.bits)), true
}

// Offset returns the IPv4 address that many after a.
func Offset(a netip.Addr, by uint32) netip.Addr {
	b := a.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+by)
	return netip.AddrFrom4(b)
}

// Host returns how many addresses an IPv4 address comes after base.
func Host(base, a netip.Addr) uint32 {
	from, to := base.As4(), a.As4()
	return binary.BigEndian.Uint32(to[:]) - binary.BigEndian.Uint32(from[:])
}
