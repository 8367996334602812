package reflink

// Taken is the room that one image takes.
type Taken struct {
	// SizeBytes bounds the image, AllocatedBytes is what it has blocks for, shared ones included.
	SizeBytes, AllocatedBytes int64
	// Snapshot: nothing writes to it, so that it never takes more than it has.
	Snapshot bool
	// SharedBytes is how much of a volume was shared with its origin when it was made.
	SharedBytes int64
}

// Room is a file system's room, and the images on it.
type Room struct {
	TotalBytes, FreeBytes int64
	// Alone: nothing but images is on the file system.
	Alone  bool
	Images []Taken
}

// A part of a file system, and some more, is left to its own structures, which grow with the number of extents, and to delayed freeing. A new
// XFS takes 36 MiB of 576 MiB, and 7.2 GiB of 1 TiB.
const (
	marginPart  = 32
	marginLeast = 32 << 20
)

// heldBytes is the room that an image holds: as much as it may come to take, once nothing of it is shared any more. What the file system
// itself takes for it, which counts as allocated too, is in the margin.
func (t Taken) heldBytes() int64 {
	if t.Snapshot {
		return min(t.AllocatedBytes, t.SizeBytes)
	}
	return t.SizeBytes
}

// HeldBytes is the room that images hold.
func (r Room) HeldBytes() (sum int64) {
	for _, i := range r.Images {
		sum += i.heldBytes()
	}
	return sum
}

// owedBytes is a bound of what the images may still take of the free room. A block that several images share may be copied for all but one.
func (r Room) owedBytes() (sum int64) {
	for _, i := range r.Images {
		if i.Snapshot {
			sum += i.heldBytes()
		} else {
			sum += i.SharedBytes + max(0, i.SizeBytes-i.AllocatedBytes)
		}
	}
	return sum
}

// LeftBytes is the room for more images.
func (r Room) LeftBytes() int64 {
	margin := r.TotalBytes/marginPart + marginLeast
	if r.Alone {
		return max(0, r.TotalBytes-margin-r.HeldBytes())
	}
	return max(0, r.FreeBytes-margin-r.owedBytes())
}

// CapacityBytes is the room for all images.
func (r Room) CapacityBytes() int64 { return r.HeldBytes() + r.LeftBytes() }
