package plan

import (
	"slices"

	"github.com/nearmetal/nearmetal/api"

	"github.com/nearmetal/nearmetal/internal/volume"
)

// Told returns what each node hears of the volumes that lie on it, by their UIDs, without attachments. generation must be newer with each change of
// what is stored of a volume.
func Told(volumes []Volume, generation func(uid string) int64) map[string][]volume.Volume {
	needed := map[string][]string{}
	for i := range volumes {
		if v := &volumes[i]; begins(v) {
			needed[v.Intent.Origin.VolumeUID] = append(needed[v.Intent.Origin.VolumeUID], v.Intent.Origin.SnapshotUID)
		}
	}
	told := map[string][]volume.Volume{}
	for i := range volumes {
		v := &volumes[i]
		if v.Record == nil || v.Intent == nil && !v.Record.Purging {
			continue
		}
		one := toldOf(v, needed[v.UID()])
		one.Generation = generation(v.UID())
		told[v.Record.Node] = append(told[v.Record.Node], one)
	}
	return told
}

// toldOf returns what is wanted of one volume. needed are its snapshots that clones are still to begin as.
func toldOf(v *Volume, needed []string) volume.Volume {
	out := volume.Volume{UID: v.UID(), SizeBytes: v.Record.SizeBytes, Made: v.Record.Made, Purge: v.Record.Purging}
	if out.Purge {
		return out
	}
	out.SizeBytes, out.MaxFiles = min(v.Intent.SizeBytes, v.Record.SizeBytes), v.Intent.MaxFiles
	out.Block = v.Intent.Kind == api.VolumeBlock
	out.IOBytesPerSecond = v.Intent.IOBytesPerSecond
	if !v.Record.Made {
		out.Origin = v.Intent.Origin
	}
	out.Restore = v.Intent.Restore
	for _, snapshot := range v.Intent.Snapshots {
		out.Snapshots = append(out.Snapshots, snapshot.UID)
	}
	for _, uid := range needed {
		if !slices.Contains(out.Snapshots, uid) {
			out.Snapshots = append(out.Snapshots, uid)
		}
	}
	return out
}
