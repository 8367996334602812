package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
)

// A volume is a mount of the host, made after the spawner has left the host's mount namespace, and where the host's mounts do not propagate the
// runtime would see the empty directory below it. So what a member has of the host's directories is mounted again in the spawner's namespace, for
// as long as the runtime makes the member: a member's own mounts keep what they need.

// withPlaces makes room in a member's root for its volumes. Directories of the environment are read-only, so a directory to mount on has to be there,
// unless the environment's own is empty: then the member has one of its own.
func withPlaces(root environment.Root, mounts []driver.Mount) (environment.Root, error) {
	root.Binds, root.Dirs = slices.Clone(root.Binds), slices.Clone(root.Dirs)
	for _, m := range mounts {
		for i, b := range root.Binds {
			below, ok := strings.CutPrefix(m.Path, b.Target+"/")
			if !ok {
				continue
			}
			source := b.Open()
			if info, err := os.Lstat(filepath.Join(source, below)); err == nil && info.IsDir() {
				break
			}
			if entries, err := os.ReadDir(source); err != nil || len(entries) > 0 || strings.Count(b.Target, "/") > 1 {
				return root, fmt.Errorf("it has no directory %s, and none can be made in its %s; attach the volume elsewhere, such as below /volumes", m.Path, b.Target)
			}
			root.Binds = slices.Delete(root.Binds, i, i+1)
			root.Dirs = append(root.Dirs, environment.Dir{Path: b.Target, Mode: 0o755})
			break
		}
	}
	return root, nil
}

// showDirs mounts the home and the volumes of a member where the runtime sees them. It returns the member with those directories, and a function
// that takes them away again, which is called in any case.
func (h *host) showDirs(ctx context.Context, m driver.Member) (shown driver.Member, hide func() error, err error) {
	shown, shown.Mounts = m, slices.Clone(m.Mounts)
	dir := h.spawner.volumesDir(m.Assignment.ID)
	var places []string
	hide = func() error {
		if len(places) == 0 {
			return nil
		}
		return h.spawner.do(context.WithoutCancel(ctx), func() error { return hideDirs(dir, places) })
	}
	show := func(source string, readOnly bool) (string, error) {
		tree, err := openVolume(source, readOnly)
		if err != nil {
			return "", err
		}
		defer tree.Close()
		place := filepath.Join(dir, strconv.Itoa(len(places)))
		places = append(places, place)
		return place, h.spawner.do(ctx, func() error { return attachTree(tree, place) })
	}
	if m.HomeDir != "" {
		if shown.HomeDir, err = show(m.HomeDir, false); err != nil {
			return shown, hide, fmt.Errorf("shared home: %w", err)
		}
	}
	for i, v := range m.Mounts {
		if shown.Mounts[i].Source, err = show(v.Source, v.ReadOnly); err != nil {
			return shown, hide, fmt.Errorf("the volume at %s: %w", v.Path, err)
		}
	}
	// The one above is mounted before the one below.
	slices.SortFunc(shown.Mounts, func(a, b driver.Mount) int { return cmp.Compare(a.Path, b.Path) })
	return shown, hide, nil
}

// openVolume opens a directory as a mount of its own, which nobody else sees.
func openVolume(source string, readOnly bool) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", source, err)
	}
	tree := os.NewFile(uintptr(fd), source)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", source, err), tree.Close())
	}
	return tree, nil
}

// attachTree mounts an open directory at a place of the calling thread's namespace.
func attachTree(tree *os.File, place string) error {
	if err := os.MkdirAll(place, 0o711); err != nil {
		return err
	}
	if err := unix.MoveMount(int(tree.Fd()), "", unix.AT_FDCWD, place, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s: %w", tree.Name(), err)
	}
	return nil
}

// hideDirs takes away what showDirs has mounted. Places are removed as empty directories only: what is mounted there is a tenant's.
func hideDirs(dir string, places []string) error {
	var errs []error
	for _, place := range places {
		if err := unix.Unmount(place, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", place, err))
			continue
		}
		if err := os.Remove(place); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// makePrivateHome gives the member's user the directory of its own below a home that nobody else has.
func makePrivateHome(pid int, m driver.Member) error {
	dir := path.Join(fmt.Sprintf("/proc/%d/root/home", pid), m.User.Name)
	base := m.Assignment.UserIDs.First
	if err := errors.Join(os.Lchown(dir, int(base+m.User.UID), int(base+m.User.GID)), unix.Chmod(dir, 0o700)); err != nil {
		return fmt.Errorf("making its private home: %w", err)
	}
	return nil
}
