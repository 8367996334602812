package lvmthin

// Taken is what one logical volume may come to take of a thin pool.
type Taken struct {
	// SizeBytes is its virtual size.
	SizeBytes int64
	// MappedBytes bounds what it has blocks for, shared ones included, where nothing writes to it; 0: all of its size.
	MappedBytes int64
	// Foreign: it belongs to others.
	Foreign bool
}

// Room is a thin pool's room, and the logical volumes in it. Sizes are in bytes.
type Room struct {
	TotalBytes, UsedBytes            int64
	MetadataBytes, MetadataUsedBytes int64
	ChunkBytes, ExtentBytes          int64
	Volumes                          []Taken
}

const (
	// A part of the pool, and some more, is never given out. What is written between making a snapshot and giving it back for want of room comes
	// out of it.
	marginPart  = 64
	marginLeast = 32 << 20
	// The kernel stops all writers when a tenth of the metadata is left, or 16 MiB of it. A part more is kept.
	metadataMarginPart = 8
	// chunkMetadata bounds what the mapping of one chunk takes: half-filled nodes of a B-tree, and the maps of space. Kernel documentation, thin-provisioning.
	chunkMetadata = 48
	// volumeMetadata is for the nodes that each volume has, however small.
	volumeMetadata = 64 << 10
)

// roundUp returns the next multiple of unit.
func roundUp(bytes, unit int64) int64 { return (bytes + unit - 1) / unit * unit }

// sized is what a logical volume of so many bytes takes: whole extents of the volume group, and whole chunks of the pool.
func (r Room) sized(bytes int64) int64 { return roundUp(roundUp(bytes, r.ExtentBytes), r.ChunkBytes) }

// held is the room that a logical volume holds: as much as it may come to take, once it shares nothing any more.
func (r Room) held(t Taken) int64 {
	size := r.sized(t.SizeBytes)
	if t.MappedBytes > 0 {
		return min(size, roundUp(t.MappedBytes, r.ChunkBytes))
	}
	return size
}

// HeldBytes is the room that this pool's own volumes hold.
func (r Room) HeldBytes() (sum int64) {
	for _, t := range r.Volumes {
		if !t.Foreign {
			sum += r.held(t)
		}
	}
	return sum
}

// PromisedBytes is what all logical volumes may come to take, PromisedMetadata what their mappings may.
func (r Room) PromisedBytes() (sum int64) {
	for _, t := range r.Volumes {
		sum += r.held(t)
	}
	return sum
}

// PromisedMetadata is a bound of the metadata of all logical volumes.
func (r Room) PromisedMetadata() (sum int64) {
	for _, t := range r.Volumes {
		sum += volumeMetadata + r.held(t)/r.ChunkBytes*chunkMetadata
	}
	return sum
}

// dataLeft and metadataLeft are below zero where more was promised than there is.
func (r Room) dataLeft() int64 {
	return r.TotalBytes - r.TotalBytes/marginPart - marginLeast - max(r.PromisedBytes(), r.UsedBytes)
}

func (r Room) metadataLeft() int64 {
	return r.MetadataBytes - r.MetadataBytes/metadataMarginPart - max(r.PromisedMetadata(), r.MetadataUsedBytes)
}

// freeBytes is the room for one more logical volume, below zero where there is none.
func (r Room) freeBytes() int64 {
	return min(r.dataLeft(), (r.metadataLeft()-volumeMetadata)/chunkMetadata*r.ChunkBytes)
}

// LeftBytes is a size that there is room for: the largest, where extents and chunks go into each other.
func (r Room) LeftBytes() int64 {
	left := r.freeBytes()
	if unit := max(r.ExtentBytes, r.ChunkBytes); unit%r.ExtentBytes == 0 && unit%r.ChunkBytes == 0 {
		return max(0, left/unit*unit)
	}
	return max(0, (left-r.ChunkBytes)/r.ExtentBytes*r.ExtentBytes)
}

// CapacityBytes is the room for all volumes of this node.
func (r Room) CapacityBytes() int64 { return r.HeldBytes() + r.LeftBytes() }
