package controller

import (
	"net/netip"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// The kernel bounds no member's I/O with a volume of another node. What bounds it is the tunnel between both nodes: as much as all members on the one
// may read from the volumes of the other, or write to them. A volume without a limit there leaves the tunnel without one, since packets don't say
// of which volume they are.

// passage is the way of volumes from the node where they lie to that of members.
type passage struct{ server, client string }

// rate is a sum of limits.
type rate struct {
	bytesPerSecond int64
	// unlimited: a volume without a limit is among them.
	unlimited bool
}

// addRate adds what a member may do with a volume of another node.
func (x *crossing) addRate(a *api.Assignment, claim *api.VolumeClaim) {
	way := passage{server: claim.Node, client: a.Node}
	r := x.rates[way]
	if r == nil {
		r = &rate{}
		x.rates[way] = r
	}
	v := x.in.view.Volume(claim.UID)
	if v == nil || v.Intent.IOBytesPerSecond == 0 {
		r.unlimited = true
		return
	}
	r.bytesPerSecond += v.Intent.IOBytesPerSecond
}

// ratesFrom bounds what a node sends to its peers: what members there read of its volumes, and what its members write to those of the peers.
func (x *crossing) ratesFrom(node string, at map[string]netip.Addr) []volume.PeerRate {
	var all []volume.PeerRate
	for peer, addr := range at {
		reads, writes := x.rates[passage{node, peer}], x.rates[passage{peer, node}]
		var sum rate
		for _, r := range []*rate{reads, writes} {
			if r != nil {
				sum.bytesPerSecond += r.bytesPerSecond
				sum.unlimited = sum.unlimited || r.unlimited
			}
		}
		if sum.bytesPerSecond > 0 && !sum.unlimited {
			all = append(all, volume.PeerRate{Peer: addr, BytesPerSecond: sum.bytesPerSecond})
		}
	}
	slices.SortFunc(all, func(a, b volume.PeerRate) int { return a.Peer.Compare(b.Peer) })
	return all
}
