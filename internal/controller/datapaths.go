package controller

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/paths"
	"github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/dataset/predict"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// dataFiguresEvery is how often the leader looks at what nodes say of the ways of data.
const dataFiguresEvery = time.Second

// keepDataFigures learns from transfers and probes until ctx ends. It is apart from the passes, which nothing that is only measured should hold up.
func (l *leader) keepDataFigures(ctx context.Context) {
	b, seen := newDataBook(), int64(0)
	for {
		view := l.cfg.Cache.View()
		if len(view.Datasets)+len(view.DataPaths)+len(view.DataOutcomes) == 0 { // a site without datasets is not woken each second
			var err error
			if seen, err = l.cfg.Cache.Wait(ctx, seen); err != nil {
				return
			}
			continue
		}
		figures := b.look(view, l.cfg.Agents.Datasets(), l.clock.at(l.cfg.Now()))
		revision, err := l.writer.PutDataFigures(ctx, figures)
		if err == nil && revision > 0 { // what is stored is the base of the next look
			_, err = l.cfg.Cache.WaitRevision(ctx, revision)
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrNotLeader) {
			l.log.WarnContext(ctx, "the figures of datasets can't be stored; retrying", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(dataFiguresEvery):
		}
	}
}

// replicaKey names a dataset on a node.
type replicaKey struct{ node, uid string }

// passageKey names what a node has seen last of a place.
type passageKey struct {
	node, from string
	probe      bool
}

// promise is what was predicted when a node began to fetch a dataset, by choice.
type promise map[predict.Choice]float64

// dataBook is what the leader knows of the ways of data beyond what is stored.
type dataBook struct {
	// newest are paths as of the last passage, by node and place. seen are the passages that they have taken in, by the clocks of nodes.
	newest map[string]map[string]api.DataPath
	seen   map[passageKey]time.Time
	// promises are those about fetches under way, told the outcomes that were stored, or that there can't be.
	promises map[replicaKey]promise
	told     map[replicaKey]time.Time
}

func newDataBook() *dataBook {
	return &dataBook{newest: map[string]map[string]api.DataPath{}, seen: map[passageKey]time.Time{}, promises: map[replicaKey]promise{}, told: map[replicaKey]time.Time{}}
}

// look takes in what nodes say, and returns what is to be stored. Outcomes come first: a prediction must not know the transfer that it is compared with.
func (b *dataBook) look(view *state.View, nodes []plan.Node, now time.Time) state.DataFigures {
	var figures state.DataFigures
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n plan.Node) bool { return !speaks(view.Node(n.Name)) })
	figures.Outcomes = b.outcomes(view, nodes, now)
	figures.Paths = b.learn(view, nodes, now)
	for _, p := range view.DataPaths {
		if view.Node(p.Node) == nil {
			figures.GoneNodes = append(figures.GoneNodes, p.Node)
			delete(b.newest, p.Node)
		}
	}
	for _, o := range view.DataOutcomes {
		if !slices.ContainsFunc(view.Datasets, func(d *api.Dataset) bool { return d.UID == o.UID }) {
			figures.GoneDatasets = append(figures.GoneDatasets, o.UID)
		}
	}
	return figures
}

// speaks reports whether what a node says of the ways of data is believed. A machine that a member has whole is its tenant's, who could say anything.
func speaks(n *state.Node) bool {
	return n != nil && (n.Identity == nil || n.Identity.Member == "")
}

// learn takes in passages, and returns the paths of the nodes of which one has changed notably.
func (b *dataBook) learn(view *state.View, nodes []plan.Node, now time.Time) []api.DataPaths {
	known, nodeAt := origins(view), map[string]string{}
	for i := range nodes {
		if nodes[i].PeerURL != "" {
			nodeAt[nodes[i].PeerURL] = nodes[i].Name
		}
	}
	var changed []api.DataPaths
	for i := range nodes {
		n := &nodes[i]
		stored := map[string]api.DataPath{}
		if s := view.DataPathsOf(n.Name); s != nil {
			for _, p := range s.Paths {
				stored[p.From] = p
			}
		}
		if b.newest[n.Name] == nil {
			b.newest[n.Name] = stored
		}
		notable := false
		for k := range n.Paths {
			p := &n.Paths[k]
			from := placeOf(p.From, known, nodeAt)
			key := passageKey{n.Name, p.From, p.Bytes == 0}
			if from == "" || !paths.Sensible(p) || b.seen[key].Equal(p.At) {
				continue
			}
			b.seen[key] = p.At
			next, was := paths.Learn(b.newest[n.Name][from], from, p, now), stored[from]
			b.newest[n.Name][from] = next
			notable = notable || paths.Notable(&was, &next)
		}
		if notable {
			changed = append(changed, b.stored(n.Name, now))
		}
	}
	return changed
}

// stored are the paths of a node as they are to be stored.
func (b *dataBook) stored(node string, now time.Time) api.DataPaths {
	all := make([]api.DataPath, 0, len(b.newest[node]))
	for _, p := range b.newest[node] {
		if p.RateAt != nil || p.RoundTripAt != nil {
			all = append(all, p)
		}
	}
	return api.DataPaths{Node: node, Paths: paths.Pruned(all, now)}
}

// placeOf is how the place of a passage is stored, "" for one that no dataset comes from: what nodes say of other servers is nobody's business.
func placeOf(from string, known map[string]bool, nodeAt map[string]string) string {
	switch {
	case from == dataset.FromNodes || from == dataset.FromDisk || known[from]:
		return from
	case nodeAt[from] != "":
		return paths.OfNode(nodeAt[from])
	default:
		return ""
	}
}

// origins are the servers that datasets come from.
func origins(view *state.View) map[string]bool {
	all := map[string]bool{}
	for _, d := range view.Datasets {
		for i := range d.Files {
			for _, url := range d.Files[i].URLs {
				if from := dataset.ServerOf(url); from != "" {
					all[from] = true
				}
			}
		}
	}
	return all
}

// outcomes compares what fetches took with what was predicted, and predicts about those that are to begin.
func (b *dataBook) outcomes(view *state.View, nodes []plan.Node, now time.Time) []api.DataOutcomes {
	known, holders := paths.New(view.DataPaths, now), situation.HoldersOf(nodes)
	byUID := make(map[string]*api.Dataset, len(view.Datasets))
	for _, d := range view.Datasets {
		byUID[d.UID] = d
	}
	changed := map[string]api.DataOutcomes{}
	for i := range nodes {
		b.readings(view, byUID, &nodes[i], now, changed)
		for k := range nodes[i].States {
			s := &nodes[i].States[k]
			d, key := byUID[s.UID], replicaKey{nodes[i].Name, s.UID}
			switch {
			case d == nil:
			case s.Whole:
				if one, ok := b.outcome(view, d, key, s, known, holders); ok {
					changed[d.UID] = paths.Add(outcomesOf(view, changed, d.UID), one)
				}
				delete(b.promises, key)
			case s.HeldBytes == 0: // it has not begun
				b.promises[key] = promised(known.Answers(holders.AskOf(d, key.node)), now)
			}
		}
	}
	return slices.SortedFunc(maps.Values(changed), func(a, b api.DataOutcomes) int { return cmp.Compare(a.UID, b.UID) })
}

// promised are the predictions that rest on what was measured before a time.
func promised(answers []paths.Answer, before time.Time) promise {
	p := promise{}
	for _, a := range answers {
		if a.Known && a.Seconds > 0 && !a.Since.After(before) {
			p[a.Choice] = a.Seconds
		}
	}
	return p
}

// mostOfIt is the part of a dataset that must have come in a fetch for its time to say something of a prediction about all of it.
const mostOfIt = 0.9

// outcome is what came of the predictions about a replica that is whole now; false: nothing was predicted, or it was told before. Nobody who has seen the
// transfer predicts: without a promise that was made before it, there is a prediction by figures that are older than it, or none.
func (b *dataBook) outcome(view *state.View, d *api.Dataset, key replicaKey, s *dataset.State, known *paths.Known, holders paths.Holders) (api.DataOutcome, bool) {
	f := s.Fetched
	if f == nil || !(f.Seconds > 0) || !b.told[key].Before(f.At) {
		return api.DataOutcome{}, false
	}
	b.told[key] = f.At
	came := f.SourceBytes + f.PeerBytes
	if had := view.OutcomesOf(d.UID); float64(came) < mostOfIt*float64(s.HeldBytes) || had != nil && slices.ContainsFunc(had.Newest, func(o api.DataOutcome) bool {
		return o.Member == "" && o.Node == key.node && !o.At.Before(f.At.UTC())
	}) {
		return api.DataOutcome{}, false
	}
	choice := predict.Copy
	if f.PeerBytes > f.SourceBytes {
		choice = predict.Peer
	}
	seconds, ok := b.promises[key][choice]
	if !ok {
		seconds, ok = promised(known.Answers(holders.AskAnew(d, key.node)), f.At.Add(-time.Duration(f.Seconds*float64(time.Second))))[choice]
	}
	return api.DataOutcome{
		Node: key.node, Choice: string(choice), Groups: groupsWith(view, d, key.node), Bytes: came, PredictedSeconds: seconds, Seconds: f.Seconds, At: f.At.UTC(),
	}, ok
}

// groupsWith are the groups that have members with a copy of a dataset on a node, as CLUSTER/GROUP, in order.
func groupsWith(view *state.View, d *api.Dataset, node string) []string {
	var all []string
	for _, c := range view.ClustersOnNode(node) {
		for a := range c.Held() {
			if a.Node == node && slices.ContainsFunc(datasetsOf(view, c, a), func(claim dataset.Claim) bool { return claim.UID == d.UID && claim.Copied() }) {
				all = append(all, c.Name()+"/"+a.Group)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// probesOf are the sources of datasets whose distance a node does not know, in order. A few at a time: once they are known, others follow.
func probesOf(known *paths.Known, places []string, node string) []string {
	const most = 8
	var all []string
	for _, from := range places {
		if !strings.HasPrefix(from, "node/") && !known.Far(node, from) && len(all) < most {
			all = append(all, from)
		}
	}
	return all
}

// updateProbes tells nodes whose distance from sources they should measure.
func (d *desiredStates) updateProbes(view *state.View, dirty map[string]bool) {
	if len(view.Datasets) == 0 && len(d.probes) == 0 {
		return
	}
	known, places := paths.New(view.DataPaths, d.now), slices.Sorted(maps.Keys(origins(view)))
	probes := map[string][]string{}
	for n := range view.Agents() {
		if all := probesOf(known, places, n.Name); len(all) > 0 {
			probes[n.Name] = all
		}
		if !slices.Equal(probes[n.Name], d.probes[n.Name]) {
			dirty[n.Name] = true
		}
	}
	d.probes = probes
}
