package apiserver

import (
	"maps"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// storedNotes returns what changed of stored objects from one view to a later one, but clusters and nodes, which are joined with what is
// observed of them.
func storedNotes(before, after *state.View) []note {
	hidden := owner{hidden: true}
	return slices.Concat(
		notesOf(api.KindShape, before.Shapes, after.Shapes, named(func(s *api.NamedShape) string { return s.Name }, owner{})),
		notesOf(api.KindProject, before.Projects, after.Projects, func(p *api.Project) (string, owner) { return p.Name, owner{project: p.Name} }),
		notesOf(api.KindToken, before.Tokens, after.Tokens, named(func(t *api.TokenInfo) string { return t.ID }, hidden)),
		notesOf(api.KindCandidate, before.Candidates, after.Candidates, named(func(c *api.Candidate) string { return c.MAC }, hidden)),
		notesOf(api.KindEnrollToken, before.EnrollTokens, after.EnrollTokens, named(func(t *api.EnrollmentToken) string { return t.ID }, hidden)),
		notesOf(api.KindJob, before.Jobs, after.Jobs, func(j *api.Job) (string, owner) { return j.ID, ofCluster(j.Cluster) }),
		notesOf(api.KindNetwork, before.Networks, after.Networks, func(n *api.Network) (string, owner) { return n.UID, ofNetwork(n) }),
		intentNotes(before.NetworkIntents, after.NetworkIntents),
		notesOf(api.KindSecurityGroup, before.SecurityGroups, after.SecurityGroups, func(g *api.SecurityGroup) (string, owner) {
			return g.UID, owner{project: projectOr(g.Project)}
		}),
		notesOf(api.KindDataset, before.Datasets, after.Datasets, func(d *api.Dataset) (string, owner) {
			return d.UID, owner{project: projectOr(d.Project)}
		}),
		notesOf(api.KindVolume, before.Volumes, after.Volumes, ofVolume),
		notesOf(api.KindAddress, before.Addresses, after.Addresses, func(a *api.FloatingAddress) (string, owner) {
			return a.Address.String(), owner{project: projectOr(a.Project)}
		}),
		notesOf(api.KindEnvironment, before.Environments, after.Environments, func(e *api.EnvironmentRecord) (string, owner) { return e.Name, ofProjectOrSite(e.Project) }),
		notesOf(api.KindBuild, before.Builds, after.Builds, func(b *api.Build) (string, owner) { return b.ID, ofProjectOrSite(b.Project) }),
	)
}

// ofProjectOrSite is the owner of what belongs to a project, or to the site.
func ofProjectOrSite(project string) owner { return owner{project: project} }

// ofCluster is the owner of a cluster, by its full name, and of what belongs to it.
func ofCluster(full string) owner {
	project, _ := tenancy.Split(full)
	return owner{project: project, cluster: full}
}

// ofVolume is the name and the owner of a volume.
func ofVolume(v *state.Volume) (string, owner) {
	return v.UID(), owner{project: projectOr(v.Intent.Project)}
}

// intentNotes returns what changed of what users want of projects' networks, which are known by their UIDs.
func intentNotes(before, after []*api.NetworkIntent) []note {
	changed, gone := state.Diff(before, after, func(n *api.NetworkIntent) string { return n.Name })
	var notes []note
	for _, n := range gone {
		notes = append(notes, note{kind: api.KindNetwork, name: n.UID, owner: owner{project: projectOr(n.Project)}, deleted: true})
	}
	for _, n := range changed {
		notes = append(notes, note{kind: api.KindNetwork, name: n.UID, owner: owner{project: projectOr(n.Project)}})
	}
	return notes
}

// ofNetwork is the owner of a network: its cluster, or its project.
func ofNetwork(n *api.Network) owner {
	if n.OfProject() {
		return owner{project: projectOr(n.Project)}
	}
	return ofCluster(n.Cluster)
}

// named is what notesOf needs of a kind whose objects all have the same owner.
func named[T any](name func(*T) string, of owner) func(*T) (string, owner) {
	return func(v *T) (string, owner) { return name(v), of }
}

// notesOf returns what changed of one kind.
func notesOf[T any](kind api.Kind, before, after []*T, describe func(*T) (string, owner)) []note {
	changed, gone := state.Diff(before, after, func(v *T) string { name, _ := describe(v); return name })
	var notes []note
	for _, v := range gone {
		name, of := describe(v)
		notes = append(notes, note{kind: kind, name: name, owner: of, deleted: true})
	}
	for _, v := range changed {
		name, of := describe(v)
		notes = append(notes, note{kind: kind, name: name, owner: of})
	}
	return notes
}

// nodeNotes returns what changed of nodes: of what is stored, and of those whose agents said something new.
func nodeNotes(before, after *state.View, observed map[string]bool) []note {
	names := map[string]bool{}
	for name := range observed {
		names[name] = true
	}
	for _, n := range notesOf(api.KindNode, before.Nodes, after.Nodes, named(func(n *state.Node) string { return n.Name }, owner{})) {
		names[n.name] = true
	}
	var notes []note
	for _, name := range slices.Sorted(maps.Keys(names)) {
		there, was := after.Node(name) != nil, before.Node(name) != nil
		if there || was {
			notes = append(notes, note{kind: api.KindNode, name: name, deleted: !there})
		}
	}
	return notes
}

// heard is what was last known of nodes by observation.
type heard map[string]heardNode

type heardNode struct {
	phase   api.NodePhase
	message string
}

// look returns the nodes of which something else is known than before: of those told about, phase or message; with sweep of all others the
// phase, which changes by the clock alone (and a message counts the seconds since).
func (h heard) look(live Live, view *state.View, told []string, sweep bool) map[string]bool {
	news := map[string]bool{}
	see := func(name string, words bool) {
		phase, _, message := live.Node(name)
		if old, known := h[name]; known && old.phase == phase && (!words || old.message == message) {
			return
		}
		h[name], news[name] = heardNode{phase, message}, true
	}
	for _, name := range told {
		see(name, true)
	}
	if !sweep {
		return news
	}
	for n := range view.Agents() {
		see(n.Name, false)
	}
	for name := range h {
		if view.Node(name) == nil {
			delete(h, name)
		}
	}
	return news
}
