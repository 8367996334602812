package agentstream

import (
	"fmt"
	"maps"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestAServerKnowsTheCountersOfItsLastMessage(t *testing.T) {
	count := func(n int64) api.PortCounters { return api.PortCounters{SentBytes: n} }
	var sent, known map[string]api.PortCounters
	for step, now := range []map[string]api.PortCounters{
		{"a": count(1), "b": count(2)}, {"a": count(1), "b": count(3)}, {"b": count(3), "c": count(0)}, {}, {"d": count(9)},
	} {
		c := CountsSince(sent, now)
		if c == nil {
			t.Fatalf("step %d: nothing is sent", step)
		}
		if step == 1 && (c.All || len(c.Changed) != 1 || c.Changed["b"] != count(3)) {
			t.Errorf("a change of one port is sent as %+v", c)
		}
		known = c.Apply(known)
		if !maps.Equal(known, now) {
			t.Errorf("step %d: the server knows %v, want %v", step, known, now)
		}
		sent = now
	}
	if c := CountsSince(sent, maps.Clone(sent)); c != nil {
		t.Errorf("without a change %+v is sent", c)
	}
	if known = CountsSince(nil, map[string]api.PortCounters{}).Apply(known); len(known) != 0 {
		t.Errorf("after a new stream without ports the server knows %v", known)
	}
}

func TestCountersOfTooManyPortsAreNotKept(t *testing.T) {
	c := PortCounts{All: true, Changed: map[string]api.PortCounters{}}
	for i := range MaxCounts + 5 {
		c.Changed[fmt.Sprint(i)] = api.PortCounters{}
	}
	if known := c.Apply(nil); len(known) != MaxCounts {
		t.Errorf("%d ports are kept, want %d", len(known), MaxCounts)
	}
}
