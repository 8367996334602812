package monitor

import (
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

func TestOfWhatAnAgentMeasuresOnlyWhatCanBeIsTaken(t *testing.T) {
	m := New(Config{Now: time.Now})
	s := &stream{}
	m.node("n1").stream = s
	m.observe("n1", s, agentstream.Observed{Members: []agentstream.MemberObserved{{ID: "mine", Phase: api.MemberReady}}})
	asked, other := netip.MustParseAddr("198.18.0.2"), netip.MustParseAddr("198.18.0.3")
	good := api.GPUService{Calls: 5, Waits: 2, BusySeconds: 1, WaitSeconds: 1e-5}
	said := agentstream.Measured{
		Loads:      map[string]float64{"g": 0.5, "over": 1.5, "under": -1, "nan": math.NaN(), strings.Repeat("x", 300): 0.5},
		RoundTrips: map[netip.Addr]float64{asked: 2e-5, other: 2e-5},
		Served:     map[string]api.GPUService{"mine": good, "another": good},
	}
	got := m.fitMeasured("n1", []netip.Addr{asked}, said)
	if len(got.Loads) != 1 || got.Loads["g"] != 0.5 || len(got.RoundTrips) != 1 || got.RoundTrips[asked] != 2e-5 || len(got.Served) != 1 || got.Served["mine"] != good {
		t.Errorf("taken is %+v, want the load of g, the round trip that was asked for, and what the server on this node did", got)
	}
	for _, trip := range []float64{0, -1, 11, math.NaN(), math.Inf(1)} {
		if got := m.fitMeasured("n1", []netip.Addr{asked}, agentstream.Measured{RoundTrips: map[netip.Addr]float64{asked: trip}}); len(got.RoundTrips) > 0 {
			t.Errorf("a round trip of %v s is believed", trip)
		}
	}
	for _, bad := range []api.GPUService{{Calls: -1, Waits: -1}, {Calls: 1, Waits: 2}, {BusySeconds: -1}, {BusySeconds: math.NaN()}, {WaitSeconds: math.Inf(1)}} {
		if got := m.fitMeasured("n1", nil, agentstream.Measured{Served: map[string]api.GPUService{"mine": bad}}); len(got.Served) > 0 {
			t.Errorf("%+v is believed", bad)
		}
	}
}
