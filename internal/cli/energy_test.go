package cli_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func TestEnergyShowsWhatIsKnownAndWhyTheRestIsNot(t *testing.T) {
	f := newFake(t)
	amount := func(joules float64) *api.EnergyAmount {
		return &api.EnergyAmount{MeasuredMicrojoules: int64(joules * 1e6)}
	}
	watts := 212.04
	f.fixed("GET /v1/energy", api.EnergyReport{
		From: t0, To: t0.Add(time.Hour),
		Nodes: []api.NodeEnergy{
			{
				Node: "n1", EnergyReading: api.EnergyReading{Source: api.EnergyRAPL, Tag: api.EnergyMeasured, Watts: &watts},
				Counter: amount(763_144), Clusters: amount(512_400), Idle: amount(250_744), Unattributed: amount(0),
			},
			{Node: "n2", EnergyReading: api.EnergyReading{Tag: api.EnergyUnavailable, Reason: "rapl: no counters"}},
		},
		Clusters: []api.ClusterEnergy{
			{Cluster: "cfd", User: "ann", EnergyAmount: *amount(12.5), KnownMemberSeconds: 900},
			{Cluster: "cfd", User: "ann", Job: "j1", EnergyAmount: api.EnergyAmount{ModelledMicrojoules: 5e6}, KnownMemberSeconds: 3600},
		},
	})
	a := squeezed(f.shell().run(t, "energy"))
	has(t, a, 0, "n1 212.0 W rapl measured 763.1 kJ 512.4 kJ 250.7 kJ 0 J -\n", "n2 - - unavailable - - - - rapl: no counters\n", "cfd ann - 12.5 J measured 0.25\n", "cfd ann j1 5 J modelled 1.00\n")
	has(t, f.shell().run(t, "energy", "-o", "json"), 0, `"measured_microjoules": 763144000000`, `"reason": "rapl: no counters"`)
	has(t, f.shell().run(t, "energy", "--hours", "0"), 2, "give 1 to 1440")
}

func TestUsageShowsEnergyOnlyWhereItIsKnownAndHowMuchOfTheTime(t *testing.T) {
	f := newFake(t)
	row := func(cluster string, e *api.EnergyUse) api.UsageRow {
		return api.UsageRow{From: t0, To: t0.Add(time.Hour), Project: "default", User: "ann", Cluster: cluster, Amount: api.Amount{MemberSeconds: 1000}, Energy: e}
	}
	f.fixed("GET /v1/usage", api.UsageReport{Rows: []api.UsageRow{
		row("whole", &api.EnergyUse{EnergyJoules: api.EnergyJoules{MeasuredJoules: 50}, KnownMemberSeconds: 1000}),
		row("half", &api.EnergyUse{EnergyJoules: api.EnergyJoules{ModelledJoules: 20}, KnownMemberSeconds: 500}), row("none", nil),
	}, Site: []api.SiteUsage{{From: t0, To: t0.Add(time.Hour), Capacity: api.Amount{CoreSeconds: 1}, Idle: api.Amount{CoreSeconds: 1}, Energy: &api.SiteEnergy{
		Counter: api.EnergyJoules{MeasuredJoules: 100}, Clusters: api.EnergyJoules{MeasuredJoules: 70}, Idle: api.EnergyJoules{MeasuredJoules: 30}, KnownNodeSeconds: 3600,
	}}}})
	a := squeezed(f.shell().run(t, "usage", "--by", "cluster"))
	has(t, a, 0, "ENERGY\n", " 50 J\n", " 20 J modelled (50% of the time)\n", " 70 J measured and modelled (50% of the time)\n", " 100 J 70 J 30 J 0 J 1.00 0\n")
	for line := range strings.Lines(a.out) {
		if strings.Contains(line, " none ") && !strings.HasSuffix(line, " -\n") {
			t.Errorf("a cluster of which nothing is known has %q", line)
		}
	}
}
