package manifest

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

const (
	// homePath is where members have their home.
	homePath = "/home"
	// maxVolumePath bounds the path of a volume in members, in bytes.
	maxVolumePath = 255
)

// systemTrees are what a member's system is made of. No volume lies at or below one of them.
var systemTrees = []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/usr"}

// systemDirs are directories that a volume would hide. It may lie below them.
var systemDirs = []string{"/opt", "/root", "/tmp", "/var", "/var/cache", "/var/lib", "/var/log", "/var/run", "/var/lock", "/var/spool", "/var/tmp"}

// storage checks the home and the volumes of a cluster, and puts them into spec in their normal form.
func (n *normalizer) storage(req api.ClusterRequest, spec *api.ClusterSpec, pathOf func(int) string) {
	spec.Home, spec.Volumes = n.home(req.Home), n.volumes(req)
	atHome := slices.ContainsFunc(spec.Volumes, func(v api.VolumeAttachment) bool { return v.Path == homePath })
	if atHome && spec.Home != (api.ClusterHome{}) {
		n.add("home.kind", spec.Home.Kind, "conflicts with a volume at %s, which is the home then; omit one of them", homePath)
	}
}

// home checks what members have as /home. The kind cluster, the default, is empty in the normal form.
func (n *normalizer) home(h api.ClusterHome) api.ClusterHome {
	sized := h.Size != 0 || n.src.Has("home.size")
	kinds := []string{api.HomeOfCluster, api.HomeOfUser, api.HomeNone}
	switch {
	case !slices.Contains(kinds, h.Kind) && (h.Kind != "" || n.src.Has("home.kind")):
		n.add("home.kind", h.Kind, "%q is no kind of home; %s", h.Kind, oneOf(h.Kind, kinds))
	case h.Kind == api.HomeNone && sized:
		n.add("home.size", h.Size.String(), "conflicts with the kind %q; omit one of them", h.Kind)
	case sized:
		n.volumeSize("home.size", h.Size)
	}
	if h.Kind == api.HomeOfCluster {
		h.Kind = ""
	}
	return h
}

// volumes checks the volumes that members have attached, and fills in their paths.
func (n *normalizer) volumes(req api.ClusterRequest) []api.VolumeAttachment {
	if len(req.Volumes) > api.MaxVolumeClaims {
		n.add("volumes", strconv.Itoa(len(req.Volumes)), "has %d volumes; a cluster can have %d", len(req.Volumes), api.MaxVolumeClaims)
		return nil
	}
	all := slices.Clone(req.Volumes)
	for i := range all {
		v := &all[i]
		at := fmt.Sprintf("volumes[%d]", i)
		n.label(join(at, "name"), v.Name, MaxLabel)
		if api.IsClusterHomeName(v.Name) {
			n.add(join(at, "name"), v.Name, "%q is the home of a cluster, which no other cluster can have; copy its files, or make a volume of a snapshot of it", v.Name)
		}
		if api.IsHomeVolumeName(v.Name) {
			n.add(join(at, "name"), v.Name, "%q is the name of a user's home; use home.kind %q to have your own", v.Name, api.HomeOfUser)
		}
		if v.Path != "" || n.src.Has(join(at, "path")) {
			n.volumePath(join(at, "path"), v)
		}
		v.Path = v.MountPath()
		for j, other := range all[:i] {
			switch {
			case other.Name == v.Name:
				n.add(join(at, "name"), v.Name, "%q is also the name of volumes[%d]; attach a volume once", v.Name, j)
			case atOrBelow(v.Path, other.Path) || atOrBelow(other.Path, v.Path):
				n.add(join(at, "path"), v.Path, "%s is at, above or below the path of volumes[%d], %s", v.Path, j, other.Path)
			}
		}
	}
	return all
}

// volumePath checks where members have a volume.
func (n *normalizer) volumePath(at string, v *api.VolumeAttachment) {
	switch p := v.Path; {
	case p == homePath && v.ReadOnly:
		n.add(at, p, "is the home, which can't be read-only; omit read_only")
	case atOrBelow(p, homePath) && p != homePath && path.Clean(p) == p:
		n.add(at, p, "%s is below the home; attach the volume at %s itself, or elsewhere", p, homePath)
	default:
		n.mountPath(at, p, "/volumes/"+v.Name, "attach the volume")
	}
}

// mountPath checks where members have something that is mounted, such as a volume. do says what to do elsewhere, usual where.
func (n *normalizer) mountPath(at, p, usual, do string) {
	switch {
	case !path.IsAbs(p) || path.Clean(p) != p || p == "/":
		n.add(at, p, "%q is no directory of members; write an absolute path such as %s, without '.', '..' and double '/'", p, usual)
	case len(p) > maxVolumePath:
		n.add(at, p, "is %d bytes long; at most %d are possible", len(p), maxVolumePath)
	case strings.ContainsFunc(p, func(r rune) bool { return r <= ' ' || r == 0x7f || r == ':' || r == ',' || r == '\\' || r == '\ufffd' }):
		n.add(at, p, "%q has a space, a control character, ':', ',' or a backslash, which such a path can't have", p)
	case slices.ContainsFunc(systemTrees, func(tree string) bool { return atOrBelow(p, tree) }) || slices.Contains(systemDirs, p):
		n.add(at, p, "%s would hide a part of the member's system; %s elsewhere, such as at %s", p, do, usual)
	}
}

// atOrBelow reports whether a path is a directory, or below it.
func atOrBelow(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
