// Package gpumeasure decides what is measured of nodes that hand out GPUs to members of any node, and keeps what was.
//
// It is pure. What is measured are how busy GPUs are, how far it is from their nodes to others, and what their servers did; package placement chooses by
// that. Start with Peers.
package gpumeasure

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// mostKept bounds how many round trips are kept of a node, which is stored in one piece: those that were measured last.
const mostKept = 512

// Serves reports whether a node hands out GPUs, as its agent offers them.
func Serves(n *api.NodeRecord) bool {
	return n != nil && slices.ContainsFunc(n.Capacity.Devices, func(d api.Device) bool { return d.Class == api.ClassGPU && d.Counters[api.CounterRemoteMiB] > 0 })
}

// Peers returns the nodes to which a node measures round trips next, at most so many: those that it has not measured, then those that it measured longest
// ago.
func Peers(node string, others []string, before *api.NodeMeasures, most int) []string {
	at := func(name string) time.Time {
		if before == nil {
			return time.Time{}
		}
		return before.RoundTrips[name].At
	}
	peers := slices.DeleteFunc(slices.Clone(others), func(name string) bool { return name == node })
	slices.SortStableFunc(peers, func(a, b string) int { return at(a).Compare(at(b)) })
	return peers[:min(len(peers), most)]
}

// Merge returns what is known of a node after it has measured. What it did not measure this time stays with its age, but for loads of GPUs and servers that
// it no longer has. known are the nodes that there are.
func Merge(before *api.NodeMeasures, now api.NodeMeasures, known func(node string) bool) api.NodeMeasures {
	if before == nil {
		return now
	}
	all := maps.Clone(before.RoundTrips)
	maps.DeleteFunc(all, func(name string, _ api.RoundTrip) bool { return !known(name) })
	if all == nil {
		all = map[string]api.RoundTrip{}
	}
	maps.Copy(all, now.RoundTrips)
	if surplus := len(all) - mostKept; surplus > 0 {
		oldest := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
			if c := all[a].At.Compare(all[b].At); c != 0 {
				return c
			}
			return strings.Compare(a, b)
		})
		for _, name := range oldest[:surplus] {
			delete(all, name)
		}
	}
	now.RoundTrips = all
	return now
}
