package state

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// changeVolumes notes what a change of a cluster's volumes leaves to be detached, given how the cluster asked for its volumes before. Such a volume stays
// in use until the leader has noted that no member has it. One that is asked for again, in the same way, is not to be detached any more; in another
// way it is ErrDetaching until then.
func (r *Repo) changeVolumes(ctx context.Context, in *api.ClusterIntent, before []api.VolumeAttachment) error {
	now := api.VolumesOf(in)
	if slices.Equal(before, now) {
		return nil
	}
	for _, was := range before { // members let go of a volume before they get it in another way
		i := slices.IndexFunc(now, func(a api.VolumeAttachment) bool { return a.Name == was.Name })
		if i >= 0 && (now[i].MountPath() != was.MountPath() || now[i].ReadOnly != was.ReadOnly) {
			return fmt.Errorf("volume %q is %w by cluster %q at %s; detach it first to attach it in another way", was.Name, ErrInUse, ownName(in.Name), was.MountPath())
		}
	}
	in.VolumesNumber++
	pending, err := r.detaching(ctx, in)
	if err != nil {
		return err
	}
	for _, d := range pending {
		i := slices.IndexFunc(now, func(a api.VolumeAttachment) bool { return a.Name == d.Name })
		if i >= 0 && (now[i].MountPath() != d.MountPath() || now[i].ReadOnly != d.ReadOnly) {
			return &DetachingError{Cluster: in.Name, Volume: d.VolumeAttachment}
		}
	}
	in.Detaching = slices.DeleteFunc(pending, func(d api.VolumeDetach) bool { return named(now, d.Name) })
	for _, was := range before {
		if named(now, was.Name) {
			continue
		}
		full := VolumeName(in.Project, was.Name)
		v, _, err := get[api.VolumeIntent](ctx, r, prefixVolumeIntent+full, "volume", full)
		if errors.Is(err, ErrNotFound) {
			continue // nothing of it is left that could be attached
		}
		if err != nil {
			return err
		}
		in.Detaching = append(in.Detaching, api.VolumeDetach{UID: v.UID, Number: in.VolumesNumber, VolumeAttachment: was})
	}
	return nil
}

func named(all []api.VolumeAttachment, name string) bool {
	return slices.ContainsFunc(all, func(a api.VolumeAttachment) bool { return a.Name == name })
}

// detaching returns the volumes that members of a cluster may still have, and are to let go of.
func (r *Repo) detaching(ctx context.Context, in *api.ClusterIntent) ([]api.VolumeDetach, error) {
	if len(in.Detaching) == 0 {
		return nil, nil
	}
	record, _, err := get[api.ClusterRecord](ctx, r, prefixRecord+in.Name, "record of cluster", in.Name)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	return undetached(in, &record), nil
}

// undetached returns the volumes that members of a cluster may still have, and are to let go of.
func undetached(in *api.ClusterIntent, record *api.ClusterRecord) []api.VolumeDetach {
	if len(in.Detaching) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(in.Detaching), func(d api.VolumeDetach) bool {
		return record != nil && slices.ContainsFunc(record.Detached, d.Same)
	})
}

// Detaching returns the volumes that members of the cluster may still have, and are to let go of.
func (c *Cluster) Detaching() []api.VolumeDetach { return undetached(&c.Intent, c.Record) }

// DetachingError reports that a volume is still being detached from a cluster that asks for it in another way.
type DetachingError struct {
	Cluster string
	// Volume is how the cluster has it.
	Volume api.VolumeAttachment
}

func (e *DetachingError) Error() string {
	return "volume " + e.Volume.Name + " is still being detached from cluster " + ownName(e.Cluster) + ", which has it at " + e.Volume.MountPath()
}
