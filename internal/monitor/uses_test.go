package monitor

import (
	"math"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

func TestUseIsShownAsRatesAndWhatIsNotKnownIsOmitted(t *testing.T) {
	m, now := clocked(t)
	s := connected(t, m, "first")
	m.observe("n1", s, agentstream.Observed{Members: []agentstream.MemberObserved{{ID: "c.m-0.1", Phase: api.MemberReady}}})
	read := func(cpu float64, written, sent int64) {
		m.count("n1", s, &agentstream.PortCounts{Changed: map[string]api.PortCounters{"c.m-0.1": {SentBytes: sent}, "c.m-0.1+1": {SentBytes: sent}, "c.m-0.10": {SentBytes: 1 << 40}}})
		m.takeUses("n1", s, map[string]api.MemberUse{"c.m-0.1": {CPUSeconds: cpu, MemoryBytes: 100, DiskWrittenBytes: &written}, "other": {CPUSeconds: 1}})
		*now = now.Add(5 * time.Second)
	}
	read(10, 1000, 0)
	read(20, 2000, 500)
	read(1, 0, 1000) // it started anew
	points := m.UsesOf("n1", "c.m-0.1")
	if len(points) != 3 || points[0].CPUCores != nil || points[0].MemoryBytes != 100 {
		t.Fatalf("got %+v; want three points, the first without rates", points)
	}
	if p := points[1]; *p.CPUCores != 2 || *p.DiskWrittenRate != 200 || *p.SentRate != 200 || p.DiskReadRate != nil {
		t.Errorf("the second point is %+v; want 2 cores, 200 bytes per second written and sent, and no word on reading", p)
	}
	if p := points[2]; p.CPUCores != nil || p.DiskWrittenRate != nil {
		t.Errorf("after it started anew: %+v", p)
	}
	for range 2 * usePoints {
		read(1, 0, 1000)
	}
	if n := len(m.UsesOf("n1", "c.m-0.1")); n != usePoints {
		t.Errorf("%d points are kept, want %d", n, usePoints)
	}
}

func TestAnAgentIsBelievedAboutTheUseOfItsOwnMembersAlone(t *testing.T) {
	m, _ := clocked(t)
	s := connected(t, m, "first")
	m.observe("n1", s, agentstream.Observed{Members: []agentstream.MemberObserved{{ID: "mine", Phase: api.MemberReady}}})
	m.takeUses("n1", s, map[string]api.MemberUse{"mine": {CPUSeconds: math.Inf(1)}, "another": {CPUSeconds: 1}})
	if got := len(m.UsesOf("n1", "mine")) + len(m.UsesOf("n1", "another")) + len(m.UsesOf("n2", "mine")); got > 0 {
		t.Errorf("%d points were taken, want none", got)
	}
	m.takeUses("n1", s, map[string]api.MemberUse{"mine": {CPUSeconds: 1}})
	m.observe("n1", s, agentstream.Observed{})
	m.takeUses("n1", s, map[string]api.MemberUse{"mine": {CPUSeconds: 2}})
	if got := m.UsesOf("n1", "mine"); len(got) > 0 {
		t.Errorf("a member that is gone has %d points", len(got))
	}
}
