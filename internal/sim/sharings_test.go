package sim

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// crossing is what a node's kernel has of one cluster's volumes that cross between nodes. It ends with the kernel.
type crossing struct {
	serves  []string
	clients []netip.Addr
	reaches map[string]bool
	// blocks are those that are served by a process.
	blocks map[string]bool
	// kept are clients that it goes on with and does not speak of, without a guard.
	kept []netip.Addr
}

// addVolume gives every second cluster a volume of its project, if there is one.
func (w *world) addVolume(s *server, in *api.ClusterIntent) {
	volumes := fileVolumes(s.cache.View())
	if in.Project != "" && in.Project != api.DefaultProject || len(volumes) == 0 || w.drawnFor(in.UID+" has a volume", 2) != 0 {
		return
	}
	v := volumes[w.drawnFor(in.UID+" volume", len(volumes))]
	if v.Intent.DeleteRequestedAt == nil && v.Intent.UID != "" {
		in.Spec.Volumes = []api.VolumeAttachment{{Name: v.Intent.Name}}
		w.happened("cluster with a volume")
	}
}

// volumeErrors are why a cluster can't have a volume that it asks for.
var volumeErrors = []error{state.ErrNoVolume, state.ErrDeleted, state.ErrImporting, state.ErrOwned, state.ErrAccess, state.ErrInUse}

func isAny(err error, of []error) bool {
	return slices.ContainsFunc(of, func(one error) bool { return errors.Is(err, one) })
}

// obeySharings lets a node do what is wanted of volumes that cross, each cluster's after a while.
func (a *agent) obeySharings(wanted []volume.Sharing) {
	a.sharings = map[string]volume.Sharing{}
	clusters := maps.Clone(a.n.crossings)
	for _, s := range wanted {
		a.sharings[s.ClusterUID] = s
		if clusters[s.ClusterUID] == nil {
			clusters[s.ClusterUID] = &crossing{}
		}
	}
	for _, cluster := range slices.Sorted(maps.Keys(clusters)) {
		key := fmt.Sprintf("%s %s sharing %d", a.n.record.Name, cluster, a.epoch.Revision)
		a.n.w.after(time.Duration(1+a.n.w.drawnFor(key, 20_000))*time.Millisecond, func() { a.run(func() { a.applySharing(cluster, key, 0) }) })
	}
}

// applySharing brings what crosses of a cluster to what is wanted by now, and tries again as long as it can't.
func (a *agent) applySharing(cluster, key string, try int) {
	n, want := a.n, a.sharings[cluster]
	if n.sick {
		if try < 100 {
			n.w.after(time.Duration(1+n.w.drawnFor(key+" again", 10))*time.Second, func() { a.run(func() { a.applySharing(cluster, key, try+1) }) })
		}
		return
	}
	now := n.crossings[cluster]
	if now == nil {
		now = &crossing{reaches: map[string]bool{}, blocks: map[string]bool{}}
		n.crossings[cluster] = now
	}
	had := now.clients
	for _, c := range now.clients {
		if !slices.Contains(want.Clients, c) {
			n.w.happened("sharing: client shut out")
		}
	}
	now.serves, now.clients = nil, nil
	clear(now.blocks)
	for _, share := range want.Serves {
		if !a.mayShare(share, cluster) {
			continue
		}
		now.serves, now.clients = append(now.serves, share.UID), want.Clients
		if share.Block {
			now.blocks[share.UID] = true
		}
	}
	if n.w.cfg.Without == GuardShutOut && len(now.serves) > 0 {
		now.kept = append(now.kept, had...)
	}
	used := slices.ContainsFunc(slices.Collect(maps.Keys(n.host)), func(id string) bool { return clusterOf(id) == cluster && n.host[id].runs() })
	switch {
	case want.Client:
		for _, r := range want.Reaches {
			if !now.reaches[r.UID] {
				n.w.happened("sharing: volume reached")
			}
			now.reaches[r.UID] = true
		}
	case !used: // it is taken away only once no member has it
		clear(now.reaches)
	}
	if len(now.serves) == 0 && len(now.reaches) == 0 && !want.Client {
		delete(n.crossings, cluster)
	}
	n.w.checkSharing(cluster)
	n.w.touched()
	a.report()
	a.wake(0)
}

// letsIn reports whether a node has what is served.
func (c *crossing) letsIn(addr netip.Addr) bool {
	return slices.Contains(c.clients, addr) || slices.Contains(c.kept, addr)
}

// sharingsObserved adds what an agent says of volumes that cross.
func (a *agent) sharingsObserved(told *agentstream.Observed) {
	for _, cluster := range slices.Sorted(maps.Keys(a.n.crossings)) {
		c := a.n.crossings[cluster]
		told.Sharings = append(told.Sharings, volume.SharingState{
			ClusterUID: cluster, Serves: c.serves, Clients: c.clients, Reaches: slices.Sorted(maps.Keys(c.reaches)),
		})
	}
}

// hasVolumes reports whether a member may begin to use its volumes.
func (a *agent) hasVolumes(id string, d wanted) bool {
	if len(d.volumes) == 0 || a.n.w.cfg.Without == GuardSettled {
		return true
	}
	want, told := a.sharings[d.cluster]
	if told && !want.Settled {
		return false
	}
	has := a.n.crossings[d.cluster]
	if has != nil && slices.ContainsFunc(has.clients, func(c netip.Addr) bool { return !slices.Contains(want.Clients, c) }) {
		return false
	}
	for _, claim := range d.volumes {
		if !a.hasDiskHere(claim, id, d) {
			return false
		}
		if claim.Detaching {
			continue
		}
		wanted := slices.ContainsFunc(want.Reaches, func(r volume.Remote) bool { return r.UID == claim.UID })
		if claim.Node != a.n.record.Name && (!wanted || has == nil || !has.reaches[claim.UID]) {
			return false
		}
	}
	return true
}

// clusterOf is the UID of the cluster that an assignment's ID names.
func clusterOf(id string) string {
	for i := range id {
		if id[i] == '.' {
			return id[:i]
		}
	}
	return id
}

// checkSharing checks that no node is let in to a cluster's volumes for what is left of members that were lost with it, while others run in their
// place.
func (w *world) checkSharing(cluster string) {
	var held map[string]*api.Assignment
	w.read(func(m *mirror) {
		held = maps.Clone(m.held)
		maps.DeleteFunc(held, func(id string, _ *api.Assignment) bool { return m.released[id] > 0 })
	})
	running := map[string]string{} // by lineage: the node
	for _, n := range w.nodes {
		for id, h := range n.host {
			if clusterOf(id) == cluster && held[id] != nil && h.state == lifecycle.HostRunning {
				running[lineage(id)] = n.record.Name
			}
		}
	}
	for _, server := range w.nodes {
		c := server.crossings[cluster]
		if c == nil {
			continue
		}
		for _, n := range w.nodes {
			addr := netip.MustParseAddr(n.record.Underlay)
			if !c.letsIn(addr) || slices.ContainsFunc(slices.Collect(maps.Values(held)), func(a *api.Assignment) bool {
				return a.ClusterUID == cluster && a.Node == n.record.Name
			}) {
				continue
			}
			for id, h := range n.host {
				if on := running[lineage(id)]; clusterOf(id) == cluster && h.state == lifecycle.HostRunning && held[id] == nil && on != "" && on != n.record.Name {
					w.fail("sharing", "%s, which was lost with %s, may write to a volume on %s while another runs in its place on %s", id, n.record.Name, server.record.Name, on)
				}
			}
		}
	}
}
