package api

import (
	"slices"
	"time"
)

// Size is the part of an assignment that a resize changes: cores, memory and disk of the member's node.
type Size struct {
	// Number names the size among those that the member has had or is to have. The first is 0.
	Number int64 `json:"number,omitempty"`
	// The fields below are those of Assignment.
	Slots        []int         `json:"slots"`
	CPUs         []int         `json:"cpus"`
	NUMANodes    []int         `json:"numa_nodes"`
	Memory       []MemoryClaim `json:"memory"`
	ReserveBytes int64         `json:"reserve_bytes,omitempty"`
	DiskBytes    int64         `json:"disk_bytes,omitempty"`
}

// Resizing is a resize of a member, from the commit that decides it until the member has its new size.
type Resizing struct {
	// From is the size that the member had before, To the size that it is to have. The assignment holds what either of them takes.
	From Size `json:"from"`
	To   Size `json:"to"`
}

// Shape returns the cores, the memory and the disk of a size.
func (s Size) Shape() Shape {
	memory := int64(0)
	for _, m := range s.Memory {
		memory += m.Bytes
	}
	return Shape{Cores: len(s.Slots), Memory: Bytes(memory), Disk: Bytes(s.DiskBytes)}
}

// Same reports whether two sizes take the same of a node, whatever their numbers.
func (s Size) Same(o Size) bool {
	return slices.Equal(s.Slots, o.Slots) && slices.Equal(s.CPUs, o.CPUs) && slices.Equal(s.NUMANodes, o.NUMANodes) && slices.Equal(s.Memory, o.Memory) &&
		s.ReserveBytes == o.ReserveBytes && s.DiskBytes == o.DiskBytes
}

// Held returns what the assignment holds of its node: while a resize is pending, what either size takes.
func (a *Assignment) Held() Size {
	return Size{
		Number: a.SizeNumber, Slots: a.Slots, CPUs: a.CPUs, NUMANodes: a.NUMANodes, Memory: a.Memory, ReserveBytes: a.ReserveBytes, DiskBytes: a.DiskBytes,
	}
}

// Sized returns the assignment with another size, and without a pending resize.
func (a Assignment) Sized(s Size) Assignment {
	a.SizeNumber, a.Slots, a.CPUs, a.NUMANodes, a.Memory, a.ReserveBytes, a.DiskBytes = s.Number, s.Slots, s.CPUs, s.NUMANodes, s.Memory, s.ReserveBytes, s.DiskBytes
	a.Resizing = nil
	return a
}

// Has returns the size that the member has: while a resize is pending, the former one.
func (a *Assignment) Has() Size {
	if a.Resizing != nil {
		return a.Resizing.From
	}
	return a.Held()
}

// Wants returns the size that the member is to have.
func (a *Assignment) Wants() Size {
	if a.Resizing != nil {
		return a.Resizing.To
	}
	return a.Held()
}

// HeldSince returns since when the assignment has held what it holds now.
func (a *Assignment) HeldSince() time.Time {
	if a.SizedAt != nil && a.SizedAt.After(a.TakenAt) {
		return *a.SizedAt
	}
	return a.TakenAt
}
