package cli_test

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestTopShowsWhatIsKnownOfEachMember(t *testing.T) {
	f := newFake(t)
	points := []api.UsePoint{{At: t0, MemoryBytes: 1 << 30}}
	for _, cores := range []float64{1, 2, 0} {
		sent := 3 * float64(1<<20)
		points = append(points, api.UsePoint{At: t0, CPUCores: &cores, MemoryBytes: 1 << 30, SentRate: &sent})
	}
	warm, draw := 61.0, 240.0
	f.fixed("GET /v1/clusters/c1/top", api.List[api.MemberTop]{Items: []api.MemberTop{
		{Member: "m-0", Node: "n1", Stack: api.StackContainer, Phase: api.MemberReady, Cores: 2, LimitBytes: 2 << 30, Points: points},
		{Member: "m-1", Node: "n2", Stack: api.StackMetal, Phase: api.MemberReady, Points: []api.UsePoint{}, Sensors: &api.MachineSensors{
			State: api.SensorOK, Sensors: []api.Sensor{{Kind: api.SensorTemperature, Unit: api.UnitCelsius, Value: &warm}, {Kind: api.SensorPower, Unit: api.UnitWatts, Value: &draw}},
		}},
	}})
	has(t, squeezed(f.shell().run(t, "cluster", "top", "c1")), 0, "m-0 n1 ready 0.00 2 1.00 2.00 ·▄█ ", " 1GiB 2GiB 3MiB/s - - - -\n", "m-1 n2 ready - - - - - - - - - - - ok, 61 °C, 240 W\n")
	watts := 12.3456
	points[len(points)-2].PowerWatts, points[len(points)-2].PowerTag = &watts, api.EnergyModelled
	f.fixed("GET /v1/clusters/c2/top", api.List[api.MemberTop]{Items: []api.MemberTop{{Member: "m-0", Points: points}, {Member: "m-1", Points: points[:1]}}})
	has(t, squeezed(f.shell().run(t, "cluster", "top", "c2")), 0, "SENSORS POWER\n", " - 12.3 W modelled\n", " - - - - - -\n")
	has(t, f.shell().run(t, "cluster", "top", "c1", "-o", "json"), 0, `"cpu_cores": 2`, `"sent_bytes_per_second": 3145728`)
}
