package manifest

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// The bounds of requests for volumes.
const (
	MaxVolumeName = 40
	// MaxVolumeFiles is the number of files and directories that a volume may hold at most, MinVolumeFiles what it may hold at least.
	MinVolumeFiles = 16
	MaxVolumeFiles = 1 << 40
	// MaxVolumeRetention is how long a deleted volume can be kept.
	MaxVolumeRetention = api.Duration(366 * 24 * time.Hour)
	// MaxVolumeFrom bounds VOLUME@SNAPSHOT.
	MaxVolumeFrom = MaxVolumeName + len("@") + MaxLabel
)

// VolumeAccesses returns all kinds of access.
func VolumeAccesses() []string {
	return []string{string(api.VolumeOneWriter), string(api.VolumeManyReaders), string(api.VolumeShared)}
}

// VolumeKinds returns all kinds of volumes.
func VolumeKinds() []string { return []string{string(api.VolumeFiles), string(api.VolumeBlock)} }

// CheckVolume refuses a request for a volume that no site could have. The error is an *Invalid.
func CheckVolume(req api.VolumeRequest, src *Source) error {
	n := normalizer{src: src}
	n.label("name", req.Name, MaxVolumeName)
	if api.IsHomeVolumeName(req.Name) {
		n.add("name", req.Name, `%q is kept for homes of users; choose a name that does not begin with "home-"`, req.Name)
	}
	if api.IsClusterHomeName(req.Name) {
		n.add("name", req.Name, `%q is kept for homes of clusters; choose a name that does not begin with "clusterhome-"`, req.Name)
	}
	if req.Project != "" || src.Has("project") {
		n.label("project", req.Project, MaxProjectName)
	}
	if req.Node != "" || src.Has("node") {
		n.label("node", req.Node, MaxLabel)
	}
	switch {
	case req.Size != 0 || src.Has("size"):
		n.volumeSize("size", req.Size)
	case req.From == "":
		n.add("size", "", "is missing; give a size such as 10GiB")
	}
	if req.Files != 0 {
		n.volumeFiles("files", req.Files)
	}
	if req.Kind != "" || src.Has("kind") {
		n.volumeKind(req)
	}
	if req.Access != "" || src.Has("access") {
		n.volumeAccess("access", req.Access)
	}
	n.volumeIOLimit("io_limit", req.IOLimit)
	if req.Retention != nil {
		n.volumeRetention("retention", *req.Retention)
	}
	if req.From != "" || src.Has("from") {
		n.volumeFrom("from", req.From)
	}
	if req.From != "" && req.FromBackup {
		n.add("from_backup", "", "conflicts with from; a volume begins as a snapshot or as a backup")
	}
	return n.err()
}

// CheckVolumeChange refuses a change of a volume that changes nothing, or that no volume can have. The error is an *Invalid.
func CheckVolumeChange(change api.VolumeChange, src *Source) error {
	n := normalizer{src: src}
	if change == (api.VolumeChange{}) {
		n.add("size", "", "is missing; give what is to change: size, files, access, io_limit or retention")
	}
	if change.Size != nil {
		n.volumeSize("size", *change.Size)
	}
	if change.Files != nil {
		n.volumeFiles("files", *change.Files)
	}
	if change.Access != nil {
		n.volumeAccess("access", *change.Access)
	}
	if change.IOLimit != nil {
		n.volumeIOLimit("io_limit", *change.IOLimit)
	}
	if change.Retention != nil {
		n.volumeRetention("retention", *change.Retention)
	}
	return n.err()
}

// CheckVolumeSnapshot refuses a name that no snapshot of a volume can have. The error is an *Invalid.
func CheckVolumeSnapshot(req api.VolumeSnapshotRequest, src *Source) error {
	n := normalizer{src: src}
	n.label("name", req.Name, MaxLabel)
	return n.err()
}

// CutVolumeSnapshot cuts VOLUME@SNAPSHOT; snapshot is "" in a text without one.
func CutVolumeSnapshot(text string) (volume, snapshot string) {
	volume, snapshot, _ = strings.Cut(text, "@")
	return volume, snapshot
}

func (n *normalizer) volumeSize(path string, size api.Bytes) {
	if size < api.MinVolumeBytes || size > api.MaxVolumeBytes {
		n.add(path, size.String(), "%s is not a size of a volume; give %s to %s", size, resource.Storage.Number(api.MinVolumeBytes), resource.Storage.Number(api.MaxVolumeBytes))
	}
}

func (n *normalizer) volumeFiles(path string, files int64) {
	if files < MinVolumeFiles || files > MaxVolumeFiles {
		n.add(path, strconv.FormatInt(files, 10), "%d is not a number of files of a volume; give %d to %d", files, MinVolumeFiles, int64(MaxVolumeFiles))
	}
}

// volumeKind checks the kind of a volume, and what goes with it.
func (n *normalizer) volumeKind(req api.VolumeRequest) {
	switch {
	case req.Kind != api.VolumeFiles && req.Kind != api.VolumeBlock:
		n.add("kind", string(req.Kind), "%q is no kind of volume; give %s", req.Kind, strings.Join(VolumeKinds(), ", "))
	case req.Kind == api.VolumeFiles:
	case req.Files != 0:
		n.add("files", strconv.FormatInt(req.Files, 10), "conflicts with the kind %q, which has no limit of files; omit files", req.Kind)
	case req.Access == api.VolumeShared:
		n.add("access", string(req.Access), "conflicts with the kind %q: machines would overwrite each other's cached blocks", req.Kind)
	case req.FromBackup:
		n.add("from_backup", "", "conflicts with the kind %q; a backup has files", req.Kind)
	}
}

func (n *normalizer) volumeAccess(path string, access api.VolumeAccess) {
	switch access {
	case api.VolumeOneWriter, api.VolumeManyReaders, api.VolumeShared:
	default:
		n.add(path, string(access), "%q is not a kind of access; give %s", access, strings.Join(VolumeAccesses(), ", "))
	}
}

// volumeIOLimit checks a limit of bytes per second; 0 is none.
func (n *normalizer) volumeIOLimit(path string, limit api.Bytes) {
	if limit != 0 && (limit < api.MinVolumeIOLimit || limit > api.MaxVolumeIOLimit) {
		n.add(path, limit.String(), "%s per second is not a limit of I/O; give %s to %s, or 0 for no limit", limit,
			api.Bytes(api.MinVolumeIOLimit), api.Bytes(api.MaxVolumeIOLimit))
	}
}

func (n *normalizer) volumeRetention(path string, retention api.Duration) {
	if retention < 0 || retention > MaxVolumeRetention {
		n.add(path, retention.String(), "%s is not a retention; give 0 to %s", retention, MaxVolumeRetention)
	}
}

func (n *normalizer) volumeFrom(path, from string) {
	volume, snapshot := CutVolumeSnapshot(from)
	problem := LabelProblem(volume, MaxVolumeName)
	if strings.Contains(from, "@") {
		problem = cmp.Or(problem, LabelProblem(snapshot, MaxLabel))
	}
	if problem != "" {
		n.add(path, from, "%q is not VOLUME or VOLUME@SNAPSHOT: %s", from, fmt.Sprintf("a name %s", problem))
	}
}
