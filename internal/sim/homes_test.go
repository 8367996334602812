package sim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// mostHomes is how many users create clusters with homes of their own, each under one name.
const mostHomes = 1

// scheduleHomes lets users create small clusters whose homes are volumes of their own, one after the other, until it is calm. What they do is drawn by
// name, and shifts nothing else.
func (w *world) scheduleHomes() {
	if !w.cfg.Kinds.Has(Homes) {
		return
	}
	for i := range mostHomes {
		w.useHome(fmt.Sprintf("home%d", i), 0)
	}
}

// useHome creates a cluster after a while, deletes it after another, and then the next of the name: also while the home of the last is being purged.
func (w *world) useHome(name string, turn int) {
	key := fmt.Sprintf("%s turn %d", name, turn)
	pause := func(what string, most int) time.Duration {
		return time.Duration(1+w.drawnFor(key+" "+what, most)) * time.Second
	}
	w.after(pause("begin", 240), func() {
		if w.isCalm() {
			return
		}
		if s := w.up(); s != nil {
			w.createWithHome(s, name, key, pause("last", 240))
		}
		w.useHome(name, turn+1)
	})
}

// createWithHome is what the API does with a request for a cluster whose home has a size.
func (w *world) createWithHome(s *server, name, key string, lasts time.Duration) {
	in := api.ClusterIntent{Name: name, UID: strings.ReplaceAll(key, " ", ""), Project: api.DefaultProject, User: "user1", CreatedAt: s.now()}
	in.Spec.Groups = []api.Group{{Name: "g0", Size: 1 + w.drawnFor(key+" members", 2), Shape: api.Shape{Cores: 1}, Stack: api.StackContainer, Environment: "local"}}
	in.Spec.Queue = w.drawnFor(key+" queue", 2) == 0
	in.Spec.Home.Size = api.Bytes(1+w.drawnFor(key+" size", 3)) << 29
	home := api.VolumeIntent{
		Name: api.ClusterHomeName(in.UID), UID: "home-of-" + in.UID, Project: in.Project, User: in.User, Home: true, Cluster: name, ClusterUID: in.UID,
		SizeBytes: int64(in.Spec.Home.Size), MaxFiles: 1000, Access: api.VolumeOneWriter, CreatedAt: s.now(),
	}
	_, err := s.repo.CreateClusterWithHome(s.ctx, in, home, func([]api.VolumeIntent) error { return nil })
	w.trace("create %s (%s) with a home of %s: %v", name, in.UID, in.Spec.Home.Size, err)
	if err != nil {
		if !errors.Is(err, state.ErrExists) && s.ctx.Err() == nil {
			w.must(err)
		}
		return
	}
	w.happened(Homes.String())
	w.count(func(st *Stats) { st.Lives++ })
	w.after(lasts, func() {
		if !w.isCalm() {
			w.delete(name, in.UID)
		}
	})
}

// putVolumeIntent notes homes of clusters, and checks that one comes with its cluster and goes after it.
func (m *mirror) putVolumeIntent(name string, op store.Op) {
	if op.Delete {
		if in := m.homes[name]; in != nil {
			m.checkOwnerEnded(in, "forgotten")
		}
		delete(m.homes, name)
		return
	}
	in := decodeOp[api.VolumeIntent](m.w, op)
	if in.Kind == api.VolumeBlock {
		m.blocks[in.UID] = true
	}
	if in.ClusterUID == "" {
		return
	}
	if m.homes[name] == nil {
		m.homesBegun = append(m.homesBegun, in)
	}
	m.homes[name] = in
}

// checkOwnerEnded checks that the cluster of a home is gone, or is being deleted.
func (m *mirror) checkOwnerEnded(in *api.VolumeIntent, what string) {
	e := m.clusters[in.Cluster]
	if e.intent != nil && e.intent.UID == in.ClusterUID && e.intent.DeleteRequestedAt == nil && (e.record == nil || e.record.Phase != api.ClusterDeleting) {
		m.w.fail("homes", "the home of cluster %s (%s) is %s, and the cluster is there", in.Cluster, in.ClusterUID, what)
	}
}

// checkHomesBegun checks, after a whole commit, that homes came with their clusters.
func (m *mirror) checkHomesBegun() {
	for _, in := range m.homesBegun {
		if e := m.clusters[in.Cluster]; e.intent == nil || e.intent.UID != in.ClusterUID {
			m.w.fail("homes", "the home of cluster %s (%s) is made without the cluster", in.Cluster, in.ClusterUID)
		}
	}
	m.homesBegun = nil
}

// checkHomesPurged checks that no home of a cluster is wiped before the cluster has ended.
func (m *mirror) checkHomesPurged(uid string) {
	for _, in := range m.homes {
		if in.UID == uid {
			m.checkOwnerEnded(in, "wiped")
			m.w.happened("home wiped")
		}
	}
}

// checkHomesAttached checks that a node hears of the attachment of each volume on it that a member is to have: without, no member of the cluster starts.
func (a *agent) checkHomesAttached(d *agentstream.Desired) {
	for i := range d.Members {
		m := &d.Members[i].Assignment
		if d.Members[i].Release {
			continue // one in quarantine may have outlived its cluster
		}
		for _, claim := range m.Volumes {
			for _, v := range d.Volumes {
				if v.UID == claim.UID && !v.Purge && !slices.ContainsFunc(v.Attachments, func(at volume.Attachment) bool { return at.ClusterUID == m.ClusterUID }) {
					a.n.w.fail("homes", "%s hears that %s has volume %s, and not that cluster %s has it attached", a.n.record.Name, m.ID, v.UID, m.ClusterUID)
				}
			}
		}
	}
}

// checkNoHomes checks that homes went with their clusters. A home on a node that is silent for good can't be wiped.
func (w *world) checkNoHomes(m *mirror) {
	for _, name := range slices.Sorted(maps.Keys(m.homes)) {
		in := m.homes[name]
		rec := m.volumes[in.UID]
		if rec == nil || w.node(rec.Node) != nil && !w.node(rec.Node).forgotten {
			w.fail("end", "the home of cluster %s (%s) is never forgotten; its record is %+v", in.Cluster, in.ClusterUID, rec)
		}
	}
}
