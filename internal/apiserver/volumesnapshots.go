package apiserver

import (
	"context"
	"net/http"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

func (s *Server) registerVolumeSnapshots() {
	operation(s, "GET /v1/volumes/{name}/snapshots", AccessRead, "list-volume-snapshots", "List the snapshots of a volume", "The oldest first.",
		http.StatusOK, s.listVolumeSnapshots, codeNoVolume)
	operation(s, "POST /v1/volumes/{name}/snapshots", AccessChange, "create-volume-snapshot", "Make a snapshot of a volume",
		"The node makes it at once; `snapshots` of the volume tells when it is there. Clusters that write may have files open: the snapshot holds what a "+
			"power cut at that moment would leave.", http.StatusOK, s.createVolumeSnapshot,
		bodyCodes(codeInvalidRequest, codeNoVolume, codeVolumeDeleted, codeVolumeImporting, codeVolumeSnapshotExists, codeTooManyVolumeSnapshots)...)
	operation(s, "DELETE /v1/volumes/{name}/snapshots/{snapshot}", AccessChange, "delete-volume-snapshot", "Delete a snapshot of a volume",
		"A snapshot that a clone is still being made of goes once the clone is made.", http.StatusOK, s.deleteVolumeSnapshot,
		codeNoVolume, codeVolumeDeleted, codeNoVolumeSnapshot, codeVolumeRestoring)
	operation(s, "POST /v1/volumes/{name}/snapshots/{snapshot}/restore", AccessChange, "restore-volume-snapshot", "Restore a volume from a snapshot",
		"The volume holds again what it held then; what was written since is lost. The snapshot stays. Refused while a cluster has the volume attached. "+
			"`restore` tells when it is done.", http.StatusOK, s.restoreVolumeSnapshot,
		codeNoVolume, codeVolumeDeleted, codeNoVolumeSnapshot, codeVolumeInUse)
}

func noVolumeSnapshot(name, snapshot string) *failure {
	return fail(codeNoVolumeSnapshot, "volume %q has no snapshot %q; see nearmetal volume snapshot list %s", name, snapshot, name)
}

func (s *Server) listVolumeSnapshots(ctx context.Context, in *volumeInput) (*body[api.List[api.VolumeSnapshot]], error) {
	v, err := s.getVolume(ctx, in)
	if err != nil {
		return nil, err
	}
	return &body[api.List[api.VolumeSnapshot]]{api.List[api.VolumeSnapshot]{Items: v.Body.Snapshots}}, nil
}

func (s *Server) createVolumeSnapshot(ctx context.Context, in *volumeBody) (*body[api.VolumeStatus], error) {
	req, src, err := readBody[api.VolumeSnapshotRequest](rawBody{in.ContentType, in.RawBody})
	if err != nil {
		return nil, err
	}
	if err := manifest.CheckVolumeSnapshot(req, src); err != nil {
		return nil, failInvalid(err, codeInvalidRequest)
	}
	v, err := s.volumeToChange(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	_, own := tenancy.Split(v.Intent.Name)
	if v.Importing() {
		return nil, noContentYet(own)
	}
	snapshot := api.VolumeSnapshotIntent{Name: req.Name, UID: newID(uidLetters), CreatedAt: s.cfg.Now().UTC()}
	return s.writeSnapshot(ctx, v, own, snapshot)
}

// addSnapshot asks for a snapshot of a volume, whose name within its project is own.
func (s *Server) addSnapshot(ctx context.Context, v *state.Volume, own string, snapshot api.VolumeSnapshotIntent) error {
	if v.Importing() {
		return noContentYet(own)
	}
	_, err := s.writeSnapshot(ctx, v, own, snapshot)
	return err
}

func (s *Server) writeSnapshot(ctx context.Context, v *state.Volume, own string, snapshot api.VolumeSnapshotIntent) (*body[api.VolumeStatus], error) {
	return s.writeVolume(ctx, v, func(next *api.VolumeIntent, _ []api.VolumeIntent) error {
		switch {
		case snapshotIndex(next, snapshot.Name) >= 0:
			return fail(codeVolumeSnapshotExists, "volume %q has a snapshot %q already; choose another name, or delete that one: nearmetal volume snapshot delete %s@%s",
				own, snapshot.Name, own, snapshot.Name)
		case len(next.Snapshots) >= api.MaxVolumeSnapshots:
			return fail(codeTooManyVolumeSnapshots, "volume %q has %d snapshots, the most that a volume may have; delete one: nearmetal volume snapshot delete %s@NAME",
				own, len(next.Snapshots), own)
		}
		next.Snapshots = append(next.Snapshots, snapshot)
		return nil
	})
}

func (s *Server) deleteVolumeSnapshot(ctx context.Context, in *volumeSnapshotInput) (*body[api.VolumeStatus], error) {
	v, err := s.volumeToChange(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	_, own := tenancy.Split(v.Intent.Name)
	found := s.found(s.cfg.Reader.View())(v.Intent.UID)
	return s.writeVolume(ctx, v, func(next *api.VolumeIntent, _ []api.VolumeIntent) error {
		i := snapshotIndex(next, in.Snapshot)
		if i < 0 {
			return noVolumeSnapshot(own, in.Snapshot)
		}
		if r := next.Restore; r != nil && r.SnapshotUID == next.Snapshots[i].UID && (found == nil || found.Restored < r.Number) {
			return fail(codeVolumeRestoring, "volume %q is being restored from snapshot %q; wait until that is done: nearmetal volume show %s", own, in.Snapshot, own)
		}
		next.Snapshots = slices.Delete(next.Snapshots, i, i+1)
		return nil
	})
}

func (s *Server) restoreVolumeSnapshot(ctx context.Context, in *volumeSnapshotInput) (*body[api.VolumeStatus], error) {
	v, err := s.volumeToChange(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	_, own := tenancy.Split(v.Intent.Name)
	return s.writeVolume(ctx, v, func(next *api.VolumeIntent, _ []api.VolumeIntent) error {
		i := snapshotIndex(next, in.Snapshot)
		if i < 0 {
			return noVolumeSnapshot(own, in.Snapshot)
		}
		number := int64(1)
		if next.Restore != nil {
			number = next.Restore.Number + 1
		}
		next.Restore = &api.VolumeRestoreIntent{SnapshotUID: next.Snapshots[i].UID, Number: number}
		return nil
	})
}

func snapshotIndex(in *api.VolumeIntent, name string) int {
	return slices.IndexFunc(in.Snapshots, func(s api.VolumeSnapshotIntent) bool { return s.Name == name })
}
