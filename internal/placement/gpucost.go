package placement

import (
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// What a server costs is expected by an average kernel: how often its calls wait for an answer, and how much it copies. The numbers are medians of the eight
// kernels on an H200 (docs/results/gpu-remote-h200.md), of the size that a study published: 5 ms of work, some 22 MiB of copies and ten calls that wait.
// What the expectation was stays with the claim, so that it can be compared with what is measured later. Round trips and loads are measured ones where
// these are fresh (package gpumeasure), else assumed.
const (
	kernelSeconds = 5e-3
	kernelBytes   = 22 << 20
	kernelWaits   = 10
)

// waitSeconds is what a call waits longer than locally, by the distance of the server: the two processes' own part, as measured, and what switches add.
var waitSeconds = [...]float64{sameNode: 1.5e-6, sameLeaf: 25e-6, samePod: 35e-6, elsewhere: 60e-6}

const (
	// memoryRate is how fast copies cross memory that client and server share, beyond what the copy to the GPU takes; tcpRate is that of streams by TCP on a
	// network that is no limit. Both are as measured, in bytes a second. unknownRate is that of a link whose rate nobody knows, in bits a second.
	memoryRate  = 90e9
	tcpRate     = 7e9
	unknownRate = 10e9
	// tcpWait is the two processes' own part of a wait by TCP, as measured over a loopback interface. A round trip that was measured comes on top.
	tcpWait = 8.4e-6
	// busy is the part of the time in which another member of a GPU is taken to use it, of whom nothing was measured yet.
	busy = 0.5
	// freshTrip and freshLoad are how old measurements may be that a choice rests on. Networks stay as they are, and programs don't.
	freshTrip = time.Hour
	freshLoad = 5 * time.Minute
	// loadInterval is how long before its time a load was measured, at least in part: members that came later did not count fully.
	loadInterval = time.Minute
)

// serverWay is what lies between a member and a server, as far as it is known.
type serverWay struct {
	distance int
	// tcp: they call by TCP, on one node, too.
	tcp bool
	// rate is that of the links between, in bits a second.
	rate int64
	// trip is the round trip between their nodes, in seconds; 0: none was measured lately.
	trip float64
	// share is how many times as long as alone programs take on the GPU, because others use it.
	share float64
}

// wait is what a call waits longer than locally, in seconds.
func (w serverWay) wait() float64 {
	switch {
	case w.distance == sameNode && w.tcp:
		return tcpWait
	case w.distance != sameNode && w.trip > 0:
		return tcpWait + w.trip
	default:
		return waitSeconds[w.distance]
	}
}

// cost is how many times as long as on a local GPU an average kernel takes by a server.
func (w serverWay) cost() float64 {
	copies := memoryRate
	switch {
	case w.distance != sameNode:
		copies = min(tcpRate, float64(w.rate)/8)
	case w.tcp:
		copies = tcpRate
	}
	return (1 + (kernelWaits*w.wait()+kernelBytes/copies)/kernelSeconds) * w.share
}

// sharing is how many times as long as alone a program takes on a GPU that others have parts of: on average, the GPU is busy with them for a part of the
// time, and programs that wait for each other get equal shares, so it is never worse than one more of them. Where the load was measured, it is that of
// all but the newest of them.
func sharing(load float64, measured bool, sharers, newest int) float64 {
	if !measured {
		return 1 + busy*float64(sharers)
	}
	most := 1 + max(float64(sharers-newest), 1) // somebody else may use it, too
	return min(1/max(1-load, 1/most), most) + busy*float64(newest)
}

// leastCost is what no server at a distance costs less than. trip is the shortest round trip that was measured at that distance, 0 for none.
func leastCost(distance int, trip float64) float64 {
	least := serverWay{distance: distance, rate: 1 << 62, share: 1}.cost()
	if trip > 0 {
		least = min(least, serverWay{distance: distance, rate: 1 << 62, share: 1, trip: trip}.cost())
	}
	return least
}

// linkRate is the rate of a node's fastest link to an Ethernet fabric, which its underlay is taken to be on, and whether a survey told it.
func (v *View) linkRate(id int32) (rate int64, surveyed bool) {
	for _, c := range v.platforms.values[v.rows[id].platform].connected {
		if c.Technology == api.FabricEthernet {
			rate = max(rate, c.RateBitsPerSecond)
		}
	}
	if rate == 0 {
		return unknownRate, false
	}
	return rate, true
}

// SetMeasures notes what was measured of a node that hands out GPUs; nil: nothing was.
func (v *View) SetMeasures(node string, m *api.NodeMeasures) {
	if m == nil {
		delete(v.measures, node)
		return
	}
	v.measures[node] = m
}

// SetTime sets the time by which measurements are fresh. Before that, none is.
func (v *View) SetTime(now time.Time) { v.now = now }

// isFresh reports whether what was measured at a time still counts. What was measured by a clock that is ahead of this one has no age.
func (v *View) isFresh(at time.Time, bound time.Duration) bool {
	return !v.now.IsZero() && !at.IsZero() && v.now.Sub(at) <= bound
}

// trip is the round trip between a server's node and another one, as it was measured by the one or the other.
func (v *View) trip(server, home int32) (trip api.RoundTrip, ok bool) {
	if len(v.measures) == 0 || server == home {
		return api.RoundTrip{}, false
	}
	a, b := v.nodes[server].record.Name, v.nodes[home].record.Name
	for _, way := range [][2]string{{a, b}, {b, a}} {
		if m := v.measures[way[0]]; m != nil {
			if t, known := m.RoundTrips[way[1]]; known && v.isFresh(t.At, freshTrip) && (!ok || t.At.After(trip.At)) {
				trip, ok = t, true
			}
		}
	}
	return trip, ok
}

// load is how busy a GPU is.
func (v *View) load(id int32, device string) (load api.GPULoad, ok bool) {
	m := v.measures[v.nodes[id].record.Name]
	if m == nil {
		return api.GPULoad{}, false
	}
	load, ok = m.Loads[device]
	return load, ok && v.isFresh(load.At, freshLoad)
}

// shortestTrips are the shortest round trips that were measured, by distance; 0: none was.
func (v *View) shortestTrips() (shortest [distances]float64) {
	for name, m := range v.measures {
		id, known := v.ids[name]
		if !known {
			continue
		}
		for to, t := range m.RoundTrips {
			if other, known := v.ids[to]; known && v.isFresh(t.At, freshTrip) {
				if d := v.distance(id, other); shortest[d] == 0 || t.Seconds < shortest[d] {
					shortest[d] = t.Seconds
				}
			}
		}
	}
	return shortest
}

// figures says for people on which figures an expectation rests: which of them were measured, and how long ago.
func (v *View) figures(o *offer, home int32) string {
	age := func(at time.Time) string {
		return fmt.Sprintf("measured %s before", max(v.now.Sub(at), 0).Round(time.Second))
	}
	text := "shared memory"
	switch {
	case o.node == home && o.way.tcp:
		text = fmt.Sprintf("TCP on one node, %.0fus a wait (assumed)", o.way.wait()*1e6)
	case o.node != home:
		waits := fmt.Sprintf("%.0fus a wait (assumed)", o.way.wait()*1e6)
		if trip, ok := v.trip(o.node, home); ok {
			waits = fmt.Sprintf("%.0fus a wait (round trip of %.0fus %s)", o.way.wait()*1e6, trip.Seconds*1e6, age(trip.At))
		}
		text = fmt.Sprintf("%s, %.0f Gbit/s (%s)", waits, float64(o.way.rate)/1e9, linkText(o.surveyed))
	}
	switch {
	case o.loaded.IsZero() && o.sharers == 0:
		return text + ", GPU used by nobody else (assumed)"
	case o.loaded.IsZero():
		return text + fmt.Sprintf(", GPU shared with %s (load assumed)", plural(o.sharers, "other member"))
	}
	text += fmt.Sprintf(", GPU %.0f%% busy (%s)", o.load*100, age(o.loaded))
	if o.newest > 0 {
		text += fmt.Sprintf(" and shared with %s (load assumed)", plural(o.newest, "newer member"))
	}
	return text
}

func linkText(surveyed bool) string {
	if surveyed {
		return "surveyed"
	}
	return "assumed"
}
