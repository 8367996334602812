package securitygroup

import (
	"cmp"
	"net/netip"
	"slices"
)

// Addresses is a range of addresses of one family. Both ends belong to it.
type Addresses struct{ First, Last netip.Addr }

// Family is a version of IP.
type Family int

// The families of addresses.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// has reports whether a rule by prefix is about addresses of the family.
func (f Family) has(r Rule) bool { return r.Group == "" && r.Prefix.Addr().Is4() == (f == IPv4) }

// Box allows packets of one protocol by ranges: of addresses of the other end, and of ports or ICMP types.
type Box struct {
	Addresses Addresses
	Protocol  uint8
	Ports     Range
}

// Boxes returns the union of rules by prefixes of a family for single protocols in one direction, as boxes that don't overlap, in order. Rules for Any and
// rules by group are omitted.
func Boxes(rules []Rule, direction Direction, family Family) []Box {
	byProtocol := map[uint8][]Rule{}
	for _, r := range rules {
		if number, one := r.Protocol.Number(); one && r.Direction == direction && family.has(r) {
			byProtocol[number] = append(byProtocol[number], r)
		}
	}
	var boxes []Box
	for number, some := range byProtocol {
		for _, p := range pieces(some) {
			for _, ports := range merge(p.ports) {
				boxes = append(boxes, Box{p.addresses, number, ports})
			}
		}
	}
	slices.SortFunc(boxes, func(a, b Box) int {
		return cmp.Or(a.Addresses.First.Compare(b.Addresses.First), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Ports.First, b.Ports.First))
	})
	return boxes
}

// Anything returns the ranges of addresses from which rules for Any by prefixes of a family allow all packets. The ranges don't overlap or touch.
func Anything(rules []Rule, direction Direction, family Family) []Addresses {
	var some []Rule
	for _, r := range rules {
		if r.Protocol == Any && r.Direction == direction && family.has(r) {
			some = append(some, r)
		}
	}
	var ranges []Addresses
	for _, p := range pieces(some) {
		if n := len(ranges); n > 0 && ranges[n-1].Last.Next() == p.addresses.First {
			ranges[n-1].Last = p.addresses.Last
			continue
		}
		ranges = append(ranges, p.addresses)
	}
	return ranges
}

// Ranges returns the union of the ports that rules by a group allow for one protocol, in order and without overlaps.
func Ranges(rules []Rule, direction Direction, group string, protocol Protocol) []Range {
	var ports []Range
	for _, r := range rules {
		if r.Direction == direction && r.Group == group && r.Protocol == protocol {
			ports = append(ports, r.Ports)
		}
	}
	return merge(ports)
}

// piece is a range of addresses that the same rules are about.
type piece struct {
	addresses Addresses
	ports     []Range
}

// pieces cuts the addresses of rules where a prefix begins or ends. Prefixes either nest or are apart, so a stack holds those that are open.
func pieces(rules []Rule) []piece {
	sorted := slices.Clone(rules)
	slices.SortFunc(sorted, func(a, b Rule) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
	})
	var all []piece
	var open []Rule
	var next netip.Addr // the first address that is in no piece yet; not valid behind the last one of all
	cut := func(last netip.Addr) {
		if len(open) == 0 || !next.IsValid() || !last.IsValid() || last.Less(next) {
			return
		}
		p := piece{addresses: Addresses{next, last}}
		for _, r := range open {
			p.ports = append(p.ports, r.Ports)
		}
		all = append(all, p)
		next = last.Next()
	}
	closeTop := func() {
		cut(lastOf(open[len(open)-1].Prefix))
		open = open[:len(open)-1]
	}
	for _, r := range sorted {
		first := r.Prefix.Addr()
		for len(open) > 0 && lastOf(open[len(open)-1].Prefix).Less(first) {
			closeTop()
		}
		cut(first.Prev())
		next = first
		open = append(open, r)
	}
	for len(open) > 0 {
		closeTop()
	}
	return all
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(b); bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// merge returns the union of ranges, in order, without overlaps and without neighbours that touch.
func merge(ranges []Range) []Range {
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	var merged []Range
	for _, r := range sorted {
		if n := len(merged); n > 0 && int(r.First) <= int(merged[n-1].Last)+1 {
			merged[n-1].Last = max(merged[n-1].Last, r.Last)
			continue
		}
		merged = append(merged, r)
	}
	return merged
}
