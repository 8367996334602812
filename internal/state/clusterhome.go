package state

import (
	"context"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// homeMaker returns the conditions and writes that make the home of a new cluster.
type homeMaker func(context.Context) ([]store.Cond, []store.Op, error)

func noHome(context.Context) ([]store.Cond, []store.Op, error) { return nil, nil, nil }

// CreateClusterWithHome is CreateCluster for a cluster whose home is a volume of its own. One commit stores both, so neither is there without the
// other. check sees the volumes that the project has, and may refuse.
func (r *Repo) CreateClusterWithHome(ctx context.Context, in api.ClusterIntent, home api.VolumeIntent, check func(others []api.VolumeIntent) error) (int64, error) {
	name := api.ClusterHomeName(in.UID)
	if home.ClusterUID != in.UID || home.Cluster != in.Name || home.Name != VolumeName(in.Project, name) || projectOr(home.Project) != projectOr(in.Project) {
		return 0, fmt.Errorf("volume %q of cluster %q (%s) can't be the home of cluster %q (%s)", home.Name, home.Cluster, home.ClusterUID, in.Name, in.UID)
	}
	asked := slices.DeleteFunc(api.VolumesOf(&in), func(a api.VolumeAttachment) bool { return a.Name == name })
	return r.createCluster(ctx, in, asked, func(ctx context.Context) ([]store.Cond, []store.Op, error) {
		conds, ops, others, err := r.volumesBeside(ctx, &home)
		if err != nil {
			return nil, nil, err
		}
		if err := check(others); err != nil {
			return nil, nil, err
		}
		key, use := prefixVolumeIntent+home.Name, prefixVolumeUse+home.UID
		return append(conds, store.Cond{Key: key}, store.Cond{Key: use}), append(ops, put(key, home), put(use, volumeUse{Newest: in.Name})), nil
	})
}

// ownedByOther refuses with ErrOwned a volume that is the home of another cluster.
func ownedByOther(v *api.VolumeIntent, in *api.ClusterIntent) error {
	if v.ClusterUID == "" || v.ClusterUID == in.UID {
		return nil
	}
	return fmt.Errorf("volume %q is the home of cluster %s, and %w", ownName(v.Name), ownName(v.Cluster), ErrOwned)
}

// EndedOwner reports whether a volume is the home of a cluster that has ended or is being deleted.
func (v *View) EndedOwner(vol *Volume) bool {
	in := &vol.Intent
	if in.ClusterUID == "" {
		return false
	}
	c := v.Cluster(in.Cluster)
	return c == nil || c.UID() != in.ClusterUID || c.Intent.DeleteRequestedAt != nil || c.Record != nil && c.Record.Phase == api.ClusterDeleting
}
