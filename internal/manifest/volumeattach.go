package manifest

import (
	"strconv"

	"github.com/nearmetal/nearmetal/api"
)

// Attached returns the volumes of a cluster with one more. The error is an *Invalid.
func Attached(spec *api.ClusterSpec, v api.VolumeAttachment, src *Source) ([]api.VolumeAttachment, error) {
	n := normalizer{src: src}
	n.label("name", v.Name, MaxLabel)
	if v.Path != "" || src.Has("path") {
		n.volumePath("path", &v)
	}
	v.Path = v.MountPath()
	switch {
	case api.IsHomeVolumeName(v.Name):
		n.add("name", v.Name, "%q is the name of a user's home, which members get when they start; create the cluster with home.kind %q", v.Name, api.HomeOfUser)
	case v.Path == homePath:
		n.add("path", v.Path, "%s is the home, which members get when they start; create the cluster with this volume, or attach it elsewhere, such as at /volumes/%s", v.Path, v.Name)
	}
	for _, other := range spec.Volumes {
		if other.Name != v.Name && (atOrBelow(v.Path, other.MountPath()) || atOrBelow(other.MountPath(), v.Path)) {
			n.add("path", v.Path, "%s is at, above or below the path of volume %q, %s", v.Path, other.Name, other.MountPath())
		}
	}
	if len(spec.Volumes) >= api.MaxVolumeClaims {
		n.add("name", strconv.Itoa(len(spec.Volumes)+1), "would be volume %d of the cluster; a cluster can have %d", len(spec.Volumes)+1, api.MaxVolumeClaims)
	}
	all := append([]api.VolumeAttachment{}, spec.Volumes...)
	return append(all, v), n.err()
}
