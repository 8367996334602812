// Package plan assigns datasets to nodes: which a node keeps, which it fetches from the files' sources, and which from other nodes.
//
// It is pure. One node at a time fetches a dataset from its sources, and the others take it from there: a source far away sends everything once. It must
// never decide that a replica is good: nodes verify every file. Start with Orders.
package plan

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
)

// maxPeers bounds the peers in an order.
const maxPeers = 8

// Node is a node that is heard of.
type Node struct {
	Name string
	// PeerURL is where it serves what it holds; "": it does not.
	PeerURL string
	States  []dataset.State
	// Caches are the datasets in its cache. CacheRoom are the bounds of its caches; nil: it keeps none.
	Caches    []dataset.CacheState
	CacheRoom *dataset.CacheRoom
	// Paths are what it has seen last of the ways of data to it.
	Paths []dataset.Passage
}

// Dataset is a dataset with its opened credential.
type Dataset struct {
	*api.Dataset
	Credential *api.DatasetCredential
	// Members are the nodes with members that have it.
	Members []string
}

// Orders returns the orders of each node, sorted by the UIDs of datasets. A node that has not reported gets the orders of one that has nothing.
func Orders(datasets []Dataset, nodes []Node) map[string][]dataset.Wanted {
	orders := map[string][]dataset.Wanted{}
	known := map[string]bool{}
	for i := range datasets {
		d := &datasets[i]
		known[d.UID] = true
		wanting := union(d.Nodes, d.Members)
		seen := statesOf(d.UID, nodes)
		one := spreadOf(d, wanting, seen)
		for _, name := range wanting {
			orders[name] = append(orders[name], one.wanted(name))
		}
		for name := range seen { // what is no longer wanted there, and goes by itself or because somebody says so
			if !slices.Contains(wanting, name) {
				orders[name] = append(orders[name], dataset.Wanted{UID: d.UID, Name: d.Name, Evictions: d.Evictions[name], Checks: d.Checks})
			}
		}
	}
	for _, n := range nodes {
		for i := range n.States {
			if uid := n.States[i].UID; !known[uid] {
				orders[n.Name] = append(orders[n.Name], dataset.Wanted{UID: uid, Purge: true})
			}
		}
	}
	for _, all := range orders {
		slices.SortFunc(all, func(a, b dataset.Wanted) int { return cmp.Compare(a.UID, b.UID) })
	}
	return orders
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// seen is what a node has of a dataset, and where it serves that.
type seen struct {
	*dataset.State
	peerURL string
}

func statesOf(uid string, nodes []Node) map[string]seen {
	all := map[string]seen{}
	for _, n := range nodes {
		for i := range n.States {
			if n.States[i].UID == uid {
				all[n.Name] = seen{&n.States[i], n.PeerURL}
			}
		}
	}
	return all
}

// spread is how one dataset comes to its nodes.
type spread struct {
	of *Dataset
	// seeds fetch from the files' sources.
	seeds map[string]bool
	// contents are the files as a holder has read them; nil: nobody that serves them holds all.
	contents []dataset.Content
	// serving are the URLs of nodes that hold files or take them from others.
	serving map[string]string
}

func spreadOf(d *Dataset, wanting []string, has map[string]seen) spread {
	s := spread{of: d, seeds: map[string]bool{}, serving: map[string]string{}}
	if d.Credential != nil || len(d.Sealed) > 0 { // what is private goes over no network in clear: each node fetches it by itself
		for _, name := range wanting {
			s.seeds[name] = true
		}
		return s
	}
	for _, name := range slices.Sorted(maps.Keys(has)) {
		n := has[name]
		if n.Whole && n.peerURL != "" && len(n.Contents) == len(d.Files) {
			s.serving[name] = n.peerURL
			if s.contents == nil {
				s.contents = n.Contents
			}
		}
	}
	if s.contents != nil {
		for _, name := range wanting {
			if n, heard := has[name]; heard && !n.Whole && n.peerURL != "" {
				s.serving[name] = n.peerURL
			}
		}
		return s
	}
	if seed := seedOf(wanting, has); seed != "" {
		s.seeds[seed] = true
	}
	for _, name := range wanting { // what others can't take from, or who takes from no others
		if n, heard := has[name]; heard && n.peerURL == "" {
			s.seeds[name] = true
		}
	}
	return s
}

// seedOf is the node that fetches from the sources: one that does so already, else the first that has not failed, else the first of all.
func seedOf(wanting []string, has map[string]seen) string {
	best, rank := "", 0
	for _, name := range wanting {
		n, heard := has[name]
		var r int
		switch {
		case !heard || n.peerURL == "":
			continue
		case n.Failed:
			r = 1
		case n.HeldBytes == 0:
			r = 2
		default:
			r = 3
		}
		if r > rank {
			best, rank = name, r
		}
	}
	return best
}

// wanted is the order for a node that should have the dataset.
func (s *spread) wanted(name string) dataset.Wanted {
	d := s.of
	w := dataset.Wanted{
		UID: d.UID, Name: d.Name, Keep: true, Evictions: d.Evictions[name], Checks: d.Checks, Files: d.Files, Credential: d.Credential,
	}
	if s.contents != nil {
		w.Contents, w.Peers = s.contents, s.peers(name)
	} else {
		w.Wait = !s.seeds[name]
	}
	return w
}

// peers are the URLs in the order of a node. Each list begins at another peer, so that not all nodes ask the same one.
func (s *spread) peers(name string) []string {
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(s.serving)), func(other string) bool { return other == name })
	if len(others) == 0 {
		return nil
	}
	first, _ := slices.BinarySearch(others, name)
	var list []string
	for i := range min(len(others), maxPeers) {
		list = append(list, s.serving[others[(first+i)%len(others)]])
	}
	return list
}
