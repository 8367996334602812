// Package layers mounts the own layers of built environments on a node, for members that have them beside their roots.
//
// A layer is mounted once for each range of user IDs, so that its files have the owners that members expect. The driver of a member's stack shows it to
// the member, as it shows a volume. What is mounted is found by looking at the kernel's list. The package must never decide who has a layer. Start with
// Store.Mount.
package layers

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/imagemount"
	"github.com/nearmetal/nearmetal/internal/volume/mounts"
)

// Store is where a node has layers mounted.
type Store struct {
	dir    string
	images environment.Images
	log    *slog.Logger

	mu sync.Mutex
	// plain: the kernel can't map owners, which was logged.
	plain bool
}

// New returns a store of layers of images, which are mounted below a directory of its own.
func New(dir string, images environment.Images, log *slog.Logger) *Store {
	return &Store{dir: dir, images: images, log: log}
}

// Path returns the directory at which Mount mounts an image's own layer, for members with a range of user IDs: {} are the host's own.
func (s *Store) Path(digest string, ids api.IDRange) string {
	at := filepath.Join(s.dir, image.Digest(digest).Hex())
	if ids.Count == 0 {
		return at
	}
	return at + "." + strconv.FormatUint(uint64(ids.First), 10)
}

// Mount mounts the own layer of an image at its path, unless it is there. An error says why the image can't be used.
func (s *Store) Mount(digest string, ids api.IDRange) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := image.Digest(digest).Check(); err != nil {
		return err
	}
	own := s.Path(digest, api.IDRange{})
	there, err := mounted(own)
	if err != nil {
		return err
	}
	if !there {
		img, err := s.images.Image(digest)
		if err != nil {
			return err
		}
		if img.Disk != nil || len(img.Layers) == 0 {
			return fmt.Errorf("image %s has no layer: it is the disk of another system, or boots machines only", digest)
		}
		if _, err := imagemount.Mount(img.Layers[len(img.Layers)-1], own); err != nil {
			return err
		}
	}
	at := s.Path(digest, ids)
	if at == own {
		return nil
	}
	if there, err := mounted(at); err != nil || there {
		return err
	}
	return s.mapped(own, at, ids)
}

// mapped shows a layer with the owners of a range of IDs. Where the kernel can't map those of its file system, members see its files as nobody's, which
// is logged once.
func (s *Store) mapped(own, at string, ids api.IDRange) error {
	if err := os.MkdirAll(at, 0o711); err != nil {
		return err
	}
	err := mounts.Map(own, at, ids, true)
	if err == nil {
		return nil
	}
	if !s.plain {
		s.plain = true
		s.log.Warn("files of layers appear to members as owned by nobody: the kernel can't map their owners", "reason", err)
	}
	if err := unix.Mount(own, at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting at %s: %w", at, err)
	}
	return nil
}

// Keep takes away every layer that is not at one of these paths. Members that have one go on with it: their own mounts keep what they show.
func (s *Store) Keep(paths []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		at := filepath.Join(s.dir, e.Name())
		if slices.ContainsFunc(paths, func(keep string) bool { return keep == at || strings.HasPrefix(keep, at+".") }) {
			continue
		}
		for { // what an earlier run mounted twice
			there, err := mounted(at)
			if err != nil {
				return err
			}
			if !there {
				break
			}
			if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				return fmt.Errorf("unmounting %s: %w", at, err)
			}
		}
		if err := os.Remove(at); err != nil {
			return err
		}
	}
	return nil
}

// mounted reports whether something is mounted at a directory (statx(2)).
func mounted(at string) (bool, error) {
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, at, unix.AT_STATX_DONT_SYNC|unix.AT_SYMLINK_NOFOLLOW, 0, &stat)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, err
}
