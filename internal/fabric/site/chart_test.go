package site

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/topology"
)

// surveyed is a fabric of one switch with two hosts, at which tests turn.
type surveyed struct {
	errors int64
	err    error
	hosts  int
}

func (s *surveyed) Survey(context.Context) (topology.Reading, error) {
	t := api.FabricTopology{Technology: api.FabricInfiniBand, Switches: []api.FabricSwitch{{ID: "s", Name: "s"}}}
	for i := range s.hosts {
		id := string(rune('a' + i))
		t.Hosts = append(t.Hosts, api.FabricHost{ID: id, Name: id})
		t.Links = append(t.Links, api.FabricLink{From: api.FabricEnd{ID: "s", Name: "s", Port: id}, To: api.FabricEnd{ID: id, Name: id, Host: true, Port: "1"}})
	}
	return topology.Reading{Topology: t, Counters: topology.Counters{{GUID: "s", Port: "a"}: {"SymbolErrorCounter": s.errors}}}, s.err
}

func TestAChartChangesWithTheFabricAndItsFaultsAndNotWithCounters(t *testing.T) {
	t.Parallel()
	fabric, now := &surveyed{hosts: 2}, time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	c := NewChart(fabric, func() time.Time { return now }, slog.New(slog.DiscardHandler))
	for _, step := range []struct {
		name     string
		change   func()
		revision int64
		faults   int
		problem  bool
	}{
		{"the first survey", func() {}, 1, 0, false},
		{"a few errors", func() { fabric.errors = 3 }, 1, 0, false},
		{"many errors", func() { fabric.errors = 60 }, 2, 1, false},
		{"many more errors", func() { fabric.errors = 600 }, 2, 1, false},
		{"a survey that fails", func() { fabric.err = errors.New("no subnet manager") }, 2, 1, true},
		{"a host that is gone", func() { fabric.err, fabric.hosts = nil, 1 }, 3, 1, false},
		{"ten quiet minutes", func() { now = now.Add(10 * time.Minute) }, 4, 0, false},
	} {
		step.change()
		now = now.Add(time.Minute)
		c.Survey(t.Context())
		got := c.Get()
		if got.Revision != step.revision || len(got.Faults) != step.faults || (got.Problem != "") != step.problem {
			t.Errorf("%s: revision %d, faults %v, problem %q; want revision %d, %d faults, problem %t", step.name, got.Revision, got.Faults, got.Problem, step.revision, step.faults, step.problem)
		}
		if got.Topology == nil {
			t.Fatalf("%s: the topology is forgotten", step.name)
		}
	}
}

func TestAChartOfNoSurveyorKnowsNothing(t *testing.T) {
	t.Parallel()
	var c *Chart
	if got := c.Get(); got.Topology != nil || got.Revision != 0 {
		t.Errorf("got %+v", got)
	}
}
