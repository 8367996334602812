package fabric

// Underlay is what the link of a node's data network carries; 0 is not known.
type Underlay struct {
	MTU int
	// BitsPerSecond is what its operator says, or the speed of the link.
	BitsPerSecond int64
}
