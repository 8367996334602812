package placement

import (
	"math"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// betterPlace is how many seconds longer members may wait for their datasets in order to be on fewer leaf switches or fewer nodes. It is about what a
// cluster takes to start: nobody has told what the time of the cluster's programs is worth.
const betterPlace = 10.0

// allWithData puts a whole group where its members have their datasets soonest, if there is room for all of it without sharing CPUs and behind good links,
// and nil where there is not. Where nobody has measured how long data take to come, these are the nodes that have all. Where it is known, a place that is better
// for the group is taken if its data come not much later.
func (f *finder) allWithData(p api.DataPlace, size int) []nodeCount {
	if len(p.Whole) == 0 && len(p.Seconds) == 0 || f.level != freeNow {
		return nil
	}
	if len(p.Seconds) == 0 {
		return f.among(size, p.Whole)
	}
	seconds := f.secondsByNode(p)
	soon, wait := f.soonest(size, seconds)
	if soon == nil {
		return nil
	}
	usual := *f
	best, _ := usual.plan(size)
	if best != nil && latest(best, seconds)-wait <= betterPlace && f.spread(best) < f.spread(soon) {
		return best
	}
	return soon
}

// among puts a whole group on some nodes, if there is room on them without sharing CPUs and behind good links.
func (f *finder) among(size int, nodes []string) []nodeCount {
	near := *f
	near.only = newBitset(len(f.v.rows))
	for _, name := range nodes {
		if id := f.v.nodeHere(name); id >= 0 {
			near.only.set(int(id))
		}
	}
	all, _ := near.plan(size)
	return all
}

// secondsByNode are the predicted seconds of nodes that are here; a node that is not in it has no prediction.
func (f *finder) secondsByNode(p api.DataPlace) map[int32]float64 {
	seconds := make(map[int32]float64, len(p.Seconds))
	for name, s := range p.Seconds {
		if id := f.v.nodeHere(name); id >= 0 {
			seconds[id] = s
		}
	}
	return seconds
}

// soonest puts a whole group on the nodes of which the last one has its data soonest, and says when that is.
func (f *finder) soonest(size int, seconds map[int32]float64) ([]nodeCount, float64) {
	bounds := make([]float64, 0, len(seconds))
	for _, s := range seconds {
		bounds = append(bounds, s)
	}
	slices.Sort(bounds)
	bounds = slices.Compact(bounds)
	within := func(bound float64) []nodeCount {
		near := *f
		near.only = newBitset(len(f.v.rows))
		for id, s := range seconds {
			if s <= bound {
				near.only.set(int(id))
			}
		}
		all, _ := near.plan(size)
		return all
	}
	// More nodes never hold fewer members, so the first bound that does is found by halves.
	at, _ := slices.BinarySearchFunc(bounds, true, func(bound float64, _ bool) int {
		if within(bound) == nil {
			return -1
		}
		return 0
	})
	if at == len(bounds) {
		return nil, 0
	}
	found := within(bounds[at])
	return found, latest(found, seconds)
}

// latest is when the last of some nodes has its data, infinity where that of one is not known.
func latest(nodes []nodeCount, seconds map[int32]float64) float64 {
	last := 0.0
	for _, n := range nodes {
		s, known := seconds[n.id]
		if !known {
			return math.Inf(1)
		}
		last = max(last, s)
	}
	return last
}

// spread counts the leaf switches of nodes and, as fractions of one, the nodes: less is better.
func (f *finder) spread(nodes []nodeCount) float64 {
	leaves := map[int32]bool{}
	for _, n := range nodes {
		leaves[f.leafOf(n.id)] = true
	}
	return float64(len(leaves)) + float64(len(nodes))/float64(len(f.v.rows)+1)
}

// dataOf are the ways in which members of a group on a node have the datasets for which the group leaves them open.
func dataOf(g *api.Group, node string, here int) []api.DataClaim {
	if g.DataPlace.Decide == nil {
		return nil
	}
	return g.DataPlace.Decide(node, here, g.Size)
}

// withoutOptions are claims as others than the first member of a group on a node have them: the table of the choice is stored once.
func withoutOptions(claims []api.DataClaim) []api.DataClaim {
	if len(claims) == 0 || claims[0].Options == nil {
		return claims
	}
	claims = slices.Clone(claims)
	for i := range claims {
		claims[i].Options = nil
	}
	return claims
}
