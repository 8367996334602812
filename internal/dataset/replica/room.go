package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/dataset"
)

// dismiss removes the replicas that are to go. Before the first Want nothing goes, and nothing that members have ever does.
func (s *Store) dismiss(ctx context.Context) {
	s.mu.Lock()
	var leaving []*replica
	for uid, r := range s.all {
		switch {
		case !s.known || r.fetching != nil:
		case r.leaving():
			leaving = append(leaving, r)
		case r.record == nil && (r.want == nil || !r.want.Keep): // no replica, and nobody waits for one
			if _, err := os.Lstat(s.path(uid)); os.IsNotExist(err) {
				delete(s.all, uid)
				continue
			}
			leaving = append(leaving, r)
		}
	}
	s.mu.Unlock()
	gone := false
	for _, r := range leaving {
		gone = s.drop(ctx, r) || gone
	}
	if gone {
		s.cfg.Changed()
	}
}

// drop removes a replica, unless members have it by now.
func (s *Store) drop(ctx context.Context, r *replica) bool {
	s.mu.Lock()
	if r.used || r.fetching != nil {
		s.mu.Unlock()
		return false
	}
	was := r.record
	r.record = nil // no new member gets it
	s.share()
	r.fetching = func() {} // nor does anybody begin to fetch it
	s.mu.Unlock()
	err := s.remove(ctx, r.uid)
	s.mu.Lock()
	defer s.mu.Unlock()
	r.fetching = nil
	if err != nil {
		r.message = fmt.Sprintf("can't be removed: %v", err)
		s.cfg.Log.WarnContext(ctx, "a replica can't be removed", "dataset", r.uid, "error", err)
		return false
	}
	s.cfg.Log.InfoContext(ctx, "removed a replica", "dataset", r.uid, "was_whole", was != nil)
	r.held, r.message = 0, ""
	if r.want == nil || !r.want.Keep {
		delete(s.all, r.uid)
	}
	return true
}

// NoRoomError: a dataset does not fit.
type NoRoomError struct {
	NeedBytes, RoomBytes int64
	// Limited: it is the limit of replicas that is in the way, and not the disk.
	Limited bool
	Dir     string
}

func (e *NoRoomError) Error() string {
	if e.Limited {
		return fmt.Sprintf("it needs %d MiB, and the node has room for %d MiB of datasets besides those that are in use or kept; evict one, or give the agent "+
			"more room (--dataset-size)", mebibytes(e.NeedBytes), e.RoomBytes>>20)
	}
	return fmt.Sprintf("it needs %d MiB more, and %s has room for %d MiB; free space there", mebibytes(e.NeedBytes), e.Dir, e.RoomBytes>>20)
}

// mebibytes rounds up.
func mebibytes(bytes int64) int64 { return (bytes + 1<<20 - 1) >> 20 }

// makeRoom removes replicas that nobody has and nobody asked for, the longest unused first, until a dataset fits. It returns how much each of its files
// may have at most.
func (s *Store) makeRoom(ctx context.Context, r *replica, want *dataset.Wanted) (int64, error) {
	for {
		room, limited, err := s.room(r)
		if err != nil {
			return 0, err
		}
		s.mu.Lock()
		need := max(r.expected(), 1)
		s.mu.Unlock()
		if room >= need {
			return room, nil
		}
		if !s.dropOldest(ctx) {
			return 0, &NoRoomError{NeedBytes: need, RoomBytes: max(room, 0), Limited: limited, Dir: s.cfg.Dir}
		}
	}
}

// room is how many bytes the replica may have, and whether it is the limit that bounds it.
func (s *Store) room(r *replica) (bytes int64, limited bool, err error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(s.cfg.Dir, &stat); err != nil {
		return 0, false, fmt.Errorf("read the free space for datasets: %w", err)
	}
	held, err := diskUse(s.path(r.uid))
	if err != nil {
		return 0, false, err
	}
	room := int64(stat.Bavail)*stat.Bsize - s.cfg.ReserveBytes + held
	if s.cfg.MaxBytes == 0 {
		return room, false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.cfg.MaxBytes
	for _, other := range s.all {
		if other != r && (other.record != nil || other.fetching != nil) {
			left -= other.expected()
		}
	}
	return min(room, left), left < room, nil
}

// dropOldest removes the replica that was unused for the longest time; false: none may go.
func (s *Store) dropOldest(ctx context.Context) bool {
	s.mu.Lock()
	var may []*replica
	for _, r := range s.all {
		if r.record != nil && r.fetching == nil && (r.want == nil || !r.want.Keep) {
			may = append(may, r)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(may, func(a, b *replica) int { return cmp.Or(a.lastUse.Compare(b.lastUse), cmp.Compare(a.uid, b.uid)) })
	for _, r := range may {
		if s.drop(ctx, r) {
			return true
		}
	}
	return false
}

// diskUse is what the files below a directory take on the disk.
func diskUse(dir string) (int64, error) {
	var sum int64
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if e.IsDir() {
			below, err := diskUse(dir + "/" + e.Name())
			if err != nil {
				return 0, err
			}
			sum += below
			continue
		}
		var stat unix.Stat_t
		if err := unix.Lstat(dir+"/"+e.Name(), &stat); err == nil {
			sum += stat.Blocks * 512
		}
	}
	return sum, nil
}
