package situation

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
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

// dataPlace is what nodes have of the datasets of a group, what it is predicted to take until a node has them, and how members there have those whose ways are
// left open.
func (s *Site) dataPlace(project string, g *api.Group, egress bool) api.DataPlace {
	uses := g.PlacedDatasets()
	names := make([]string, 0, len(uses))
	open := false
	for _, use := range uses {
		names = append(names, use.Name)
		open = open || use.Way == api.DatasetAuto
	}
	place := dataPlace(s.View, project, names, s.data)
	if open {
		place.Decide = func(node string, here, all int) []api.DataClaim {
			return withElsewhere(s.decide(project, uses, egress, node, here, all), node, place.Seconds)
		}
	}
	if len(names) == 0 || len(s.View.DataPaths) == 0 {
		return place
	}
	learned := false
	seconds := map[string]float64{}
	for n := range s.View.Agents() {
		sum, known := 0.0, true
		for _, use := range uses {
			one, ok := s.soonest(project, use, egress, n.Name, g.Size)
			if known = ok; !known {
				break
			}
			sum += one
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

// soonest is what a node's best way to a dataset is predicted to take; false: that is not known.
func (s *Site) soonest(project string, use api.DatasetUse, egress bool, node string, readers int) (seconds float64, known bool) {
	if use.Way == api.DatasetAuto {
		options, _ := s.options(project, use, egress, node, 1, readers)
		if len(options) == 0 {
			return 0, false
		}
		taken := &options[paths.Taken(options)]
		return taken.Seconds, taken.Known
	}
	answers := s.answers(project, use.Name, node)
	if len(answers) == 0 {
		return 0, false
	}
	return answers[0].Seconds, answers[0].Known
}

// decide says how members on a node have the datasets whose ways their group leaves open.
func (s *Site) decide(project string, uses []api.DatasetUse, egress bool, node string, here, all int) []api.DataClaim {
	var claims []api.DataClaim
	for _, use := range uses {
		if use.Way != api.DatasetAuto {
			continue
		}
		if options, wish := s.options(project, use, egress, node, here, all); len(options) > 0 {
			claims = append(claims, paths.Claim(use.Name, wish, options))
		}
	}
	return claims
}

// withElsewhere adds to claims what the quickest other node was predicted to take for all datasets of the group: the member could have gone there.
func withElsewhere(claims []api.DataClaim, node string, seconds map[string]float64) []api.DataClaim {
	best := ""
	for name, s := range seconds {
		if name != node && (best == "" || s < seconds[best] || s == seconds[best] && name < best) {
			best = name
		}
	}
	if best == "" {
		return claims
	}
	for i := range claims {
		other := seconds[best]
		claims[i].Options = append(claims[i].Options, api.DataOption{
			Choice: string(predict.Elsewhere), Seconds: &other, Figures: fmt.Sprintf("node %s, for all datasets of the group, each in its best way", best),
		})
	}
	return claims
}

// options are the ways in which members on a node can have a dataset whose way their group leaves open, none for one that does not exist.
func (s *Site) options(project string, use api.DatasetUse, egress bool, node string, here, all int) ([]paths.Option, paths.Wish) {
	d := s.View.Dataset(state.DatasetName(project, use.Name))
	if d == nil {
		return nil, paths.Wish{}
	}
	s.learnPaths()
	w := paths.Wish{
		Ask: s.holders.AskOf(d, node), Readers: max(1, all), Here: max(1, here), NoStream: dataset.Unfit(d.Files, len(d.Sealed) > 0, api.DatasetStream),
		NoCache: dataset.Unfit(d.Files, len(d.Sealed) > 0, api.DatasetCached),
	}
	if w.NoStream == "" && !egress {
		w.NoStream = "the cluster's members have no way out (--egress)"
	}
	reads := paths.ReadsOf(s.View.OutcomesOf(d.UID), s.Now)
	w.Reads, w.ReadsFrom = paths.ReadFraction(use.Reads, reads, s.Now)
	if reads != nil {
		w.BytesPerWait = reads.BytesPerWait
	}
	if n := s.said[node]; n != nil && n.CacheRoom != nil {
		w.Cache = &paths.CacheHere{CacheRoom: *n.CacheRoom}
		for k := range n.Caches {
			if n.Caches[k].UID == d.UID {
				w.Cache.HeldBytes = n.Caches[k].HeldBytes
			}
		}
	}
	return s.paths.Options(w), w
}

// answers are the ways in which a node can have a dataset of a project, nil for one that does not exist.
func (s *Site) answers(project, name, node string) []paths.Answer {
	d := s.View.Dataset(state.DatasetName(project, name))
	if d == nil {
		return nil
	}
	s.learnPaths()
	return s.paths.Answers(s.holders.AskOf(d, node))
}

// learnPaths takes in what is stored of the ways of data, and what nodes have, once.
func (s *Site) learnPaths() {
	if s.paths == nil {
		s.paths, s.holders, s.said = paths.New(s.View.DataPaths, s.Now), HoldersOf(s.data), make(map[string]*datasetplan.Node, len(s.data))
		for i := range s.data {
			s.said[s.data[i].Name] = &s.data[i]
		}
	}
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
		uses := g.PlacedDatasets()
		if len(uses) == 0 {
			continue
		}
		members, count := map[string][]*api.Assignment{}, 0
		for a := range c.Held() {
			if a.Group == g.Name && !a.IsPart() && !a.Spare {
				members[a.Node] = append(members[a.Node], a)
				count++
			}
		}
		var others []string
		for n := range p.site.View.Agents() {
			if members[n.Name] == nil {
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
			for _, use := range uses {
				for _, choice := range p.choicesOf(c, use, node, members[node], max(count, g.Size)) {
					choice.Group, choice.Node, choice.Dataset = g.Name, node, use.Name
					if choice.Seconds != nil {
						choice.Joules = joules(*choice.Seconds, node, g.Cores, power)
					}
					all = append(all, choice)
				}
			}
		}
	}
	return all
}

// choicesOf are the ways in which a node could have a dataset now. Taken are those that its members were placed for, which may have been predicted otherwise then.
func (p plan) choicesOf(c *state.Cluster, use api.DatasetUse, node string, members []*api.Assignment, readers int) []api.DataChoice {
	var all []api.DataChoice
	add := func(a *paths.Answer, taken bool, sum, figures string) {
		choice := api.DataChoice{Choice: string(a.Choice), Taken: taken, Sum: sum, Figures: figures}
		if a.Known {
			choice.Seconds = &a.Seconds
		}
		all = append(all, choice)
	}
	if use.Way != api.DatasetAuto {
		for i, a := range p.site.answers(c.Intent.Project, use.Name, node) {
			add(&a, len(members) > 0 && i == 0, a.Sum(), a.Figures())
		}
		return all
	}
	options, _ := p.site.options(c.Intent.Project, use, c.Intent.Spec.Egress, node, len(members), readers)
	for i := range options {
		o := &options[i]
		first := o.Way != api.DatasetCopy || i == 0
		taken := first && slices.ContainsFunc(members, func(a *api.Assignment) bool { return use.For(a).Way == o.Way })
		add(&o.Answer, taken, o.Sum(), o.Figures())
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
				use := api.ParseDatasetUse(text).For(a)
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
