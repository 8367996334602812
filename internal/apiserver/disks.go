package apiserver

import (
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/state"
)

// disksOf are the block volumes that a cluster asks for.
func disksOf(view *state.View, in *api.ClusterIntent) (disks []api.VolumeAttachment) {
	for _, asked := range api.VolumesOf(in) {
		if isDisk(view, in.Project, asked.Name) {
			disks = append(disks, asked)
		}
	}
	return disks
}

// isDisk reports whether a volume of a project is a block volume.
func isDisk(view *state.View, project, name string) bool {
	v := view.VolumeNamed(state.VolumeName(project, name))
	return v != nil && v.Intent.Kind == api.VolumeBlock
}

// keepsDisks refuses a change of a cluster that would give its block volume to a second machine, or give its machine other disks than it began with.
func keepsDisks(before, after []api.VolumeAttachment, spec *api.ClusterSpec) error {
	for _, d := range slices.Concat(after, before) {
		if !slices.Contains(before, d) || !slices.Contains(after, d) {
			return fail(codeCantAttach, "volume %q is a block volume, which can't be attached or detached while its machine exists; create a cluster with the volume, or delete the cluster that has it", d.Name)
		}
	}
	if why := lifecycle.DiskBearable(spec); why != "" && len(after) > 0 {
		return fail(codeCantAttach, "volume %q is a block volume: %s", after[0].Name, why)
	}
	return nil
}

// changesKind refuses a change that a block volume can't have.
func changesKind(v *api.VolumeIntent, change api.VolumeChange) error {
	if v.Kind != api.VolumeBlock {
		return nil
	}
	problem := func(at, message string) error {
		return failFields(codeInvalidRequest, api.FieldProblem{Location: at, Message: message})
	}
	switch {
	case change.Files != nil:
		return problem("files", "a block volume has no number of files; omit it")
	case change.Access != nil && *change.Access == api.VolumeShared:
		return problem("access", "conflicts with the kind block: machines would overwrite each other's cached blocks")
	case change.Size != nil && int64(*change.Size) < v.SizeBytes:
		return problem("size", "a block volume can't shrink, because only its machine knows how much of the "+resource.Storage.Number(v.SizeBytes)+" is in use")
	}
	return nil
}
