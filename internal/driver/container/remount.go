package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/openfiles"
	"github.com/nearmetal/nearmetal/internal/patience"
)

// Remount brings what a running member has mounted of volumes to m.Mounts: first what it is to have, then what it is to let go of. The record names all
// that may be mounted, so that the next call finds what a crash left.
func (d *Driver) Remount(ctx context.Context, m driver.Member) error {
	if err := d.remount(ctx, m); errors.Is(err, driver.ErrMountBusy) {
		return err // for its user, who knows the member by its name
	} else if err != nil {
		return fmt.Errorf("changing the volumes of member %q: %w", m.Assignment.ID, err)
	}
	return nil
}

func (d *Driver) remount(ctx context.Context, m driver.Member) error {
	id := m.Assignment.ID
	if err := checkMember(m); err != nil {
		return err
	}
	h, err := d.host()
	if err != nil {
		return err
	}
	before, err := d.recall(id)
	if err != nil {
		return err
	}
	seen := d.look(h, id)
	if !seen.alive() {
		return fmt.Errorf("the member is %s", seen.state)
	}
	known := before.Member
	leaving := slices.DeleteFunc(slices.Clone(known.Mounts), func(o driver.Mount) bool { return slices.Contains(m.Mounts, o) })
	known.Mounts = slices.Concat(leaving, m.Mounts)
	files := paths(known.Files)
	if err := d.remember(known, before.PID, files); err != nil {
		return err
	}
	failpoint.Hit("container.before-remount")
	space, err := d.enterable(h, id, seen.init)
	if err != nil {
		return err
	}
	defer space.namespace.Close()
	space.owner, space.questions = int(m.Assignment.UserIDs.First), &d.questions
	var errs []error
	for _, v := range m.Mounts {
		if err := space.mount(ctx, v); err != nil {
			errs = append(errs, fmt.Errorf("the volume at %s: %w", v.Path, err))
		}
	}
	failpoint.Hit("container.after-mount")
	for _, v := range leaving {
		if err := space.unmount(ctx, v, m.Mounts); errors.Is(err, unix.EBUSY) {
			errs = append(errs, fmt.Errorf("%w: %s", driver.ErrMountBusy, d.usersOf(h, m, v)))
		} else if err != nil {
			errs = append(errs, fmt.Errorf("the volume at %s: %w", v.Path, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	known.Mounts, known.Assignment.Volumes, known.Assignment.VolumesNumber = m.Mounts, m.Assignment.Volumes, m.Assignment.VolumesNumber
	known.LayersNumber = m.LayersNumber
	return d.remember(known, before.PID, files)
}

// memberSpace is the mount namespace of a running member.
type memberSpace struct {
	namespace *os.File
	init      int
	owner     int // the host's ID of the member's root
	// root opens the member's root directory for writing.
	root func() (*os.File, error)
	// questions are those about volumes, which may not answer.
	questions *patience.Questions
}

// enterable opens the mount namespace of a member's first process.
func (d *Driver) enterable(h *host, id string, init int) (*memberSpace, error) {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", init))
	if err != nil {
		return nil, err
	}
	if !h.cgroups.Contains(id, init) {
		return nil, errors.Join(errors.New("the member has just ended"), namespace.Close())
	}
	return &memberSpace{namespace: namespace, init: init, root: func() (*os.File, error) { return d.openRoot(id) }}, nil
}

// do does something on a thread in the namespace. It waits no longer than it waits for a volume: the directories there may be on one. Then the job goes
// on, one for each member, and what it has found is not to be looked at.
func (s *memberSpace) do(ctx context.Context, job func() error) error {
	inside := func() (struct{}, error) {
		result := make(chan error)
		go onOwnThread(func() {
			if err := join(s.namespace); err != nil {
				result <- err
				return
			}
			result <- job()
		})
		return struct{}{}, <-result
	}
	_, err := patience.Ask(ctx, s.questions, fmt.Sprintf("the mounts of process %d", s.init), inside, nil)
	return err
}

// mount gives the member a volume, unless it has that already.
func (s *memberSpace) mount(ctx context.Context, v driver.Mount) error {
	have, err := s.mounted(ctx, v)
	if err != nil {
		return err
	}
	if slices.Contains(have, v.Path) {
		return nil
	}
	open := func() (*os.File, error) { return openVolume(v.Source, v.ReadOnly) }
	tree, err := patience.Ask(ctx, s.questions, v.Source, open, func(tree *os.File) { _ = tree.Close() })
	if err != nil {
		return err
	}
	defer tree.Close()
	if err := s.makePlace(ctx, v.Path); err != nil {
		return err
	}
	return s.do(ctx, func() error {
		place, err := openPlace(v.Path)
		if err != nil {
			return err
		}
		defer place.Close()
		if err := ctx.Err(); err != nil { // nobody expects this mount any more
			return err
		}
		err = unix.MoveMount(int(tree.Fd()), "", int(place.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
		if err != nil {
			return fmt.Errorf("mount it: %w", err)
		}
		return nil
	})
}

// unmount takes a volume from the member, wherever the member has moved the directory that it is mounted on. wanted are the mounts that stay.
func (s *memberSpace) unmount(ctx context.Context, v driver.Mount, wanted []driver.Mount) error {
	have, err := s.mounted(ctx, v)
	if err != nil {
		return err
	}
	for _, place := range have {
		if slices.ContainsFunc(wanted, func(w driver.Mount) bool { return w.Source == v.Source && w.Path == place }) {
			continue
		}
		if err := s.do(ctx, func() error { return unix.Unmount(place, unix.UMOUNT_NOFOLLOW) }); err != nil {
			return fmt.Errorf("unmount %s: %w", place, err)
		}
	}
	return nil
}

// mounted returns where the member has a volume now. It does not need the volume to answer, unless its directory has to be looked up there.
func (s *memberSpace) mounted(ctx context.Context, v driver.Mount) ([]string, error) {
	source, err := patience.Ask(ctx, s.questions, v.Source, func() (unix.Statx_t, error) { return known(v.Source, 0) }, nil)
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", v.Source, err)
	}
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", s.init))
	if err != nil {
		return nil, err
	}
	points := mountPoints(string(table), fmt.Sprintf("%d:%d", source.Dev_major, source.Dev_minor))
	var have []string
	err = s.do(ctx, func() error {
		for _, point := range points {
			at, err := known(point, unix.AT_SYMLINK_NOFOLLOW)
			if err == nil && at.Dev_major == source.Dev_major && at.Dev_minor == source.Dev_minor && at.Ino == source.Ino {
				have = append(have, point)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return have, nil
}

// known returns which file a path leads to, as the kernel knows it: what is mounted there is not asked.
func known(path string, flags int) (stat unix.Statx_t, err error) {
	err = unix.Statx(unix.AT_FDCWD, path, flags|unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &stat)
	return stat, err
}

// mountPoints returns where file systems of a device are mounted, by a process's table of mounts, see proc_pid_mountinfo(5).
func mountPoints(table, device string) []string {
	var points []string
	for line := range strings.Lines(table) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[2] == device {
			points = append(points, unescaped(fields[4]))
		}
	}
	return points
}

// unescaped undoes the kernel's octal escapes of blanks and backslashes.
func unescaped(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if c, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		out.WriteByte(text[i])
	}
	return out.String()
}

// openPlace opens a directory of the calling thread's namespace without following links: what is there was chosen by the member.
func openPlace(place string) (*os.File, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, place, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: place, Err: err}
	}
	return os.NewFile(uintptr(fd), place), nil
}

// makePlace makes the directory that a volume is mounted on, in the member's root or in a file system of its own. What comes from the environment is
// read-only.
func (s *memberSpace) makePlace(ctx context.Context, place string) error {
	dirs := []string{place}
	for dir := path.Dir(place); dir != "/"; dir = path.Dir(dir) {
		dirs = append(dirs, dir)
	}
	slices.Reverse(dirs)
	for _, dir := range dirs {
		inRoot := false
		err := s.do(ctx, func() (err error) {
			inRoot, err = s.makeDir(dir)
			return err
		})
		if err == nil && inRoot {
			err = s.makeDirInRoot(dir)
		}
		switch {
		case errors.Is(err, unix.EROFS):
			return fmt.Errorf("the member has no directory %s, and none can be made there; attach the volume elsewhere, such as below /volumes", place)
		case errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR):
			return fmt.Errorf("%s is no directory of the member; attach the volume elsewhere, such as below /volumes", dir)
		case err != nil:
			return err
		}
	}
	return nil
}

// makeDir makes a directory in the calling thread's namespace as the member's root. It reports whether that is to be made in the member's root
// directory, which is mounted read-only.
func (s *memberSpace) makeDir(dir string) (inRoot bool, err error) {
	if there, err := openPlace(dir); err == nil {
		return false, there.Close()
	} else if !errors.Is(err, unix.ENOENT) {
		return false, err
	}
	parent, err := openPlace(path.Dir(dir))
	if err != nil {
		return false, err
	}
	defer parent.Close()
	var below, top unix.Statx_t
	if err := errors.Join(unix.Statx(int(parent.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &below), unix.Statx(unix.AT_FDCWD, "/", 0, unix.STATX_MNT_ID, &top)); err != nil {
		return false, err
	}
	if below.Mnt_id == top.Mnt_id {
		return true, nil
	}
	// File systems that belong to the member's user namespace know no other owners. The thread ends with this.
	if err := errors.Join(unix.Setfsgid(s.owner), unix.Setfsuid(s.owner)); err != nil {
		return false, err
	}
	if err := unix.Mkdirat(int(parent.Fd()), path.Base(dir), 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return false, &fs.PathError{Op: "mkdir", Path: dir, Err: err}
	}
	return false, nil
}

// makeDirInRoot makes a directory in the member's root directory.
func (s *memberSpace) makeDirInRoot(dir string) error {
	tree, err := s.root()
	if err != nil {
		return err
	}
	defer tree.Close()
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", tree.Fd()))
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Mkdir(inRoot(dir), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return root.Lchown(inRoot(dir), s.owner, s.owner)
}

// usersOf says which processes of a member have files of a mount open.
func (d *Driver) usersOf(h *host, m driver.Member, v driver.Mount) string {
	pids, _ := h.cgroups.Processes(m.Assignment.ID)
	return openfiles.Text(pids, v.Path, "member "+m.Assignment.Member)
}
