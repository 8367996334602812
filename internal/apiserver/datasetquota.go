package apiserver

import (
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// dataHeld is what nodes hold of the datasets of each project, in replicas and caches, in bytes.
func (s *Server) dataHeld(view *state.View) map[string]int64 {
	projects := map[string]string{}
	for _, d := range view.Datasets {
		projects[d.UID] = projectOr(d.Project)
	}
	held := map[string]int64{}
	for _, n := range s.cfg.Live.Datasets() {
		for i := range n.States {
			held[projects[n.States[i].UID]] += n.States[i].HeldBytes
		}
		for i := range n.Caches {
			held[projects[n.Caches[i].UID]] += n.Caches[i].HeldBytes
		}
	}
	delete(held, "") // what is left of datasets that were deleted
	return held
}

// dataFits refuses what would have nodes hold more of a project's datasets than its quota.
func (s *Server) dataFits(view *state.View, project, what string, need int64) error {
	p := view.Project(project)
	if p == nil || p.Quota.Datasets == 0 || need <= 0 {
		return nil
	}
	used, quota, text := s.dataHeld(view)[project], int64(p.Quota.Datasets), resource.Storage.Number
	if used+need <= quota {
		return nil
	}
	return fail(codeOverQuota, "%s exceeds the quota of project %q: nodes would fetch %s, and hold %s of the %s that they may hold of its datasets; "+
		"remove replicas ('nearmetal dataset evict'), or ask an administrator for a larger quota", what, project, text(need), text(used), text(quota))
}

// sized refuses a dataset whose size is not known where a quota has to count it.
func sized(view *state.View, project string, d *api.Dataset) error {
	p := view.Project(project)
	if p == nil || p.Quota.Datasets == 0 || !slices.ContainsFunc(d.Files, func(f api.DatasetFile) bool { return f.SizeBytes == 0 }) {
		return nil
	}
	_, own := tenancy.Split(d.Name)
	return fail(codeOverQuota, "dataset %q has files of unknown size, which the quota of project %q can't count; add it again with a size for each file (size=)", own, project)
}

// heldOn is the most that a node has of a dataset, of all nodes or one: as a replica, or in a cache.
func (s *Server) heldOn(uid, node string, cached bool) int64 {
	var most int64
	for _, n := range s.cfg.Live.Datasets() {
		if node != "" && n.Name != node {
			continue
		}
		for i := range n.States {
			if !cached && n.States[i].UID == uid {
				most = max(most, n.States[i].HeldBytes)
			}
		}
		for i := range n.Caches {
			if cached && n.Caches[i].UID == uid {
				most = max(most, n.Caches[i].HeldBytes)
			}
		}
	}
	return most
}

func sizeOf(d *api.Dataset) (bytes int64) {
	for _, f := range d.Files {
		bytes += f.SizeBytes
	}
	return bytes
}

// clusterDataFits refuses a cluster whose datasets don't fit into its project's quota, with one replica or cache of each on whichever node has most of it.
func (s *Server) clusterDataFits(view *state.View, project, name string, spec api.ClusterSpec) error {
	var need int64
	asked := map[api.DatasetUse]bool{}
	for _, g := range spec.Groups {
		for _, text := range g.Datasets {
			use := api.ParseDatasetUse(text)
			d := view.Dataset(tenancy.FullName(project, use.Name))
			if d == nil || use.Way == api.DatasetStream || asked[use] {
				continue
			}
			asked[use] = true
			if err := sized(view, project, d); err != nil {
				return err
			}
			need += max(0, sizeOf(d)-s.heldOn(d.UID, "", use.Way.Cached()))
		}
	}
	return s.dataFits(view, project, fmt.Sprintf("cluster %q", name), need)
}

// replicasFit refuses replicas that don't fit into a project's quota.
func (s *Server) replicasFit(view *state.View, d *api.Dataset, nodes []string) error {
	project := projectOr(d.Project)
	if err := sized(view, project, d); err != nil {
		return err
	}
	var need int64
	for _, node := range nodes {
		need += max(0, sizeOf(d)-s.heldOn(d.UID, node, false))
	}
	_, own := tenancy.Split(d.Name)
	return s.dataFits(view, project, fmt.Sprintf("replicating dataset %q to %d nodes", own, len(nodes)), need)
}
