package api

// OwnPartition is the name of a cluster's own partition of InfiniBand among its private networks: CLUSTER:infiniband.
const OwnPartition = "infiniband"

// TechnologyOf returns what carries a private network of the cluster: its own by the empty name, or a further one. On the technology infiniband the
// own network stays one of tunnels, since InfiniBand carries no Ethernet, and the partition is a further network.
func (s *ClusterSpec) TechnologyOf(network string) Technology {
	switch {
	case network == "" && s.Technology == TechnologyVLAN:
		return TechnologyVLAN
	case network == OwnPartition && s.Technology == TechnologyInfiniBand:
		return TechnologyInfiniBand
	default:
		return TechnologyVXLAN
	}
}

// Title names the network of a group for people.
func (n GroupNetwork) Title() string {
	if n.Name == "" {
		return "the cluster's own network"
	}
	return n.Name
}
