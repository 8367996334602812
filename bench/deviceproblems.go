package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
)

// deviceProblem is requests for parts of a machine's devices, in words that each side can put into its own. Each request is for one part.
type deviceProblem struct {
	Name    string                      `json:"name"`
	Devices []problemDevice             `json:"devices"`
	Ways    map[string]map[string]int64 `json:"ways"`
	// Apart, if not "", is a counter of which each device has one and each way takes one, so that no two parts are of one device. A side that has a
	// word for that uses it.
	Apart    string           `json:"apart,omitempty"`
	Requests []problemRequest `json:"requests"`
	// Fits says whether there is an answer; nil: the sides are to agree on it.
	Fits *bool `json:"-"`
}

// problemDevice is a device with counters, and the ways in which it can be handed out.
type problemDevice struct {
	ID   string           `json:"id"`
	Has  map[string]int64 `json:"has"`
	Ways []string         `json:"ways"`
}

// problemRequest asks for one part, of any device that has the way but those in Not.
type problemRequest struct {
	Way string   `json:"way"`
	Not []string `json:"not,omitempty"`
}

// The outcomes of an attempt.
const (
	outcomePlaced  = "placed"
	outcomeRefused = "refused"
	outcomeGaveUp  = "gave up"
)

// deviceAnswer is what a side answers.
type deviceAnswer struct {
	Outcome string `json:"outcome"`
	// Chosen is the device of each request.
	Chosen  []string `json:"chosen"`
	Seconds float64  `json:"seconds"`
	// Answers is how many arrangements were given.
	Answers int `json:"answers"`
}

// check returns what is wrong with an answer: a request without a device that suits it, or a counter that is exceeded.
func (p deviceProblem) check(a deviceAnswer) error {
	switch a.Outcome {
	case outcomeGaveUp:
		return nil
	case outcomeRefused:
		if p.Fits != nil && *p.Fits {
			return fmt.Errorf("%s: refused, although there is an answer", p.Name)
		}
		return nil
	case outcomePlaced:
	default:
		return fmt.Errorf("%s: %q is no outcome", p.Name, a.Outcome)
	}
	if len(a.Chosen) != len(p.Requests) {
		return fmt.Errorf("%s: %d devices were chosen for %d requests", p.Name, len(a.Chosen), len(p.Requests))
	}
	left := map[string]map[string]int64{}
	devices := map[string]problemDevice{}
	for _, d := range p.Devices {
		left[d.ID], devices[d.ID] = maps.Clone(d.Has), d
	}
	for i, r := range p.Requests {
		d, ok := devices[a.Chosen[i]]
		if !ok || !slices.Contains(d.Ways, r.Way) || slices.Contains(r.Not, d.ID) {
			return fmt.Errorf("%s: device %q does not suit request %d", p.Name, a.Chosen[i], i)
		}
		for counter, n := range p.Ways[r.Way] {
			if left[d.ID][counter] -= n; left[d.ID][counter] < 0 {
				return fmt.Errorf("%s: counter %q of device %s is exceeded by request %d", p.Name, counter, d.ID, i)
			}
		}
	}
	return nil
}

// devicesAlike are n devices with the same counters and ways.
func devicesAlike(n int, has map[string]int64, ways ...string) []problemDevice {
	devices := make([]problemDevice, n)
	for i := range devices {
		devices[i] = problemDevice{ID: fmt.Sprint("d", i), Has: has, Ways: ways}
	}
	return devices
}

// requestsFor asks for one part in each way, in this order.
func requestsFor(ways ...string) []problemRequest {
	requests := make([]problemRequest, len(ways))
	for i, way := range ways {
		requests[i].Way = way
	}
	return requests
}

// deviceProblems are those that have a row each. Functions are the worst case of a side that lists arrangements, and refusals that of a side that tries them.
func deviceProblems() []deviceProblem {
	yes, no := true, false
	gpu, function := map[string]int64{"slices": 7, "memory": 8}, map[string]int64{"vf": 8}
	slicesOf := map[string]map[string]int64{
		"whole": {"slices": 7, "memory": 8}, "4g": {"slices": 4, "memory": 4}, "3g": {"slices": 3, "memory": 4},
		"2g": {"slices": 2, "memory": 2}, "1g": {"slices": 1, "memory": 1},
	}
	gpuWays := []string{"whole", "4g", "3g", "2g", "1g"}
	whole := map[string]map[string]int64{"whole": {"unit": 1}}
	vf, apart := map[string]map[string]int64{"vf": {"vf": 1}}, map[string]map[string]int64{"vf": {"vf": 1, "apart": 1}}
	unlike := func(n, asked int) deviceProblem {
		p := deviceProblem{Ways: whole, Devices: devicesAlike(n, map[string]int64{"unit": 1}, "whole"), Requests: requestsFor(slices.Repeat([]string{"whole"}, asked)...)}
		for i := range p.Requests {
			p.Requests[i].Not = []string{fmt.Sprint("d", i)}
		}
		return p
	}
	fitting, short := unlike(8, 8), unlike(7, 8)
	fitting.Name, fitting.Fits = "8 whole devices, each but one suits a request", &yes
	short.Name, short.Fits = "the same with 7 devices", &no
	return []deviceProblem{
		{Name: "1 function of 1 adapter", Fits: &yes, Ways: vf, Devices: devicesAlike(1, function, "vf"), Requests: requestsFor("vf")},
		{Name: "8 whole devices", Fits: &yes, Ways: whole, Devices: devicesAlike(8, map[string]int64{"unit": 1}, "whole"), Requests: requestsFor(slices.Repeat([]string{"whole"}, 8)...)},
		{Name: "8 whole devices of 7", Fits: &no, Ways: whole, Devices: devicesAlike(7, map[string]int64{"unit": 1}, "whole"), Requests: requestsFor(slices.Repeat([]string{"whole"}, 8)...)},
		fitting,
		short,
		{Name: "8 functions of 8 adapters with 8 each", Fits: &yes, Ways: vf, Devices: devicesAlike(8, function, "vf"), Requests: requestsFor(slices.Repeat([]string{"vf"}, 8)...)},
		{
			Name: "the same, each of an adapter of its own", Fits: &yes, Ways: apart, Apart: "apart", Devices: devicesAlike(8, map[string]int64{"vf": 8, "apart": 1}, "vf"),
			Requests: requestsFor(slices.Repeat([]string{"vf"}, 8)...),
		},
		{Name: "8 slices of 8 GPUs, mixed sizes", Fits: &yes, Ways: slicesOf, Devices: devicesAlike(8, gpu, gpuWays...), Requests: requestsFor("3g", "1g", "whole", "4g", "2g", "3g", "whole", "1g")},
		{Name: "8 slices that fill 4 GPUs", Fits: &yes, Ways: slicesOf, Devices: devicesAlike(4, gpu, gpuWays...), Requests: requestsFor("3g", "3g", "3g", "3g", "4g", "4g", "4g", "4g")},
		{Name: "8 slices that are more than 3 GPUs hold", Fits: &no, Ways: slicesOf, Devices: devicesAlike(3, gpu, gpuWays...), Requests: requestsFor("1g", "1g", "3g", "3g", "3g", "3g", "4g", "4g")},
		{Name: "8 slices of 8 GPUs, of which one is too small", Fits: &no, Ways: slicesOf, Devices: append(devicesAlike(7, gpu, gpuWays...), problemDevice{ID: "d7", Has: map[string]int64{"slices": 3, "memory": 4}, Ways: gpuWays}), Requests: requestsFor(slices.Repeat([]string{"4g"}, 8)...)},
	}
}

// randomDeviceProblem makes a problem of 8 devices and some requests of mixed sizes. About half of those with 8 have no answer. The same seed makes the
// same problem.
func randomDeviceProblem(seed uint64, requests int) deviceProblem {
	const devices = 8
	rng := rand.New(rand.NewPCG(seed, 0))
	p := deviceProblem{Name: fmt.Sprintf("random %d of %d", seed, requests), Ways: map[string]map[string]int64{}}
	var ways []string
	counters := 1 + rng.IntN(3)
	for w := range 1 + rng.IntN(5) {
		takes := map[string]int64{}
		for c := range counters {
			if c == 0 || rng.IntN(3) > 0 {
				takes[fmt.Sprint("c", c)] = int64(1 + rng.IntN(12))
			}
		}
		ways = append(ways, fmt.Sprint("w", w))
		p.Ways[ways[w]] = takes
	}
	kinds := make([]problemDevice, 1+rng.IntN(devices))
	for k := range kinds {
		kinds[k].Has, kinds[k].Ways = map[string]int64{}, []string{}
		for c := range counters {
			kinds[k].Has[fmt.Sprint("c", c)] = int64(6 + rng.IntN(14))
		}
		for _, way := range ways {
			if rng.IntN(5) > 0 {
				kinds[k].Ways = append(kinds[k].Ways, way)
			}
		}
	}
	for d := range devices {
		of := kinds[rng.IntN(len(kinds))]
		of.ID = fmt.Sprint("d", d)
		p.Devices = append(p.Devices, of)
	}
	for range requests {
		r := problemRequest{Way: ways[rng.IntN(len(ways))]}
		for d := range devices {
			if rng.IntN(4) == 0 {
				r.Not = append(r.Not, fmt.Sprint("d", d))
			}
		}
		p.Requests = append(p.Requests, r)
	}
	return p
}
