package situation

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset/paths"
	datasetplan "github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/dataset/predict"
	"github.com/nearmetal/nearmetal/internal/state"
)

// dataPlace is what nodes say that they have of datasets of a project.
func dataPlace(view *state.View, project string, datasets []string, nodes []datasetplan.Node) api.DataPlace {
	var place api.DataPlace
	if len(datasets) == 0 {
		return place
	}
	uids := map[string]bool{}
	for _, name := range datasets {
		if d := view.Dataset(state.DatasetName(project, name)); d != nil {
			uids[d.UID] = true
		}
	}
	sizes := map[string]int64{}
	for _, n := range nodes {
		whole, held := 0, int64(0)
		for i := range n.States {
			s := &n.States[i]
			if !uids[s.UID] {
				continue
			}
			held += s.HeldBytes
			sizes[s.UID] = max(sizes[s.UID], s.OfBytes)
			if s.Whole {
				whole++
			}
		}
		if held > 0 {
			if place.HeldBytes == nil {
				place.HeldBytes = map[string]int64{}
			}
			place.HeldBytes[n.Name] = held
		}
		if whole == len(datasets) {
			place.Whole = append(place.Whole, n.Name)
		}
	}
	for _, size := range sizes {
		place.OfBytes += size
	}
	return place
}

// dataPlace is what nodes have of datasets of a project, and what it is predicted to take until a node has them.
func (s *Site) dataPlace(project string, names []string) api.DataPlace {
	place := dataPlace(s.View, project, names, s.data)
	if len(names) == 0 || len(s.View.DataPaths) == 0 {
		return place
	}
	learned := false
	seconds := map[string]float64{}
	for n := range s.View.Agents() {
		sum, known := 0.0, true
		for _, name := range names {
			answers := s.answers(project, name, n.Name)
			if known = len(answers) > 0 && answers[0].Known; !known {
				break
			}
			sum += answers[0].Seconds
		}
		if known {
			seconds[n.Name] = sum
			learned = learned || sum > 0
		}
	}
	if learned {
		place.Seconds = seconds
	}
	return place
}

// answers are the ways in which a node can have a dataset of a project, nil for one that does not exist.
func (s *Site) answers(project, name, node string) []paths.Answer {
	d := s.View.Dataset(state.DatasetName(project, name))
	if d == nil {
		return nil
	}
	if s.paths == nil {
		s.paths, s.holders = paths.New(s.View.DataPaths, s.Now), HoldersOf(s.data)
	}
	return s.paths.Answers(s.holders.AskOf(d, node))
}

// HoldersOf are the nodes that have something of datasets, by what they say.
func HoldersOf(nodes []datasetplan.Node) paths.Holders {
	all := paths.Holders{}
	for i := range nodes {
		all.Add(nodes[i].Name, nodes[i].PeerURL != "", nodes[i].States)
	}
	return all
}

// shownChoices is how many nodes without members are shown with what their choices are predicted to take.
const shownChoices = 10

// choices are the ways in which nodes could have the datasets of a cluster's groups.
func (p plan) choices(c *state.Cluster, power func(node string) (idle, slope float64, cpus int, ok bool)) []api.DataChoice {
	var all []api.DataChoice
	for _, g := range p.site.groups(&c.Intent) {
		if len(g.CopiedDatasets()) == 0 {
			continue
		}
		members := map[string]bool{}
		for a := range c.Held() {
			if a.Group == g.Name && !a.IsPart() && !a.Spare {
				members[a.Node] = true
			}
		}
		var others []string
		for n := range p.site.View.Agents() {
			if !members[n.Name] {
				others = append(others, n.Name)
			}
		}
		seconds := func(node string) float64 {
			if s, known := g.DataPlace.Seconds[node]; known {
				return s
			}
			return math.Inf(1)
		}
		slices.SortStableFunc(others, func(a, b string) int { return cmp.Or(cmp.Compare(seconds(a), seconds(b)), cmp.Compare(a, b)) })
		for _, node := range slices.Concat(slices.Sorted(maps.Keys(members)), others[:min(len(others), shownChoices)]) {
			for _, name := range g.CopiedDatasets() {
				for i, answer := range p.site.answers(c.Intent.Project, name, node) {
					choice := api.DataChoice{
						Group: g.Name, Node: node, Dataset: name, Choice: string(answer.Choice), Taken: members[node] && i == 0, Figures: answer.Figures(),
					}
					if answer.Known {
						choice.Seconds, choice.Joules = &answer.Seconds, joules(answer.Seconds, node, g.Cores, power)
					}
					all = append(all, choice)
				}
			}
		}
	}
	return all
}

// joules are what a member's cores cost while it waits on a node: their part of the node's power when idle. nil: that power is not known.
func joules(seconds float64, node string, cores int, power func(node string) (idle, slope float64, cpus int, ok bool)) *float64 {
	if power == nil {
		return nil
	}
	idle, slope, cpus, ok := power(node)
	if !ok || cpus <= 0 {
		return nil
	}
	j := predict.Power{IdleWatts: idle, BusyWatts: slope, Share: min(1, float64(cores)/float64(cpus))}.Joules(seconds)
	return &j
}

// outcomes are what came of the predictions about nodes with members of a cluster's groups.
func (p plan) outcomes(c *state.Cluster) []api.DataOutcome {
	var all []api.DataOutcome
	for _, name := range api.DatasetsOf(c.Intent.Spec.Groups) {
		d := p.site.View.Dataset(state.DatasetName(c.Intent.Project, name))
		if d == nil {
			continue
		}
		outcomes := p.site.View.OutcomesOf(d.UID)
		if outcomes == nil {
			continue
		}
		for _, o := range outcomes.Newest {
			if slices.ContainsFunc(o.Groups, func(group string) bool { return strings.HasPrefix(group, c.Name()+"/") }) {
				o.Dataset = name
				o.Groups = slices.DeleteFunc(slices.Clone(o.Groups), func(group string) bool { return !strings.HasPrefix(group, c.Name()+"/") })
				all = append(all, o)
			}
		}
	}
	return all
}

// data tells which nodes have how much of the datasets of a cluster's groups.
func (p plan) data(c *state.Cluster) []api.DataHeld {
	var all []api.DataHeld
	for _, g := range p.site.groups(&c.Intent) {
		for _, node := range slices.Sorted(maps.Keys(g.DataPlace.HeldBytes)) {
			held := api.DataHeld{Group: g.Name, Node: node, HeldBytes: g.DataPlace.HeldBytes[node], OfBytes: g.DataPlace.OfBytes}
			for a, ref := range c.AllWithRef() {
				if a.Group == g.Name && a.Node == node && !a.IsPart() && !a.Spare && !ref.Releasing {
					held.Members = append(held.Members, a.Member)
				}
			}
			all = append(all, held)
		}
	}
	return all
}

// caches tells what became of what members of a cluster read through the caches of their nodes. Members of other clusters on these nodes may have read the
// same datasets.
func (p plan) caches(c *state.Cluster) []api.DatasetCache {
	type place struct{ node, uid string }
	names := map[place]string{}
	for a := range c.All() {
		for _, g := range c.Intent.Spec.Groups {
			if g.Name != a.Group || a.IsPart() {
				continue
			}
			for _, text := range g.Datasets {
				use := api.ParseDatasetUse(text)
				if d := p.site.View.Dataset(state.DatasetName(c.Intent.Project, use.Name)); d != nil && use.Way.Cached() {
					names[place{a.Node, d.UID}] = use.Name
				}
			}
		}
	}
	var all []api.DatasetCache
	for _, n := range p.site.data {
		for i := range n.Caches {
			if name := names[place{n.Name, n.Caches[i].UID}]; name != "" {
				shown := n.Caches[i].Shown(n.Name)
				shown.Dataset = name
				all = append(all, shown)
			}
		}
	}
	return all
}

// smallCaches says which caches can't hold what is read through them.
func smallCaches(caches []api.DatasetCache) string {
	text := ""
	for _, c := range caches {
		if c.TooSmall {
			text += fmt.Sprintf(" The cache of dataset %q on node %s is too small for what is read through it: it has fetched %d MiB again that had made room.", c.Dataset, c.Node, c.AgainBytes>>20)
		}
	}
	return text
}
