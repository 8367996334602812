package securitygroup

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// Addresses is a range of IPv4 addresses. Both ends belong to it.
type Addresses struct{ First, Last uint32 }

// Box allows packets of one protocol by ranges: of addresses of the other end, and of ports or ICMP types.
type Box struct {
	Addresses Addresses
	Protocol  uint8
	Ports     Range
}

// Boxes returns the union of rules by prefix for single protocols in one direction, as boxes that don't overlap, in order. Rules for Any and
// rules by group are omitted.
func Boxes(rules []Rule, direction Direction) []Box {
	byProtocol := map[uint8][]Rule{}
	for _, r := range rules {
		if number, one := r.Protocol.Number(); one && r.Direction == direction && r.Group == "" {
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
		return cmp.Or(cmp.Compare(a.Addresses.First, b.Addresses.First), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Ports.First, b.Ports.First))
	})
	return boxes
}

// Anything returns the ranges of addresses from which rules for Any by prefix allow all packets. The ranges don't overlap or touch.
func Anything(rules []Rule, direction Direction) []Addresses {
	var some []Rule
	for _, r := range rules {
		if r.Protocol == Any && r.Direction == direction && r.Group == "" {
			some = append(some, r)
		}
	}
	var ranges []Addresses
	for _, p := range pieces(some) {
		if n := len(ranges); n > 0 && ranges[n-1].Last+1 == p.addresses.First {
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
	next := uint64(0) // the first address that is in no piece yet
	cut := func(until uint64) {
		if len(open) == 0 || next >= until {
			return
		}
		p := piece{addresses: Addresses{uint32(next), uint32(until - 1)}}
		for _, r := range open {
			p.ports = append(p.ports, r.Ports)
		}
		all = append(all, p)
		next = until
	}
	closeBefore := func(at uint64) {
		for len(open) > 0 && end(open[len(open)-1].Prefix) <= at {
			cut(end(open[len(open)-1].Prefix))
			open = open[:len(open)-1]
		}
	}
	for _, r := range sorted {
		first := begin(r.Prefix)
		closeBefore(first)
		cut(first)
		next = first
		open = append(open, r)
	}
	closeBefore(1 << 32)
	return all
}

func begin(p netip.Prefix) uint64 {
	a := p.Addr().As4()
	return uint64(binary.BigEndian.Uint32(a[:]))
}

// end returns the number after the prefix's last address.
func end(p netip.Prefix) uint64 { return begin(p) + 1<<(32-p.Bits()) }

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
