package fabric

// Underlay is what the link of a node's data network carries; 0 is not known.
type Underlay struct {
	MTU int
	// BitsPerSecond is what its operator says, or the speed of the link.
	BitsPerSecond int64
	// TrunkMTU is the MTU of the node's trunk in bytes, and TrunkProblem why the trunk can't be used.
	TrunkMTU     int
	TrunkProblem string
}
