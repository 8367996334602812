package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
)

// checkRest checks where clusters are when nothing has gone wrong for long: ready, paused, refused, failed, queued with a reason, or
// degraded or scaling since there is no room indeed.
func (w *world) checkRest() {
	s := w.store.leader()
	if s == nil {
		w.fail("rest", "nobody leads, and nothing keeps anybody from it")
		return
	}
	site := s.look()
	for name, n := range site.Nodes {
		if w.node(name).box == nil && n.Phase != api.NodeReady {
			w.fail("rest", "node %s is %s, and nothing is wrong with it", name, n.Phase)
		}
	}
	for _, c := range site.View.Clusters {
		phase, message := api.ClusterPending, ""
		if c.Record != nil {
			phase, message = c.Record.Phase, c.Record.Message
		}
		w.happened("at rest " + string(phase))
		switch phase {
		case api.ClusterReady, api.ClusterPaused, api.ClusterSaved, api.ClusterRefused, api.ClusterFailed:
		case api.ClusterRestoring:
			w.checkNoHome(site, c)
		case api.ClusterQueued:
			if message == "" {
				w.fail("rest", "cluster %s is queued, and does not say why", c.Name())
			}
		case api.ClusterDegraded, api.ClusterScaling:
			w.checkNoRoom(site, c)
		case api.ClusterStarting:
			if startOf(w.assignmentsOf(c.Name()), lifecycle.DefaultDeadlines()) == lifecycle.DefaultDeadlines().Start {
				w.fail("rest", "cluster %s is %s (%s) since %s", c.Name(), phase, message, c.Record.ChangedAt)
			}
			w.checkNoRoom(site, c) // a whole machine has long to start, and room is waited for as long
		default:
			w.fail("rest", "cluster %s is %s (%s) for %s after nothing has gone wrong for %s", c.Name(), phase, message,
				site.Now.Sub(c.Record.ChangedAt), w.settling())
		}
		w.checkMembersAtRest(c)
		w.checkMovesAtRest(site, c)
		w.checkResizesAtRest(site, c)
		w.checkAttachmentsAtRest(c)
		w.checkLayersAtRest(c)
		w.checkSnapshotsAtRest(site, c)
		w.checkAttached(c)
	}
	for _, j := range site.View.Jobs {
		c := site.View.Cluster(j.Cluster)
		frozen := c != nil && c.Record != nil && (c.Record.Phase == api.ClusterPaused || lifecycle.Shelving(c.Record.Phase))
		if !j.Phase.Ended() && j.Phase != api.JobPending && !frozen {
			w.fail("rest", "job %s is still %s (%s)", j.ID, j.Phase, j.Message)
		}
	}
	trusted := slices.ContainsFunc(site.View.Nodes, (*state.Node).TrustedBuilder)
	for _, b := range site.View.Builds {
		if !b.Phase.Ended() && (trusted || b.Phase != api.BuildPending) { // a site of one node has no honest builder to wait for
			w.fail("rest", "build %s is still %s (%s)", b.ID, b.Phase, b.Message)
		}
	}
	w.checkVolumesAtRest(s)
	w.checkLimitsAtRest(s)
	w.checkMachinesAtRest()
}

// checkNoRoom checks that what a cluster waits for can't be placed.
func (w *world) checkNoRoom(site *situation.Site, c *state.Cluster) {
	needs := site.Needs()
	room := situation.Room{Offers: w.offers()}
	free, err := room.Update(site.View, site.Available)
	if err != nil {
		w.must(err)
		return
	}
	in := site.Admission(needs, free)
	for i, asked := range needs {
		if asked.Cluster != c || asked.Need.Kind == lifecycle.NeedSpare || asked.Need.Kind == lifecycle.NeedMove ||
			asked.Need.Kind == lifecycle.NeedResize {
			continue
		}
		groups := in.Requests[i].Groups
		if _, refusal := placement.Place(free, placement.Request{Cluster: c.Name(), Groups: groups}); refusal != nil {
			return
		}
		if slices.ContainsFunc(groups, asksOwnNode) {
			return // nodes are chosen without a look at their devices
		}
		sketch := free.Sketch()
		if fit, _, ok := sketch.Fit(groups); ok {
			if _, missing := sketch.FitDevices(groups, fit); missing != "" {
				return
			}
		}
		m := asked.Need.Members[0]
		grows := m.Held != nil && *m.Held != groups[0].Shape
		if (m.Regains || grows) && !resource.OfQuota(in.Accounts[c.Intent.Project].Quota).IsZero() {
			return // the replacement of a saved member takes what that had given back, and one that was to grow takes more than it held
		}
		if asked.Need.Kind == lifecycle.NeedScale && (anyoneQueued(site.View) || !resource.OfQuota(in.Accounts[c.Intent.Project].Quota).IsZero()) {
			return // it fits, and may not go before others or above a quota
		}
	}
	if w.lostDisk(site.View, c) {
		return
	}
	w.fail("rest", "cluster %s is %s (%s), and there is room for all it waits for; its members are %s", c.Name(), c.Record.Phase, c.Record.Message, membersOf(site, c))
}

// membersOf says how the leader sees the members of a cluster.
func membersOf(site *situation.Site, c *state.Cluster) string {
	in := site.Cluster(c)
	var texts []string
	for _, a := range in.Assignments {
		phase, message := lifecycle.MemberPhase(a, in.Observed, in.Nodes)
		texts = append(texts, fmt.Sprintf("%s on %s %s (%s), with current files %t", a.ID, a.Node, phase, message, in.Observed[a.ID].Current))
	}
	return strings.Join(texts, ", ")
}

func anyoneQueued(v *state.View) bool {
	return slices.ContainsFunc(v.Clusters, func(c *state.Cluster) bool {
		return c.Record != nil && (c.Record.Phase == api.ClusterQueued || c.Record.Phase == api.ClusterScaling)
	})
}

// checkMembersAtRest checks that nothing is left of what was lost or let go of, and that a ready cluster runs indeed.
func (w *world) checkMembersAtRest(c *state.Cluster) {
	for a := range c.Releasing() {
		w.fail("rest", "%s of cluster %s is still being cleaned", a.ID, c.Name())
	}
	for a := range c.Held() {
		if a.Spare || a.IsSnapshot() {
			continue
		}
		h := w.node(a.Node).host[a.ID]
		if c.Record.Phase == api.ClusterReady && (h == nil || h.state != lifecycle.HostRunning) {
			w.fail("rest", "cluster %s is ready, and %s does not run", c.Name(), a.ID)
		}
		if c.Record.Phase == api.ClusterPaused && a.ByProvisioner() {
			w.checkOffInPause(c, a)
			continue
		}
		if c.Record.Phase == api.ClusterPaused && a.IsMember() && (h == nil || h.state != lifecycle.HostPaused) {
			w.fail("rest", "cluster %s is paused, and %s is not frozen", c.Name(), a.ID)
		}
	}
	w.checkSavedAtRest(c)
	if c.Record == nil {
		return
	}
	w.read(func(m *mirror) {
		all := m.assignments(c.Record)
		for _, id := range c.Record.Clean {
			if !slices.ContainsFunc(all, func(a held) bool { return a.ID == id }) {
				w.fail("rest", "cluster %s keeps %s on its clean list, of which there is no chunk any more", c.Name(), id)
			}
		}
	})
}

// checkEnd checks that nothing is left when all is deleted and calm, but the records of use.
func (w *world) checkEnd() {
	w.read(w.checkNothingStored)
	for _, n := range w.nodes {
		for id, h := range n.host {
			w.fail("end", "%s is never removed from %s: %s", id, n.record.Name, h.state)
		}
		if len(n.networks) > 0 {
			w.fail("end", "networks of %v are never removed from %s", slices.Sorted(maps.Keys(n.networks)), n.record.Name)
		}
	}
	w.checkFabricEmpty()
	w.checkReport()
}

func (w *world) checkNothingStored(m *mirror) {
	if names := m.names(); len(names) > 0 {
		phase := api.ClusterPending
		if r := m.clusters[names[0]].record; r != nil {
			phase = r.Phase
		}
		w.fail("end", "clusters %v were deleted and never go, %s is %s", names, names[0], phase)
	}
	if len(m.chunks)+len(m.quarantines) > 0 {
		w.fail("end", "%v and %v are never removed", slices.Sorted(maps.Keys(m.chunks)), slices.Sorted(maps.Keys(m.quarantines)))
	}
	w.checkNoHomes(m)
	if len(m.addresses.now) > 0 {
		w.fail("end", "addresses %v are never released", slices.Collect(maps.Keys(m.addresses.now)))
	}
	for uid, a := range m.ledger {
		for _, kind := range spanKinds {
			if a.rate[kind] != 0 || a.recorded[kind] != a.total[kind] {
				w.fail("end", "the records of %s come to %d core-nanoseconds %s, it used %d", uid, a.recorded[kind], kind, a.total[kind])
			}
		}
	}
}
