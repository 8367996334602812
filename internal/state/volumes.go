package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/store"
)

// volumeUse is written by every commit that stores a cluster which asks for a volume. The deletion of a volume depends on its revision, so
// neither passes the other, and so does the next cluster that asks for it: two never become the one that writes.
type volumeUse struct {
	Newest string `json:"newest"`
}

// volumeProject is written by every commit that makes, grows or snapshots a volume of a project, and depends on its revision. So what the check of
// the quota looked at, the other volumes of the project, is still as it was.
type volumeProject struct {
	Newest string `json:"newest"`
}

// VolumeChange sees a volume to change and the other volumes of its project, and may refuse. It may be called several times.
type VolumeChange func(v *api.VolumeIntent, others []api.VolumeIntent) error

// CreateVolume stores what a user wants of a new volume. check sees the volumes that the project has, and may refuse. A taken name is ErrExists, a
// project that does not exist ErrNoProject, and a snapshot to begin as that does not exist ErrNoVolume.
func (r *Repo) CreateVolume(ctx context.Context, in api.VolumeIntent, check func(others []api.VolumeIntent) error) (int64, error) {
	what := fmt.Sprintf("volume %q", ownName(in.Name))
	revision, err := r.createIn(ctx, in.Project, put(prefixVolumeIntent+in.Name, in), what, func() ([]store.Cond, []store.Op, error) {
		conds, ops, others, err := r.volumesBeside(ctx, &in)
		if err != nil {
			return nil, nil, err
		}
		origin, err := r.originOf(ctx, &in, others)
		if err != nil {
			return nil, nil, err
		}
		return append(conds, origin...), ops, check(others)
	})
	if err != nil {
		return 0, err
	}
	failpoint.Hit("state.after-volume-intent")
	return revision, nil
}

// originOf returns the condition that the snapshot which a volume begins as is still there.
func (r *Repo) originOf(ctx context.Context, in *api.VolumeIntent, others []api.VolumeIntent) ([]store.Cond, error) {
	if !in.Origin.IsSnapshot() {
		return nil, nil
	}
	i := slices.IndexFunc(others, func(o api.VolumeIntent) bool { return o.UID == in.Origin.VolumeUID })
	if i < 0 {
		return nil, fmt.Errorf("%w: the volume to clone is gone", ErrNoVolume)
	}
	o, revision, err := get[api.VolumeIntent](ctx, r, prefixVolumeIntent+others[i].Name, "volume", others[i].Name)
	switch {
	case errors.Is(err, ErrNotFound) || err == nil && o.UID != in.Origin.VolumeUID:
		return nil, fmt.Errorf("%w: the volume to clone is gone", ErrNoVolume)
	case err != nil:
		return nil, err
	case o.DeleteRequestedAt != nil:
		return nil, fmt.Errorf("%w: %q was deleted", ErrNoVolume, ownName(o.Name))
	case in.Origin.SnapshotUID == api.CloneSnapshotUID(in.UID): // it is made for this clone
	case !slices.ContainsFunc(o.Snapshots, func(s api.VolumeSnapshotIntent) bool { return s.UID == in.Origin.SnapshotUID }):
		return nil, fmt.Errorf("%w: the snapshot of %q to clone is gone", ErrNoVolume, ownName(o.Name))
	}
	return []store.Cond{{Key: prefixVolumeIntent + o.Name, Revision: revision}}, nil
}

// ChangeVolume changes what a user wants of a volume by compare-and-swap. An error of change ends it and is returned as it is. A volume of another
// UID than the one given is ErrNotFound, and one that was deleted ErrDeleted. An access that clusters which ask for the volume do not have, and a
// restore while any cluster asks for it, is ErrInUse. Nothing is written when change leaves the volume as it was. Name, UID, project, user, origin and time of creation can't be changed.
func (r *Repo) ChangeVolume(ctx context.Context, name, uid string, change VolumeChange) (api.VolumeIntent, int64, error) {
	var none api.VolumeIntent
	key := prefixVolumeIntent + name
	for {
		v, revision, err := r.volumeOf(ctx, name, uid)
		if err != nil {
			return none, 0, err
		}
		if v.DeleteRequestedAt != nil {
			return none, 0, fmt.Errorf("volume %q %w", ownName(name), ErrDeleted)
		}
		was, before := v, put(key, v)
		conds, ops, others, err := r.volumesBeside(ctx, &v)
		if err != nil {
			return none, 0, err
		}
		v.Snapshots = slices.Clone(v.Snapshots)
		if err := change(&v, others); err != nil {
			return none, 0, err
		}
		if v.Name != was.Name || v.UID != was.UID || v.Project != was.Project || v.User != was.User || v.Home != was.Home || v.Cluster != was.Cluster || v.ClusterUID != was.ClusterUID ||
			v.Origin != was.Origin || !v.CreatedAt.Equal(was.CreatedAt) || v.DeleteRequestedAt != nil || v.PurgeAt != nil {
			return none, 0, fmt.Errorf("volume %q: name, UID, project, user, origin and times of its intent can't be changed", ownName(name))
		}
		op := put(key, v)
		if bytes.Equal(op.Value, before.Value) {
			return v, revision, nil
		}
		if v.Restore != was.Restore { // what members have open would change below them
			use, err := r.unattached(ctx, &v)
			if err != nil {
				return none, 0, err
			}
			conds = append(conds, use)
		}
		if v.Access != was.Access {
			use, err := r.fitsAccess(ctx, &v)
			if err != nil {
				return none, 0, err
			}
			conds = append(conds, use)
		}
		next, err := r.store.Commit(ctx, append(conds, store.Cond{Key: key, Revision: revision}), append(ops, op))
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return none, 0, fmt.Errorf("change volume %q: %w", name, err)
		}
		failpoint.Hit("state.after-volume-change")
		return v, next, nil
	}
}

// RequestVolumeDelete marks a volume as deleted at a time, to be purged at another; of a volume that was deleted before, the earlier time of the purge
// counts. It refuses with ErrInUse while a cluster asks for the volume, one that comes at the same moment included.
func (r *Repo) RequestVolumeDelete(ctx context.Context, name, uid string, at time.Time, purge func(*api.VolumeIntent) time.Time) (api.VolumeIntent, int64, error) {
	key := prefixVolumeIntent + name
	for {
		v, revision, err := r.volumeOf(ctx, name, uid)
		if err != nil {
			return v, 0, err
		}
		purgeAt := purge(&v)
		if v.DeleteRequestedAt != nil && (v.PurgeAt == nil || !purgeAt.Before(*v.PurgeAt)) {
			return v, revision, nil
		}
		use, err := r.unattached(ctx, &v)
		if err != nil {
			return v, 0, err
		}
		if v.DeleteRequestedAt == nil {
			v.DeleteRequestedAt = &at
		}
		v.PurgeAt = &purgeAt
		next, err := r.store.Commit(ctx, []store.Cond{{Key: key, Revision: revision}, use}, []store.Op{put(key, v)})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return v, 0, fmt.Errorf("mark volume %q for deletion: %w", name, err)
		}
		failpoint.Hit("state.after-volume-delete-request")
		return v, next, nil
	}
}

// UndeleteVolume takes back the deletion of a volume. A volume whose purge was decided, at the same moment included, is ErrPurging.
func (r *Repo) UndeleteVolume(ctx context.Context, name, uid string) (api.VolumeIntent, int64, error) {
	key := prefixVolumeIntent + name
	for {
		v, revision, err := r.volumeOf(ctx, name, uid)
		if err != nil || v.DeleteRequestedAt == nil {
			return v, revision, err
		}
		record, recordRevision, err := get[api.VolumeRecord](ctx, r, prefixVolumeRecord+v.UID, "record of volume", name)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return v, 0, err
		}
		if record.Purging {
			return v, 0, fmt.Errorf("volume %q is %w", ownName(name), ErrPurging)
		}
		v.DeleteRequestedAt, v.PurgeAt = nil, nil
		conds := []store.Cond{{Key: key, Revision: revision}, {Key: prefixVolumeRecord + v.UID, Revision: recordRevision}}
		next, err := r.store.Commit(ctx, conds, []store.Op{put(key, v)})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return v, 0, fmt.Errorf("undelete volume %q: %w", name, err)
		}
		failpoint.Hit("state.after-volume-undelete")
		return v, next, nil
	}
}

// volumeOf reads a volume of a UID; "" is any.
func (r *Repo) volumeOf(ctx context.Context, name, uid string) (api.VolumeIntent, int64, error) {
	v, revision, err := get[api.VolumeIntent](ctx, r, prefixVolumeIntent+name, "volume", name)
	if err == nil && uid != "" && v.UID != uid {
		err = fmt.Errorf("volume %q (%s) %w: it was purged and created again", ownName(name), uid, ErrNotFound)
	}
	return v, revision, err
}

// volumesBeside returns the other volumes of a volume's project, with the condition that nothing was added to them by then, and the mark that it was.
func (r *Repo) volumesBeside(ctx context.Context, v *api.VolumeIntent) ([]store.Cond, []store.Op, []api.VolumeIntent, error) {
	key := prefixVolumeProject + projectOr(v.Project)
	mark, _, err := r.store.Get(ctx, key)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("read the volumes of project %q: %w", projectOr(v.Project), err)
	}
	all, err := list[api.VolumeIntent](ctx, r, prefixVolumeIntent)
	if err != nil {
		return nil, nil, nil, err
	}
	others := slices.DeleteFunc(all, func(o api.VolumeIntent) bool { return projectOr(o.Project) != projectOr(v.Project) || o.UID == v.UID })
	return []store.Cond{{Key: key, Revision: mark.Revision}}, []store.Op{put(key, volumeProject{Newest: v.Name})}, others, nil
}

// usesVolumes returns the conditions of a cluster that asks for some of the volumes of its project, and the marks that it does. A volume that does
// not exist or was deleted is ErrNoVolume, one that others have attached as they may not both ErrInUse, and one without content ErrImporting.
func (r *Repo) usesVolumes(ctx context.Context, in *api.ClusterIntent, asked []api.VolumeAttachment) ([]store.Cond, []store.Op, error) {
	var conds []store.Cond
	var ops []store.Op
	for _, a := range asked {
		full := VolumeName(in.Project, a.Name)
		v, revision, err := get[api.VolumeIntent](ctx, r, prefixVolumeIntent+full, "volume", full)
		switch {
		case errors.Is(err, ErrNotFound):
			return nil, nil, fmt.Errorf("%w: %q", ErrNoVolume, a.Name)
		case err != nil:
			return nil, nil, err
		case v.DeleteRequestedAt != nil:
			return nil, nil, fmt.Errorf("%w: %q was deleted; 'nearmetal volume undelete %s' takes that back", ErrNoVolume, a.Name, a.Name)
		}
		if importing, _, err := r.importing(ctx, &v); err != nil {
			return nil, nil, err
		} else if importing {
			return nil, nil, fmt.Errorf("volume %q %w", a.Name, ErrImporting)
		}
		if err := ownedByOther(&v, in); err != nil {
			return nil, nil, err
		}
		if err := bearable(&v, &in.Spec, a); err != nil {
			return nil, nil, err
		}
		use, err := r.mayAttach(ctx, &v, in.Name, a.ReadOnly)
		if err != nil {
			return nil, nil, err
		}
		conds = append(conds, store.Cond{Key: prefixVolumeIntent + full, Revision: revision}, use)
		ops = append(ops, put(prefixVolumeUse+v.UID, volumeUse{Newest: in.Name}))
	}
	return conds, ops, nil
}

// attachedTo returns the names of the clusters that ask for a volume, or may still have it, and write to it, and of those that read, with the condition that they are all.
func (r *Repo) attachedTo(ctx context.Context, v *api.VolumeIntent) (writers, readers []string, use store.Cond, err error) {
	mark, _, err := r.store.Get(ctx, prefixVolumeUse+v.UID)
	if err != nil {
		return nil, nil, use, fmt.Errorf("read the use of volume %q: %w", v.Name, err)
	}
	intents, err := r.Intents(ctx)
	if err != nil {
		return nil, nil, use, err
	}
	for i := range intents {
		a, asks := attachmentTo(&intents[i], v)
		if !asks {
			detaching, err := r.detaching(ctx, &intents[i])
			if err != nil {
				return nil, nil, use, err
			}
			if j := slices.IndexFunc(detaching, func(d api.VolumeDetach) bool { return d.UID == v.UID }); j >= 0 {
				a, asks = detaching[j].VolumeAttachment, true
			}
		}
		switch {
		case asks && a.ReadOnly:
			readers = append(readers, intents[i].Name)
		case asks:
			writers = append(writers, intents[i].Name)
		}
	}
	return writers, readers, store.Cond{Key: prefixVolumeUse + v.UID, Revision: mark.Revision}, nil
}

// bearable refuses with ErrOneMachine a block volume to a cluster that is not one virtual machine, or that asks for it as its home.
func bearable(v *api.VolumeIntent, spec *api.ClusterSpec, a api.VolumeAttachment) error {
	if v.Kind != api.VolumeBlock {
		return nil
	}
	why := lifecycle.DiskBearable(spec)
	if a.MountPath() == "/home" {
		why = "it can't be the home, /home; omit the path, or give another"
	}
	if why != "" {
		return fmt.Errorf("volume %q %w: %s", a.Name, ErrOneMachine, why)
	}
	return nil
}

// mayAttach refuses with ErrInUse a cluster that may not have a volume attached beside those that have it.
func (r *Repo) mayAttach(ctx context.Context, v *api.VolumeIntent, cluster string, readOnly bool) (store.Cond, error) {
	writers, readers, use, err := r.attachedTo(ctx, v)
	if err != nil {
		return use, err
	}
	other := func(name string) bool { return name == cluster }
	writers, readers = slices.DeleteFunc(writers, other), slices.DeleteFunc(readers, other)
	if v.Kind == api.VolumeBlock && v.Access != api.VolumeManyReaders { // what one writes, the machine of another does not look for
		if beside := slices.Concat(writers, readers); len(beside) > 0 && (len(writers) > 0 || !readOnly) {
			return use, fmt.Errorf("volume %q is %w by cluster %s; only one machine can have a writable block volume. Delete that cluster first",
				ownName(v.Name), ErrInUse, ownName(beside[0]))
		}
		return use, nil
	}
	switch {
	case readOnly || v.Access == api.VolumeShared:
	case v.Access == api.VolumeManyReaders:
		return use, fmt.Errorf("volume %q %w; attach it read-only, or give it another access first", ownName(v.Name), ErrAccess)
	case len(writers) > 0:
		return use, fmt.Errorf("volume %q is %w by cluster %s, which writes to it, and it allows one writer; attach it read-only, or delete that cluster first",
			ownName(v.Name), ErrInUse, ownName(writers[0]))
	}
	return use, nil
}

// fitsAccess refuses with ErrInUse an access of a volume that the clusters which ask for it do not have.
func (r *Repo) fitsAccess(ctx context.Context, v *api.VolumeIntent) (store.Cond, error) {
	writers, _, use, err := r.attachedTo(ctx, v)
	if err != nil {
		return use, err
	}
	if v.Access == api.VolumeManyReaders && len(writers) > 0 || v.Access == api.VolumeOneWriter && len(writers) > 1 {
		return use, fmt.Errorf("volume %q is %w: %s to it, which access %s does not allow; delete %s first",
			ownName(v.Name), ErrInUse, writing(writers), v.Access, them(writers))
	}
	return use, nil
}

func writing(clusters []string) string {
	if len(clusters) == 1 {
		return "cluster " + ownName(clusters[0]) + " writes"
	}
	return several(clusters, "cluster") + " write"
}

// unattached returns ErrInUse with the clusters that ask for a volume.
func (r *Repo) unattached(ctx context.Context, v *api.VolumeIntent) (store.Cond, error) {
	writers, readers, use, err := r.attachedTo(ctx, v)
	if err != nil {
		return use, err
	}
	if users := slices.Sorted(slices.Values(slices.Concat(writers, readers))); len(users) > 0 {
		for i := range users {
			users[i] = ownName(users[i])
		}
		return use, fmt.Errorf("volume %q is %w: it is attached to %s; detach it or delete %s first",
			ownName(v.Name), ErrInUse, attachedNames(users), theCluster(users))
	}
	return use, nil
}

func attachedNames(clusters []string) string {
	if len(clusters) == 1 {
		return "cluster " + clusters[0]
	}
	return "clusters " + strings.Join(clusters, ", ")
}

func theCluster(clusters []string) string {
	if len(clusters) == 1 {
		return "the cluster"
	}
	return "the clusters"
}

// withoutVolumes returns ErrInUse with the volumes of a project.
func (r *Repo) withoutVolumes(ctx context.Context, project string) error {
	all, err := list[api.VolumeIntent](ctx, r, prefixVolumeIntent)
	if err != nil {
		return err
	}
	var names []string
	for i := range all {
		if all[i].Project == project {
			names = append(names, all[i].Name)
		}
	}
	if len(names) > 0 {
		return fmt.Errorf("project %q is %w by %s; delete %s with --now first", project, ErrInUse, several(names, "volume"), them(names))
	}
	return nil
}

// withoutVolumesOn returns ErrInUse with the volumes that lie on a node and are not to be purged. What is being purged is given up with the node.
func (r *Repo) withoutVolumesOn(ctx context.Context, node string) error {
	all, err := list[api.VolumeRecord](ctx, r, prefixVolumeRecord)
	if err != nil {
		return err
	}
	var names []string
	for i := range all {
		if all[i].Node == node && !all[i].Purging {
			names = append(names, all[i].Name)
		}
	}
	if len(names) > 0 {
		return fmt.Errorf("node %q is %w by %s; delete %s with --now first, then forget it", node, ErrInUse, several(names, "volume"), them(names))
	}
	return nil
}
