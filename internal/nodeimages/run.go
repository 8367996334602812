package nodeimages

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/image"
)

// Run fetches what is wanted, one image at a time, and drops what is not, until ctx ends.
func (s *Store) Run(ctx context.Context) {
	for ctx.Err() == nil {
		s.trim(s.cfg.Keep)
		if s.came() {
			s.cfg.Changed()
		}
		want, retry, ok := s.next()
		if ok {
			s.fetch(ctx, want)
			continue
		}
		timer := time.NewTimer(retry)
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// came reports, once, that the image which this machine was booted from has been waited for and is wholly here.
func (s *Store) came() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.bootedManifest()
	came := s.comes && err == nil
	s.comes = s.comes && !came
	return came
}

// lookForBooted is how often it is looked whether the image that this machine was booted from is wholly here.
const lookForBooted = 500 * time.Millisecond

// next is the image to fetch now, or how long to wait for the next try of one that failed.
func (s *Store) next() (Wanted, time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	retry := time.Hour
	booted, whole, bootedErr := s.bootedFrom()
	for _, w := range s.wanted {
		if s.whole[w.Digest] != nil {
			continue
		}
		if bootedErr == nil && booted.digest == w.Digest { // a second copy would take as much memory again
			if !whole {
				s.comes, retry = true, min(retry, lookForBooted)
			}
			continue
		}
		if wait := time.Until(s.failed[w.Digest].retry); wait > 0 {
			retry = min(retry, wait)
			continue
		}
		return w, 0, true
	}
	return Wanted{}, retry, false
}

// fetch fetches one image and notes how it went.
func (s *Store) fetch(ctx context.Context, w Wanted) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := newFetch(s, w)
	s.mu.Lock()
	if !s.wants(w.Digest) {
		s.mu.Unlock()
		return
	}
	s.active, s.cancel = f, cancel
	s.mu.Unlock()
	s.cfg.Changed()
	err := f.run(ctx)
	s.mu.Lock()
	s.active, s.cancel = nil, nil
	s.forget(f)
	if err != nil && ctx.Err() == nil {
		before := s.failed[w.Digest]
		pause := min(time.Second<<min(before.count, 5), 30*time.Second)
		s.failed[w.Digest] = failure{message: err.Error(), count: before.count + 1, retry: time.Now().Add(pause)}
		s.cfg.Log.Warn("an image can't be fetched; trying again", "image", w.Digest, "error", err, "pause", pause)
	} else if err == nil {
		s.cfg.Log.Info("an image was fetched", "image", w.Digest, "from_server_bytes", f.served.Load(), "from_peers_bytes", f.peered.Load())
	}
	s.mu.Unlock()
	s.cfg.Changed()
}

// NoSpaceError: an image does not fit.
type NoSpaceError struct {
	Dir                            string
	NeedBytes, FreeBytes, Reserved int64
}

func (e *NoSpaceError) Error() string {
	return fmt.Sprintf("it needs %d MiB more, and %s has %d MiB free, of which %d MiB must stay free; free space there or give the agent another "+
		"state directory (--state)", mebibytes(e.NeedBytes), e.Dir, e.FreeBytes>>20, e.Reserved>>20)
}

// mebibytes rounds up.
func mebibytes(bytes int64) int64 { return (bytes + 1<<20 - 1) >> 20 }

// makeRoom drops images that are not wanted, the longest unused first, until there is room for so many bytes more.
func (s *Store) makeRoom(need int64) error {
	for keep := s.cfg.Keep; ; keep-- {
		free, err := s.free()
		if err != nil {
			return err
		}
		if free >= need+s.cfg.ReserveBytes {
			return nil
		}
		if keep < 0 {
			return &NoSpaceError{Dir: s.cfg.Dir, NeedBytes: need, FreeBytes: free, Reserved: s.cfg.ReserveBytes}
		}
		s.trim(keep)
	}
}

func (s *Store) free() (int64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(s.cfg.Dir, &stat); err != nil {
		return 0, fmt.Errorf("read the free space for images: %w", err)
	}
	return int64(stat.Bavail) * stat.Bsize, nil
}

// trim drops all but keep of the images that are not wanted, and every blob that no image has. Before the first Want it drops nothing: what
// members stand on is not known.
func (s *Store) trim(keep int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known {
		return
	}
	type unused struct {
		digest image.Digest
		last   time.Time
	}
	var list []unused
	for d := range s.whole {
		if !s.wants(d) {
			info, err := os.Stat(s.mark(d))
			if err != nil {
				continue
			}
			list = append(list, unused{d, info.ModTime()})
		}
	}
	slices.SortFunc(list, func(a, b unused) int { return b.last.Compare(a.last) })
	for _, u := range list[min(max(keep, 0), len(list)):] {
		if err := os.Remove(s.mark(u.digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.cfg.Log.Warn("an unused image can't be removed", "image", u.digest, "error", err)
			continue
		}
		delete(s.whole, u.digest)
		s.cfg.Log.Info("removed an unused image", "image", u.digest)
	}
	s.collect()
}

// collect removes the blobs that no image names which is here or wanted; the lock is held.
func (s *Store) collect() {
	used := map[string]bool{}
	use := func(d image.Digest, m *image.Manifest) {
		used[d.Hex()] = true
		for _, b := range s.needed(m) {
			used[b.Digest.Hex()] = true
		}
	}
	for d, m := range s.whole {
		use(d, m)
	}
	for _, w := range s.wanted {
		used[w.Digest.Hex()] = true
		if m, err := s.manifest(w.Digest); err == nil {
			use(w.Digest, m)
		}
	}
	for d, p := range s.partial { // files that come from other nodes are no images
		used[d.Hex()], used[p.root.Chunks.Digest.Hex()] = true, true
	}
	for _, dir := range []string{dirBlobs, dirPartial} {
		entries, err := os.ReadDir(filepath.Join(s.cfg.Dir, dir))
		if err != nil {
			s.cfg.Log.Warn("the remains of images can't be listed", "error", err)
			continue
		}
		for _, e := range entries {
			if used[e.Name()] {
				continue
			}
			if err := os.Remove(filepath.Join(s.cfg.Dir, dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				s.cfg.Log.Warn("the remains of an image can't be removed", "error", err)
			}
		}
	}
}
