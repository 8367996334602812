package apiserver

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// beginAs makes a new volume a clone of a snapshot, or of what another volume holds.
func beginAs(view *state.View, v *api.VolumeIntent, from string, src *manifest.Source) error {
	name, snapshot := manifest.CutVolumeSnapshot(from)
	origin := view.VolumeNamed(tenancy.FullName(v.Project, name))
	switch {
	case origin == nil:
		return noVolume(name)
	case origin.Intent.DeleteRequestedAt != nil:
		return fail(codeVolumeDeleted, "volume %q was deleted; bring it back first: nearmetal volume undelete %s", name, name)
	case origin.Importing():
		return noContentYet(name)
	}
	v.Origin = &api.VolumeOrigin{VolumeUID: origin.Intent.UID, SnapshotUID: api.CloneSnapshotUID(v.UID)}
	if snapshot != "" {
		i := slices.IndexFunc(origin.Intent.Snapshots, func(s api.VolumeSnapshotIntent) bool { return s.Name == snapshot })
		if i < 0 {
			return noVolumeSnapshot(name, snapshot)
		}
		v.Origin.SnapshotUID = origin.Intent.Snapshots[i].UID
	}
	least := origin.Intent.SizeBytes
	if v.SizeBytes == 0 {
		v.SizeBytes = least
	}
	wrong := func(at, value, format string, args ...any) error {
		return failFields(codeInvalidRequest, api.FieldProblem{Location: at, Line: src.Line(at), Value: value, Message: fmt.Sprintf(format, args...)})
	}
	if is := cmp.Or(origin.Intent.Kind, api.VolumeFiles); v.Kind != "" && v.Kind != is {
		return wrong("kind", string(v.Kind), "volume %q, which it begins as, is of the kind %s; omit the kind", name, is)
	}
	if v.Kind = origin.Intent.Kind; v.Kind != api.VolumeBlock {
		v.MaxFiles = cmp.Or(v.MaxFiles, max(origin.Intent.MaxFiles, filesFor(v.SizeBytes)))
	} else if v.MaxFiles != 0 {
		return wrong("files", "", "volume %q, which it begins as, is a block volume, which has no number of files; omit it", name)
	} else if v.Access == api.VolumeShared {
		return wrong("access", string(v.Access), "volume %q, which it begins as, is a block volume, which can't be shared", name)
	}
	switch node := origin.Node(); {
	case v.SizeBytes < least:
		return wrong("size", api.Bytes(v.SizeBytes).String(), "%s is less than the %s of volume %q, which it begins as", api.Bytes(v.SizeBytes), api.Bytes(least), name)
	case v.Node != "" && node != "" && v.Node != node:
		return wrong("node", v.Node, "a clone lies on the node of its origin: volume %q is on node %s; omit the node", name, node)
	}
	return nil
}
