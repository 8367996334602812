package situation

import (
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset/paths"
	"github.com/nearmetal/nearmetal/internal/dataset/predict"
	"github.com/nearmetal/nearmetal/internal/state"
)

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
	return append(all, unseen(c)...)
}

// unseen are the predictions of which nobody learns what came: members stream from the sources by themselves, and their node does not look into that.
func unseen(c *state.Cluster) []api.DataOutcome {
	var all []api.DataOutcome
	for a := range c.Held() {
		for i := range a.Data {
			if d := &a.Data[i]; d.Way == api.DatasetStream && d.Seconds != nil && !a.Spare {
				all = append(all, api.DataOutcome{
					Node: a.Node, Dataset: d.Name, Choice: d.Choice, Member: a.ID, Groups: []string{c.Name() + "/" + a.Group}, PredictedBytes: d.Bytes,
					PredictedSeconds: *d.Seconds, Unseen: "not observed: members read from the sources themselves",
				})
			}
		}
	}
	return all
}

// dataDecisions are what members of a cluster could have had of datasets whose ways their groups leave open, as it was when they got their places.
func (p plan) dataDecisions(c *state.Cluster, power func(node string) (idle, slope float64, cpus int, ok bool)) []api.DataChoice {
	cores := map[string]int{}
	for _, g := range c.Intent.Spec.Groups {
		cores[g.Name] = g.Cores
	}
	var all []api.DataChoice
	for a := range c.Held() {
		for i := range a.Data {
			claim := &a.Data[i]
			for k := range claim.Options {
				o := &claim.Options[k]
				choice := api.DataChoice{
					Group: a.Group, Node: a.Node, Dataset: claim.Name, Choice: o.Choice, Taken: o.Choice == claim.Choice, Seconds: o.Seconds, Sum: o.Sum, Figures: o.Figures,
				}
				if o.Seconds != nil {
					choice.Joules = joules(*o.Seconds, a.Node, cores[a.Group], power)
				}
				all = append(all, choice)
			}
		}
	}
	return all
}

// dataReads are the fractions that members were seen to read of the datasets that a cluster's groups ask for.
func (p plan) dataReads(c *state.Cluster) map[string]api.DataReads {
	var all map[string]api.DataReads
	for _, name := range api.DatasetsOf(c.Intent.Spec.Groups) {
		d := p.site.View.Dataset(state.DatasetName(c.Intent.Project, name))
		if d == nil {
			continue
		}
		if r := paths.ReadsOf(p.site.View.OutcomesOf(d.UID), p.site.Now); r != nil {
			if all == nil {
				all = map[string]api.DataReads{}
			}
			all[name] = *r
		}
	}
	return all
}
