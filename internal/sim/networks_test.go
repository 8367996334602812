package sim

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// projectNetworks are the networks that each project has.
var projectNetworks = [...]string{"net", "more"}

// makeNetworks makes two networks for each project, which last until all clusters are deleted. Those of all projects but one are routed; of that
// one, the second has a way out.
func (w *world) makeNetworks(repo *state.Repo) {
	for _, project := range []string{api.DefaultProject, "lab", "class"} {
		for _, name := range projectNetworks {
			_, err := repo.CreateNetwork(w.ctx, api.NetworkIntent{
				Name: state.NetworkIntentName(project, name), UID: name + "-" + project, Project: project, Routed: project != "class", Egress: project == "class" && name == "more", CreatedAt: time.Now(),
			})
			w.must(err)
		}
	}
	w.makeFunctionNetworks(repo)
}

// drawJoins lets some groups have ports on a network of their project.
func (w *world) drawJoins(cluster string, groups []api.Group) {
	for i := range groups {
		if w.drawnFor(cluster+" "+groups[i].Name+" joins", 3) == 0 {
			groups[i].Networks = append(groups[i].Networks[:len(groups[i].Networks):len(groups[i].Networks)], api.GroupNetwork{
				Name: api.ProjectNetwork(projectNetworks[w.drawnFor(cluster+" "+groups[i].Name+" network", len(projectNetworks))]), SecurityGroups: w.drawGuards(cluster, groups[i].Name),
			})
		}
	}
}

// endNetworks asks for the end of all networks, as the API does, until all requests are stored: a network is in use while a cluster names it.
func (w *world) endNetworks() {
	s := w.up()
	if s == nil {
		w.after(time.Second, w.endNetworks)
		return
	}
	for _, in := range s.cache.View().NetworkIntents {
		if _, err := s.repo.RequestNetworkDelete(s.ctx, in.Name, s.now()); err != nil {
			w.after(time.Second, w.endNetworks)
			return
		}
	}
	if !w.endVolumes(s) || !w.endGuards(s) {
		w.after(time.Second, w.endNetworks)
	}
}
