package apiserver

import (
	"context"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// savedCluster is what a cluster is whose files become an environment. Its home gets a snapshot if it is a volume that outlives the cluster.
func (s *Server) savedCluster(ctx context.Context, c *state.Cluster, a *api.Assignment, req api.SaveFilesRequest) (*api.SavedCluster, error) {
	project, name := tenancy.Split(c.Name())
	saved := &api.SavedCluster{Cluster: name, Member: a.Member, Groups: slices.Clone(c.Intent.Spec.Groups), SavedAt: s.cfg.Now().UTC()}
	for i := range saved.Groups {
		g := &saved.Groups[i]
		g.NodeSelector = nil // any machines that suit it
		if g.Stack == a.Stack && g.Environment == a.Environment {
			g.Environment = req.Environment
		}
	}
	home := lastingHome(&c.Intent)
	if home == "" || req.NoHome {
		return saved, nil
	}
	v, err := s.homeToChange(ctx, project, home)
	if err != nil {
		return nil, err
	}
	snapshot := api.VolumeSnapshotIntent{Name: req.Environment, UID: newID(uidLetters), CreatedAt: s.cfg.Now().UTC()}
	if err := s.addSnapshot(ctx, v, home, snapshot); err != nil {
		return nil, err
	}
	saved.Home = home + "@" + req.Environment
	return saved, nil
}

// lastingHome is the volume that a cluster has as its home and that outlives it, by its name within its project; "" for none.
func lastingHome(in *api.ClusterIntent) string {
	if in.Spec.Home.Bounded() {
		return ""
	}
	for _, v := range api.VolumesOf(in) {
		if v.MountPath() == "/home" {
			return v.Name
		}
	}
	return ""
}

// homeToChange finds the volume that is a home, in the cluster's project, whoever asks.
func (s *Server) homeToChange(ctx context.Context, project, home string) (*state.Volume, error) {
	v := s.cfg.Reader.View().VolumeNamed(tenancy.FullName(project, home))
	if v == nil {
		return nil, noVolume(home)
	}
	return s.volumeToChange(ctx, v.Intent.UID)
}

// forgetHome removes the snapshot of a home if no environment comes to go with it.
func (s *Server) forgetHome(ctx context.Context, c *state.Cluster, saved *api.SavedCluster) {
	home, snapshot := manifest.CutVolumeSnapshot(saved.Home)
	if home == "" {
		return
	}
	project, _ := tenancy.Split(c.Name())
	v, err := s.homeToChange(ctx, project, home)
	if err == nil {
		_, err = s.deleteVolumeSnapshot(ctx, &volumeSnapshotInput{Name: v.Intent.UID, Snapshot: snapshot})
	}
	if err != nil {
		s.cfg.Log.WarnContext(ctx, "the snapshot of a home stays, and no environment goes with it", "snapshot", saved.Home, "error", err)
	}
}
