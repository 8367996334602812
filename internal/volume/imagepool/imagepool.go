// Package imagepool is the pool of volumes that are ext4 file systems, each in a block image of its own.
//
// The images bound what a volume may take of the disk, are shared by snapshots, and are what packages reflink and lvmthin keep; the file system on top bounds
// bytes and files. A volume is mounted while it is attached: once for root, and once for each cluster, with the owners of its files mapped to
// the cluster's IDs on this host. A volume's number of files follows its size from what it was made with. Start with Pool.
package imagepool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/diskserver"
	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/ext4"
	"github.com/nearmetal/nearmetal/internal/volume/mounts"
	"github.com/nearmetal/nearmetal/internal/volume/reflink"
)

// Images keeps block images: one for each volume and one for each of its snapshots. Each is whole or not there. Methods return volume.ErrFull for
// want of room.
type Images interface {
	Describe(ctx context.Context) api.VolumePool
	// List returns the images of each volume of which anything is there.
	List() (map[string][]reflink.Image, error)
	// Draft makes a draft of a volume, which reads as zeros; Begin one that begins as a snapshot of another volume; Rework one that begins as the
	// volume and is written little to, and will have another size. They return a path to it, and replace a draft that is there. Commit puts it in the volume's place.
	Draft(ctx context.Context, uid string, bytes int64) (string, error)
	Begin(ctx context.Context, uid, from, snapshot string) (string, error)
	Rework(ctx context.Context, uid string, written, sizeBytes int64) (string, error)
	DropDraft(uid string) error
	Commit(uid string) error
	// Resize makes a volume larger. Of the same size, it makes sure that the volume has all its blocks.
	Resize(uid string, bytes int64) error
	// Snapshot makes a snapshot, between still and what that returns, or by a kernel that keeps writers still itself; Restore puts one in the volume's place.
	Snapshot(ctx context.Context, uid, snapshot string, still func() (thaw func() error, err error)) error
	Restore(ctx context.Context, uid, snapshot string) error
	RemoveSnapshot(uid, snapshot string) error
	// Copy makes a copy of a snapshot, or for "" of the volume, between still and what that returns. It is for one reader, and no image that List
	// returns. DropCopy removes it, DropCopies those of all volumes.
	Copy(ctx context.Context, uid, snapshot string, still func() (thaw func() error, err error)) error
	DropCopy(uid string) error
	DropCopies() error
	// Remove removes all of a volume, and looks whether anything is left.
	Remove(ctx context.Context, uid string) error
	// Path leads to a volume's content while it has no device. Open makes a device of it, for as long as that is open or mounted. Await returns when
	// it has none, or volume.ErrInUse. OpenDraft and OpenCopy make a device of the draft and of the copy, for which AwaitOwn waits.
	Path(uid string) string
	Open(uid string) (*os.File, error)
	OpenDraft(uid string) (*os.File, error)
	OpenCopy(uid string) (*os.File, error)
	Await(ctx context.Context, uid string) error
	AwaitOwn(ctx context.Context, uid string) error
	Close(ctx context.Context) error
}

// owner of a new volume's root directory is the user of every member.
var owner = ext4.Owner{UID: 1000, GID: 1000}

// Config says where the pool is.
type Config struct {
	// Dir is an absolute path, in which no name is a link.
	Dir    string
	Images Images
	// Program is the path of the member agent's program, which serves block volumes (package diskserver).
	Program string
}

// Pool implements volume.Pool, volume.Exporter and volume.Importer.
type Pool struct {
	cfg Config

	mu sync.Mutex
	// exporting are the UIDs of the volumes that are being exported.
	exporting map[string]bool
	// swept: the copies that an earlier process left are gone.
	swept bool
}

// New returns a pool on what an earlier process left. File systems that it left frozen are thawed, and what it had mounted for itself is unmounted.
func New(cfg Config) (*Pool, error) {
	p := &Pool{cfg: cfg, exporting: map[string]bool{}}
	all, err := mounts.Below(p.dir(dirRoots))
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		err = errors.Join(err, ext4.Thaw(m.Path))
	}
	own, more := mounts.Below(p.dir(dirOwn))
	for _, m := range own {
		more = errors.Join(more, unmount(context.Background(), m.Path))
	}
	return p, errors.Join(err, more)
}

// The directories of a pool. Only root enters the first three.
const (
	// dirRecords has a file for each volume, dirRoots a mount for each that is attached.
	dirRecords = "records"
	dirRoots   = "roots"
	// dirOwn has a mount for each archive that is being written or read.
	dirOwn = "own"
	// dirClusters has a mount for each attachment. Programs of members, which are other users on the host, get to it by its whole path.
	dirClusters = "clusters"
	// dirDisks has the directory of a process for each attachment of a block volume.
	dirDisks = "disks"
)

func (p *Pool) dir(name string) string       { return filepath.Join(p.cfg.Dir, name) }
func (p *Pool) recordFile(uid string) string { return filepath.Join(p.cfg.Dir, dirRecords, uid) }

// Root implements volume.Pool.
func (p *Pool) Root(uid string) string { return filepath.Join(p.cfg.Dir, dirRoots, uid) }

// Dir implements volume.Pool.
func (p *Pool) Dir(uid, clusterUID string) string {
	return filepath.Join(p.cfg.Dir, dirClusters, uid, clusterUID)
}

// Socket implements volume.Pool.
func (p *Pool) Socket(uid, clusterUID string) string {
	return diskserver.Socket(p.disk(uid, clusterUID))
}

func (p *Pool) disk(uid, clusterUID string) string {
	return filepath.Join(p.cfg.Dir, dirDisks, uid, clusterUID)
}

// record is what the disk says of a volume beside its content.
type record struct {
	Generation int64 `json:"generation"`
	Restored   int64 `json:"restored,omitempty"`
	// FittedBytes is the size of the image when the file system was last made as large; 0: it has to be looked at.
	FittedBytes int64 `json:"fitted_bytes,omitempty"`
	// Block: it has no file system.
	Block bool `json:"block,omitempty"`
}

// read returns the record of a volume, and whether there is one.
func (p *Pool) read(uid string) (r record, there bool, err error) {
	text, err := os.ReadFile(p.recordFile(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	if err != nil {
		return r, false, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, false, fmt.Errorf("%s: %w", p.recordFile(uid), err)
	}
	return r, true, nil
}

func (p *Pool) write(uid string, r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(p.cfg.Dir, 0o711), os.MkdirAll(p.dir(dirRecords), 0o700)); err != nil {
		return err
	}
	return durablefile.Write(p.recordFile(uid), text, 0o600)
}

// Describe implements volume.Pool.
func (p *Pool) Describe(ctx context.Context) api.VolumePool {
	problems := ext4.Problems()
	if os.Geteuid() != 0 {
		problems = append(problems, "the agent is not run by root, which volumes need")
	}
	d := p.cfg.Images.Describe(ctx)
	if problems = append(problems, d.Problems...); len(problems) > 0 {
		return api.VolumePool{Problems: problems}
	}
	return d
}

// attached are the clusters that have a volume, with the mounts by which they do.
func (p *Pool) attached(uid string) (map[string][]mounts.Mount, error) {
	dir := filepath.Join(p.dir(dirClusters), uid)
	below, err := mounts.Below(dir)
	if err != nil {
		return nil, err
	}
	all := map[string][]mounts.Mount{}
	for _, m := range below {
		cluster := filepath.Base(m.Path)
		all[cluster] = append(all[cluster], m)
	}
	return all, nil
}

// mounted reports whether a volume is mounted for root.
func (p *Pool) mounted(uid string) (bool, error) {
	all, err := mounts.Below(p.Root(uid))
	return len(all) > 0, err
}

// Observe implements volume.Pool.
func (p *Pool) Observe(ctx context.Context) ([]volume.State, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := p.sweep(); err != nil {
		return nil, err
	}
	images, err := p.cfg.Images.List()
	if err != nil {
		return nil, err
	}
	records, err := os.ReadDir(p.dir(dirRecords))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, file := range records {
		// A file whose name begins with a dot is what a crash left of a record that was being written.
		if _, there := images[file.Name()]; !there && !strings.HasPrefix(file.Name(), ".") {
			images[file.Name()] = nil
		}
	}
	var all []volume.State
	for _, uid := range slices.Sorted(maps.Keys(images)) {
		s, err := p.state(uid, images[uid])
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", uid, err)
		}
		all = append(all, s)
	}
	return all, nil
}

// state looks at a volume.
func (p *Pool) state(uid string, images []reflink.Image) (volume.State, error) {
	s := volume.State{UID: uid}
	r, recorded, err := p.read(uid)
	if err != nil {
		return s, err
	}
	s.Generation, s.Restored = r.Generation, r.Restored
	for _, i := range images {
		if i.Snapshot != "" {
			s.Snapshots = append(s.Snapshots, volume.SnapshotState{UID: i.Snapshot, HeldBytes: i.HeldBytes})
			continue
		}
		s.Ready, s.SizeBytes = recorded, i.SizeBytes
	}
	slices.SortFunc(s.Snapshots, func(a, b volume.SnapshotState) int { return strings.Compare(a.UID, b.UID) })
	clusters, err := p.attached(uid)
	if err != nil {
		return s, err
	}
	s.Attached = slices.Sorted(maps.Keys(clusters))
	if r.Block {
		s.Attached, err = p.disksOf(uid)
		s.UsedBytes = s.SizeBytes
		return s, err
	}
	if s.SizeBytes == 0 {
		return s, nil
	}
	u, err := p.usage(uid)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) { // it is being purged meanwhile; ENXIO: its device was
		s.Ready = false
		return s, nil
	}
	s.UsedBytes, s.MaxFiles, s.UsedFiles = u.UsedBytes, u.Files, u.UsedFiles
	return s, err
}

// usage is what a volume holds.
func (p *Pool) usage(uid string) (ext4.Usage, error) {
	mounted, err := p.mounted(uid)
	if err != nil {
		return ext4.Usage{}, err
	}
	if mounted {
		u, err := ext4.OfMount(p.Root(uid))
		// Unmounted meanwhile, it was another file system's.
		if still, _ := p.mounted(uid); still {
			return u, err
		}
	}
	return ext4.OfImage(p.cfg.Images.Path(uid))
}

// Close implements volume.Pool.
func (p *Pool) Close(ctx context.Context) error {
	disks, err := os.ReadDir(p.dir(dirDisks))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, d := range disks {
		if err := p.detachDisks(ctx, d.Name(), nil); err != nil {
			return err
		}
	}
	clusters, err := mounts.Below(p.dir(dirClusters))
	if err != nil {
		return err
	}
	roots, err := mounts.Below(p.dir(dirRoots))
	if err != nil {
		return err
	}
	for _, m := range roots {
		err = errors.Join(err, ext4.Thaw(m.Path))
	}
	own, more := mounts.Below(p.dir(dirOwn))
	err = errors.Join(err, more)
	for _, m := range slices.Concat(clusters, roots, own) {
		err = errors.Join(err, unmount(ctx, m.Path))
	}
	if err != nil {
		return err
	}
	for _, m := range roots {
		err = errors.Join(err, p.cfg.Images.Await(ctx, filepath.Base(m.Path)))
	}
	for _, m := range own {
		err = errors.Join(err, p.cfg.Images.AwaitOwn(ctx, filepath.Base(m.Path)))
	}
	if err != nil {
		return err
	}
	return p.cfg.Images.Close(ctx)
}

// unmount takes one mount away, and the directory that it was at. With the directory, the kernel takes away copies of the mount that other
// namespaces have at the same place. A member has it at a place of its own.
func unmount(ctx context.Context, path string) error {
	if err := mounts.Unmount(ctx, path); errors.Is(err, mounts.ErrBusy) {
		return fmt.Errorf("%w: %w", volume.ErrInUse, err)
	} else if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EBUSY) { // EBUSY: it was mounted twice
		return err
	}
	return nil
}
