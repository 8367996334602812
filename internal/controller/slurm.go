package controller

import (
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/contextualization"
	"github.com/nearmetal/nearmetal/internal/state"
)

// slurmOf is the Slurm of a cluster with these members, nil where no group's environment carries it. The member of the lowest rank is its
// controller, also while it is lost: another one comes in its place, with its name, its rank and what it left in the home.
func slurmOf(view *state.View, c *state.Cluster, held []api.Assignment, mungeKey []byte) *contextualization.Slurm {
	s := &contextualization.Slurm{MungeKey: mungeKey}
	carry := map[string]bool{}
	for _, g := range c.Intent.Spec.Groups {
		if carriesSlurm(view, g, held) {
			carry[g.Name] = true
			s.Groups = append(s.Groups, contextualization.SlurmGroup{Name: g.Name, Labels: g.NodeSelector})
		}
	}
	lowest := -1
	consider := func(group, member string, rank int) {
		if carry[group] && rank >= 0 && (lowest < 0 || rank < lowest) {
			lowest, s.Controller = rank, member
		}
	}
	for i := range held {
		consider(held[i].Group, held[i].Member, held[i].Rank)
	}
	for _, m := range c.Record.Lost {
		consider(m.Group, m.Member, m.Rank)
	}
	if lowest < 0 {
		return nil
	}
	return s
}

// carriesSlurm tells whether the image of a group's members, else the one that its environment stands for now, carries Slurm.
func carriesSlurm(view *state.View, g api.Group, held []api.Assignment) bool {
	image := view.ImageOf(g.Environment)
	if i := slices.IndexFunc(held, func(a api.Assignment) bool { return a.Group == g.Name }); i >= 0 {
		image = view.Image(held[i].EnvironmentDigest)
	}
	return image != nil && slices.Contains(image.Services, api.ServiceSlurm)
}
