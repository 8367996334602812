// Package pool hands out numbers, each to one owner at a time: network indexes, addresses, VNIs, VLANs, pkeys, GUIDs, ranges of user IDs.
//
// It is pure: a pool is made of what is stored, for one decision, and what it gives out is true once that is committed. A number is its
// owner's until the owner is fenced, which only the caller can know: powered off, or its port removed and read back. An owner that ends,
// is released or is not heard of keeps its numbers, so there is no other way to give one back than Fence. It must never guess that
// a number is free. Start with Pool here; subnets.go cuts address ranges into numbered blocks.
package pool

import "slices"

// Number is what a pool can hand out.
type Number interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// Pool is a range of numbers with their owners.
type Pool[N Number] struct {
	first, last N
	// holders are the owners of numbers that are not free. More than one have a number when what is stored says so.
	holders map[N][]string
	// lowest has no free number below it.
	lowest N
}

// New returns a pool of the numbers from first to last, all of them free. There are none when last is less than first.
func New[N Number](first, last N) *Pool[N] {
	return &Pool[N]{first: first, last: last, lowest: first, holders: map[N][]string{}}
}

// Hold notes that an owner has a number, and reports whether no other owner has it. If one does, the number is free only when both are
// fenced. Numbers outside the range can be held: a pool may have been larger once.
func (p *Pool[N]) Hold(n N, owner string) bool {
	owners := p.holders[n]
	if !slices.Contains(owners, owner) {
		owners = append(owners, owner)
		p.holders[n] = owners
	}
	return len(owners) == 1
}

// Fence frees the numbers of an owner that can't use them any more.
func (p *Pool[N]) Fence(owner string) {
	for n, owners := range p.holders {
		others := slices.DeleteFunc(owners, func(o string) bool { return o == owner })
		if len(others) > 0 {
			p.holders[n] = others
			continue
		}
		delete(p.holders, n)
		if n >= p.first {
			p.lowest = min(p.lowest, n)
		}
	}
}

// Holds reports whether a number has an owner.
func (p *Pool[N]) Holds(n N) bool { return len(p.holders[n]) > 0 }

// Lowest returns the lowest free number, and leaves it free. It reports false when there is none.
func (p *Pool[N]) Lowest() (N, bool) {
	for p.lowest <= p.last {
		if !p.Holds(p.lowest) {
			return p.lowest, true
		}
		if p.lowest == p.last {
			break // one more could be no number of this type
		}
		p.lowest++
	}
	return 0, false
}

// Take gives the lowest free number to an owner. It reports false when there is none.
func (p *Pool[N]) Take(owner string) (N, bool) {
	n, ok := p.Lowest()
	if ok {
		p.Hold(n, owner)
	}
	return n, ok
}
