package placement

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// measuredAt is the time of tests of measurements.
var measuredAt = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)

func tripOf(seconds float64, age time.Duration) api.RoundTrip {
	return api.RoundTrip{Seconds: seconds, At: measuredAt.Add(-age)}
}

// sharersOn gives members parts of a GPU, who have had them for a while.
func sharersOn(t *testing.T, v *View, node, gpu string, count int, since time.Duration) {
	t.Helper()
	for i := range count {
		a := api.Assignment{
			ID: "o" + string(rune('0'+i)), Of: "m", Node: node, TakenAt: measuredAt.Add(-since),
			Devices: []api.DeviceClaim{{Class: "gpu", Device: gpu, Way: "remote", Takes: map[string]int64{"remote-mib": 1}}},
		}
		if err := v.Take(a); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFreshMeasurementsDecideWhichGPUAMemberUses(t *testing.T) {
	t.Parallel()
	load := func(busy float64, age time.Duration) map[string]api.GPULoad {
		return map[string]api.GPULoad{"g2": {Busy: busy, At: measuredAt.Add(-age)}}
	}
	trips := func(to string, t api.RoundTrip) map[string]api.RoundTrip { return map[string]api.RoundTrip{to: t} }
	// Without measurements, the GPU of n2 is taken, which is under the member's leaf switch; then that of n3, in its pod.
	for name, c := range map[string]struct {
		measures map[string]api.NodeMeasures
		change   func(*testing.T, *View)
		want     string
		figures  []string
	}{
		"nothing was measured": {nil, nil, "n2", []string{"25us a wait (assumed)", "10 Gbit/s (assumed)", "GPU used by nobody else (assumed)"}},
		"a long way to the nearest": {
			map[string]api.NodeMeasures{"n2": {RoundTrips: trips("n1", tripOf(1e-3, time.Minute))}}, nil, "n3", []string{"35us a wait (assumed)"},
		},
		"the other node measured it": {
			map[string]api.NodeMeasures{"n1": {RoundTrips: trips("n2", tripOf(1e-3, time.Minute))}}, nil, "n3", nil,
		},
		"it was measured long ago": {map[string]api.NodeMeasures{"n2": {RoundTrips: trips("n1", tripOf(1e-3, 2*time.Hour))}}, nil, "n2", []string{"25us a wait (assumed)"}},
		"a short way to the farthest": {
			map[string]api.NodeMeasures{"n4": {RoundTrips: trips("n1", tripOf(5e-6, 90*time.Second))}}, nil, "n4", []string{"13us a wait (round trip of 5us measured 1m30s before)"},
		},
		"somebody else keeps the nearest busy": {map[string]api.NodeMeasures{"n2": {Loads: load(0.9, time.Minute)}}, nil, "n3", nil},
		"it was busy a while ago":              {map[string]api.NodeMeasures{"n2": {Loads: load(0.9, time.Hour)}}, nil, "n2", []string{"GPU used by nobody else (assumed)"}},
		"those who share it are taken to use it": {
			nil, func(t *testing.T, v *View) { sharersOn(t, v, "n2", "g2", 3, time.Hour) }, "n3", nil,
		},
		"those who share it are idle": {
			map[string]api.NodeMeasures{"n2": {Loads: load(0, 10*time.Second)}},
			func(t *testing.T, v *View) { sharersOn(t, v, "n2", "g2", 3, time.Hour) }, "n2",
			[]string{"GPU 0% busy (measured 10s before)"},
		},
		"those who share it came after the measurement": {
			map[string]api.NodeMeasures{"n2": {Loads: load(0, 10*time.Second)}}, func(t *testing.T, v *View) { sharersOn(t, v, "n2", "g2", 3, 20*time.Second) }, "n3", nil,
		},
	} {
		v := withServers(t, nil)
		for node, m := range c.measures {
			v.SetMeasures(node, &m)
		}
		v.SetTime(measuredAt)
		if c.change != nil {
			c.change(t, v)
		}
		chosen, missing := v.Sketch().FitServer("n1", remoteGPUs(1, 1<<30))
		if missing != "" || chosen[0].Node != c.want {
			t.Errorf("%s: got %+v (%s), want %s", name, chosen, missing, c.want)
			continue
		}
		for _, want := range c.figures {
			if got := chosen[0].Claims[0].Figures; !strings.Contains(got, want) {
				t.Errorf("%s: the figures are %q, want %q among them", name, got, want)
			}
		}
	}
}

// A member that runs shares no memory with a server that it gets later.
func TestALaterServerOnTheMembersNodeIsExpectedToBeCalledByTCP(t *testing.T) {
	t.Parallel()
	v := withServers(t, func(g map[string][]api.Device) { g["n1"] = []api.Device{sharedGPU("g1", 2048)} })
	chosen, missing := v.Sketch().FitServer("n1", remoteGPUs(1, 1<<30))
	first, _ := fitOn(t, v, "n1", remoteGPUs(1, 1<<30))
	if missing != "" || first[0].Node != "n1" {
		t.Fatalf("got %+v (%s) and %+v, want the GPU of the member's own node both times", chosen, missing, first)
	}
	later, now := chosen[0].Claims[0], first[0].Claims[0]
	if later.Cost <= now.Cost || !strings.HasPrefix(later.Figures, "TCP on one node, 8us a wait") || !strings.HasPrefix(now.Figures, "shared memory") {
		t.Errorf("a later server is to cost %.2f by %q, one from the beginning %.2f by %q", later.Cost, later.Figures, now.Cost, now.Figures)
	}
}

// What is measured never makes a GPU better than one that nobody uses, nor worse than equal shares with all who have parts of it.
func TestHowMuchSharingCostsIsBounded(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		sharers := random.IntN(9)
		newest := random.IntN(sharers + 1)
		low, high := random.Float64(), random.Float64()
		low, high = min(low, high), max(low, high)
		if random.IntN(4) == 0 {
			low, high = 0, 1
		}
		got, more := sharing(low, true, sharers, newest), sharing(high, true, sharers, newest)
		most := 1 + max(float64(sharers-newest), 1) + busy*float64(newest)
		if got < 1 || more < got || more > most {
			t.Fatalf("%d sharers, of whom %d are new: a load of %v costs %v, of %v %v; want no less than 1, no less for more, and at most %v", sharers, newest, low, got, high, more, most)
		}
		if one := sharing(low, true, sharers+1, newest+1); one <= got {
			t.Fatalf("one more new member of %d costs %v, and without it costs %v", sharers, one, got)
		}
		if got := sharing(0, true, sharers, 0); got != 1 {
			t.Fatalf("%d idle members cost %v", sharers, got)
		}
		if got, want := sharing(high, false, sharers, newest), 1+busy*float64(sharers); got != want {
			t.Fatalf("unmeasured: %v, want %v", got, want)
		}
	}
}

// Looking at the nearest first and stopping early finds what looking at all finds.
func TestNoServerWouldCostLessThanTheChosenOne(t *testing.T) {
	t.Parallel()
	names := []string{"n1", "n2", "n3", "n4", "n5"}
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 1))
		v := withServers(t, func(g map[string][]api.Device) { g["n1"] = []api.Device{sharedGPU("g1", 1024*random.Int64N(3))} })
		surveyed(v, 100e9) // on slower links, copies cost more than any wait, and nothing is skipped
		v.SetTime(measuredAt)
		for _, node := range names {
			m := &api.NodeMeasures{RoundTrips: map[string]api.RoundTrip{}, Loads: map[string]api.GPULoad{}}
			for _, to := range names {
				if random.IntN(2) == 0 {
					m.RoundTrips[to] = tripOf(random.Float64()*1e-4, time.Duration(random.IntN(90))*time.Minute)
				}
			}
			if random.IntN(2) == 0 {
				m.Loads["g"+node[1:]] = api.GPULoad{Busy: random.Float64(), At: measuredAt.Add(-time.Duration(random.IntN(8)) * time.Minute)}
			}
			v.SetMeasures(node, m)
		}
		group := remoteGPUs(1, 1<<30)
		chosen, missing := v.Sketch().FitServer("n1", group)
		c := emptyChooser(v.Sketch(), []api.Group{group})
		c.running = true
		all, least := c.serversFor(group.Devices[0]), 0.0
		for distance := range distances {
			if o := c.best(all.at(&c.s.view, v.ids["n1"], distance), &member{home: v.ids["n1"]}, distance, group.Devices[0]); o != nil && (least == 0 || o.cost < least) {
				least = o.cost
			}
		}
		if missing != "" || chosen[0].Claims[0].Cost != least {
			t.Fatalf("seed %d: chose %+v (%s), and one would cost %v", seed, chosen, missing, least)
		}
	}
}
