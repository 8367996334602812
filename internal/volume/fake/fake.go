// Package fake is a pool of volumes in memory, for tests of agents and for simulation.
//
// It uses no resource of the real host. What volumes hold is numbers that a test sets, and there is nothing to read or write at Dir. It passes
// volumetest. Start with Disk: it is what survives a pool, as a disk survives its agent.
package fake

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"sync"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// Disk is a pretended disk of a node.
type Disk struct {
	mu       sync.Mutex
	capacity int64
	problems []string
	volumes  map[string]*stored
	failures map[string][]error
	calls    []string
}

// stored is a volume on the disk. Attachments are in memory, and go with the host.
type stored struct {
	ready, exporting     bool
	generation, restored int64
	content              content
	snapshots            map[string]content
	attached             map[string]volume.Attachment
}

// content is what a volume or a snapshot is at one moment.
type content struct{ size, files, usedBytes, usedFiles int64 }

// NewDisk returns an empty disk with room for so many bytes.
func NewDisk(capacityBytes int64) *Disk {
	return &Disk{capacity: capacityBytes, volumes: map[string]*stored{}, failures: map[string][]error{}}
}

// Pool returns a pool on the disk, as a starting agent opens it.
func (d *Disk) Pool() *Pool { return &Pool{disk: d} }

// SetProblems makes Describe report that the node has no pool, for these reasons; without any, it has one again.
func (d *Disk) SetProblems(problems ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.problems = problems
}

// Fail makes the next Apply, Import or Purge of a volume return an error, before it has done anything. Several are returned one after another.
func (d *Disk) Fail(uid string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failures[uid] = append(d.failures[uid], err)
}

// Use sets what a volume holds.
func (d *Disk) Use(uid string, bytes, files int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.volumes[uid]
	if !ok {
		return fmt.Errorf("volume %s does not exist", uid)
	}
	if bytes > s.content.size || files > s.content.files {
		return fmt.Errorf("volume %s has room for %d bytes and %d files", uid, s.content.size, s.content.files)
	}
	s.content.usedBytes, s.content.usedFiles = bytes, files
	return nil
}

// Spoil makes debris of a volume: the next Observe finds it not ready, and the next Apply makes it anew.
func (d *Disk) Spoil(uid string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s, ok := d.volumes[uid]; ok {
		s.ready = false
	}
}

// Reboot loses what was in the host's memory: attachments.
func (d *Disk) Reboot() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.volumes {
		clear(s.attached)
	}
}

// Attached returns the attachments of a volume, by their clusters' UIDs.
func (d *Disk) Attached(uid string) map[string]volume.Attachment {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s, ok := d.volumes[uid]; ok {
		return maps.Clone(s.attached)
	}
	return nil
}

// Calls returns what changed on the disk since it was made, one change an entry, such as "make u1", "attach u1 c1" or "purge u1".
func (d *Disk) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

func (d *Disk) did(format string, args ...any) {
	d.calls = append(d.calls, fmt.Sprintf(format, args...))
}

// held is the room that volumes and snapshots take. A snapshot takes as much as its volume held.
func (d *Disk) held() (sum int64) {
	for _, s := range d.volumes {
		sum += s.content.size
		for _, c := range s.snapshots {
			sum += c.usedBytes
		}
	}
	return sum
}

// room returns ErrFull unless so many bytes are left.
func (d *Disk) room(bytes int64) error {
	if left := d.capacity - d.held(); bytes > left {
		return fmt.Errorf("%w: %d bytes are wanted and %d are left", volume.ErrFull, bytes, left)
	}
	return nil
}

// failure returns the next error that a test wants for a volume.
func (d *Disk) failure(uid string) error {
	next := d.failures[uid]
	if len(next) == 0 {
		return nil
	}
	d.failures[uid] = next[1:]
	return next[0]
}

// Pool is a pool on a pretended disk. It implements volume.Pool.
type Pool struct{ disk *Disk }

// Describe implements volume.Pool.
func (p *Pool) Describe(context.Context) api.VolumePool {
	d := p.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.problems) > 0 {
		return api.VolumePool{Problems: slices.Clone(d.problems)}
	}
	return api.VolumePool{Kind: "xfs", CapacityBytes: d.capacity, HeldBytes: d.held()}
}

// Observe implements volume.Pool.
func (p *Pool) Observe(ctx context.Context) ([]volume.State, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d := p.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []volume.State
	for _, uid := range slices.Sorted(maps.Keys(d.volumes)) {
		s := d.volumes[uid]
		state := volume.State{
			UID: uid, Generation: s.generation, Ready: s.ready, SizeBytes: s.content.size, UsedBytes: s.content.usedBytes, MaxFiles: s.content.files,
			UsedFiles: s.content.usedFiles, Restored: s.restored, Attached: slices.Sorted(maps.Keys(s.attached)),
		}
		for _, id := range slices.Sorted(maps.Keys(s.snapshots)) {
			state.Snapshots = append(state.Snapshots, volume.SnapshotState{UID: id, HeldBytes: s.snapshots[id].usedBytes})
		}
		all = append(all, state)
	}
	return all, nil
}

// Root implements volume.Pool. There is nothing at that path.
func (p *Pool) Root(uid string) string { return path.Join("/fake/roots", uid) }

// Dir implements volume.Pool. There is nothing at that path.
func (p *Pool) Dir(uid, clusterUID string) string { return path.Join("/fake/volumes", uid, clusterUID) }

// Socket implements volume.Pool.
func (p *Pool) Socket(uid, clusterUID string) string {
	return path.Join("/fake/disks", uid, clusterUID, "disk.sock")
}

// Purge implements volume.Pool.
func (p *Pool) Purge(ctx context.Context, uid string, generation int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := volume.CheckUID(uid); err != nil {
		return err
	}
	d := p.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.failure(uid); err != nil {
		return err
	}
	s, ok := d.volumes[uid]
	switch {
	case !ok:
		return nil
	case generation < s.generation:
		return stale(uid, generation, s.generation)
	case len(s.attached) > 0:
		return inUse(uid, s)
	case s.exporting:
		return fmt.Errorf("volume %s: %w: a backup of it is being written", uid, volume.ErrInUse)
	}
	delete(d.volumes, uid)
	d.did("purge %s", uid)
	return nil
}

// Close implements volume.Pool.
func (p *Pool) Close(context.Context) error {
	p.disk.Reboot()
	return nil
}

func stale(uid string, generation, obeyed int64) error {
	return fmt.Errorf("volume %s: %w: generation %d, and this is %d", uid, volume.ErrStale, obeyed, generation)
}

func inUse(uid string, s *stored) error {
	return fmt.Errorf("volume %s: %w to clusters %v", uid, volume.ErrInUse, slices.Sorted(maps.Keys(s.attached)))
}
