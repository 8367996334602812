package manifest

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
)

// maxServiceLevel is the highest service level of InfiniBand, which has 4 bits.
const maxServiceLevel = 15

// partition checks what only a network on InfiniBand has, and what such a network can't have: no node has a port of its partition, so nothing that
// a node does for a network is done there.
func (n *normalizer) partition(req api.NetworkRequest, src *Source) {
	p := req.Partition
	if req.Technology != api.TechnologyInfiniBand {
		for _, f := range []struct {
			path, value string
			given       bool
		}{
			{"cell", req.Cell, req.Cell != ""},
			{"pkey", api.PKeyText(req.PKey), req.PKey != 0},
			{"partition", "", p != api.Partition{}},
		} {
			if f.given || src.Has(f.path) {
				n.add(f.path, f.value, "is for networks of technology %s only", api.TechnologyInfiniBand)
			}
		}
		return
	}
	for _, f := range []struct {
		path  string
		given bool
	}{
		{"egress", req.Egress}, {"routed", req.Routed}, {"ipv6", req.IPv6}, {"prefix6", req.Prefix6 != ""},
	} {
		if f.given {
			n.add(f.path, "true", "is not possible on InfiniBand: no node has a port of the partition that could route; omit it, or choose technology %s", api.TechnologyVXLAN)
		}
	}
	if req.MTU != 0 || src.Has("mtu") {
		n.add("mtu", strconv.Itoa(req.MTU), "is not possible on InfiniBand: the subnet manager gives the partition its MTU; write partition.mtu_bytes")
	}
	if req.Cell != "" || src.Has("cell") {
		n.label("cell", req.Cell, MaxLabel)
	}
	if problem := api.PKeyProblem(req.PKey); problem != "" && (req.PKey != 0 || src.Has("pkey")) {
		n.add("pkey", api.PKeyText(req.PKey), "%s", problem)
	}
	n.oneAmong("partition.mtu_bytes", "an MTU of partitions in bytes", p.MTUBytes, api.PartitionMTUs())
	n.oneAmong("partition.rate_gbps", "a rate of partitions in Gbit/s", p.RateGbps, api.PartitionRates())
	n.ipoibMode(p)
	n.between("partition.service_level", p.ServiceLevel, 0, maxServiceLevel)
	if !p.IPoIB && (p.MTUBytes != 0 || p.RateGbps != 0) {
		n.add("partition.ipoib", "false", "must be true for an MTU or a rate: both are those of the broadcast group of IP over InfiniBand")
	}
}

// ipoibMode refuses a mode of IP over InfiniBand that does not exist, and one where IP is not carried.
func (n *normalizer) ipoibMode(p api.Partition) {
	modes := []string{string(api.IPoIBDatagram), string(api.IPoIBConnected)}
	switch {
	case p.IPoIBMode == "":
	case !slices.Contains(modes, string(p.IPoIBMode)):
		n.add("partition.ipoib_mode", string(p.IPoIBMode), "%q is not a mode of IP over InfiniBand; %s", p.IPoIBMode, oneOf(string(p.IPoIBMode), modes))
	case !p.IPoIB:
		n.add("partition.ipoib", "false", "must be true for a mode of IP over InfiniBand")
	}
}

// oneAmong refuses a number that is given and is none of those.
func (n *normalizer) oneAmong(path, what string, value int, among []int) {
	if value != 0 && !slices.Contains(among, value) {
		n.add(path, strconv.Itoa(value), "%d is not %s; those are %s", value, what, listed(among))
	}
}

func listed(numbers []int) string {
	text := ""
	for i, number := range numbers {
		switch {
		case i == 0:
		case i == len(numbers)-1:
			text += " and "
		default:
			text += ", "
		}
		text += fmt.Sprint(number)
	}
	return text
}
