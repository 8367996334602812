package apiserver

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// homeText says what kind of home a cluster has.
func homeText(spec api.ClusterSpec) string {
	if spec.Home.Bounded() {
		return fmt.Sprintf("%s of %s", api.HomeOfCluster, spec.Home.Size)
	}
	return cmp.Or(spec.Home.Kind, api.HomeOfCluster)
}

// writeCluster stores a new cluster, and in the same commit the volume that is its own home, if it asks for one and its project's quota has room.
func (s *Server) writeCluster(ctx context.Context, in api.ClusterIntent) (int64, error) {
	if !in.Spec.Home.Bounded() {
		return s.cfg.Writer.CreateCluster(ctx, in)
	}
	view, project, size := s.cfg.Reader.View(), projectOr(in.Project), int64(in.Spec.Home.Size)
	home := api.VolumeIntent{
		Name: tenancy.FullName(project, api.ClusterHomeName(in.UID)), UID: newID(uidLetters), Project: project, User: in.User, Home: true,
		Cluster: in.Name, ClusterUID: in.UID, SizeBytes: size, MaxFiles: filesFor(size), Access: api.VolumeOneWriter, CreatedAt: in.CreatedAt,
	}
	return s.cfg.Writer.CreateClusterWithHome(ctx, in, home, func(others []api.VolumeIntent) error {
		if len(others) >= maxVolumes {
			return tooManyVolumes(project, len(others))
		}
		return s.storageFits(view, &home, others, 0, size)
	})
}

// ownerOf names the cluster of which a volume is the home, as far as a principal may know of it.
func ownerOf(p tenancy.Principal, in *api.VolumeIntent) string {
	if in.Cluster == "" || !seesCluster(p, in.Cluster) {
		return ""
	}
	return shownName(p, in.Cluster)
}

// whatExceeds names a volume in refusals.
func whatExceeds(v *api.VolumeIntent) string {
	_, own := tenancy.Split(v.Name)
	if v.Cluster == "" {
		return fmt.Sprintf("volume %q", own)
	}
	_, cluster := tenancy.Split(v.Cluster)
	return fmt.Sprintf("the home of cluster %q", cluster)
}

// attachmentsText lists the volumes of a cluster.
func attachmentsText(spec api.ClusterSpec) string {
	if len(spec.Volumes) == 0 {
		return "none"
	}
	texts := make([]string, len(spec.Volumes))
	for i, v := range spec.Volumes {
		texts[i] = fmt.Sprintf("%s at %s", v.Name, v.MountPath())
		if v.ReadOnly {
			texts[i] += " (read-only)"
		}
	}
	return strings.Join(texts, ", ")
}

// keepsHome reports whether a cluster's home outlives it, or there is none to speak of.
func keepsHome(spec *api.ClusterSpec) bool {
	if spec.Home.Kind == api.HomeOfUser || spec.Home.Kind == api.HomeNone {
		return true
	}
	for _, v := range spec.Volumes {
		if v.MountPath() == "/home" {
			return true
		}
	}
	return false
}
