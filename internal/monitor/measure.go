package monitor

import (
	"context"
	"errors"
	"math"
	"net/netip"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// measureLimits allow one question at a time: a node measures for one leader.
func measureLimits() limits {
	return limits{patience: 30 * time.Second, most: 1, busy: "its agent is already measuring"}
}

// longestRoundTrip bounds what is believed of a round trip, in seconds: the agent waits no longer for one.
const longestRoundTrip = 10

// Measure asks a node's agent how busy the GPUs are that it hands out, what its servers did, and how far it is to these peers. Only what was asked for and
// can be is returned.
func (m *Monitor) Measure(ctx context.Context, nodeName string, peers []netip.Addr) (agentstream.Measured, error) {
	if m.cfg.IsMember != nil && m.cfg.IsMember(nodeName) {
		return agentstream.Measured{}, errors.New("the node is a member's, whose word is not taken")
	}
	said, err := ask(ctx, m, nodeName, func(s *stream) *questions[agentstream.Measured] { return &s.measures }, func(id int64) agentstream.Down {
		return agentstream.Down{Measure: &agentstream.Measure{ID: id, Peers: peers}}
	})
	if err != nil {
		return agentstream.Measured{}, err
	}
	return m.fitMeasured(nodeName, peers, said), nil
}

// fitMeasured keeps what an agent can have measured: of the peers that it was asked about, of a few GPUs, and of assignments on its node.
func (m *Monitor) fitMeasured(nodeName string, peers []netip.Addr, said agentstream.Measured) agentstream.Measured {
	fit := agentstream.Measured{Loads: map[string]float64{}, RoundTrips: map[netip.Addr]float64{}, Served: map[string]api.GPUService{}}
	for id, busy := range said.Loads {
		if busy >= 0 && busy <= 1 && len(fit.Loads) < mostLoads && len(id) <= longestID {
			fit.Loads[id] = busy
		}
	}
	for _, peer := range peers {
		if seconds, ok := said.RoundTrips[peer]; ok && seconds > 0 && seconds <= longestRoundTrip {
			fit.RoundTrips[peer] = seconds
		}
	}
	for id, s := range said.Served {
		if _, here := m.MemberState(nodeName, id); here && sensibleService(s) {
			fit.Served[id] = s
		}
	}
	return fit
}

// mostLoads and longestID, in bytes, bound what is taken of GPUs: no node has as many.
const (
	mostLoads = 64
	longestID = 256
)

// sensibleService refuses numbers that no server can have counted.
func sensibleService(s api.GPUService) bool {
	seconds := func(n float64) bool { return n >= 0 && !math.IsInf(n, 0) }
	return s.Waits >= 0 && s.Calls >= s.Waits && seconds(s.BusySeconds) && seconds(s.WaitSeconds)
}
