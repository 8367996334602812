package archive

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/failpoint"
)

const (
	// holeBytes is the smallest hole that a file gets where the archive has zeros.
	holeBytes = 4 << 10
	// pathOnly opens a directory as a place for other calls.
	pathOnly = unix.O_PATH | unix.O_DIRECTORY
)

// Target says where an archive's files are made.
type Target struct {
	// Dir is an empty directory that nobody else has, on a file system that bounds what it takes. VolumeBytes is the size of that.
	Dir         *os.File
	VolumeBytes int64
	// Layer: the archive is that of a layer (see Source), and may have what only layers have.
	Layer bool
}

// Unpack makes the files of an archive in a directory, and returns once they are on the disk. After an error the directory must be discarded: that an
// archive is whole, and is what was written, is known at its end. It returns ErrDamaged, ErrRefused, or what the kernel said, such as unix.ENOSPC.
func Unpack(ctx context.Context, in io.Reader, target Target) (Trailer, error) {
	u := &unpacker{root: target.Dir, layer: target.Layer, buffer: make([]byte, copyBytes), most: HoleFactor * target.VolumeBytes}
	defer u.leave()
	trailer, err := read(ctx, in, func(from *tar.Reader) (int64, error) {
		u.tar = from
		err := u.all()
		return u.files, err
	})
	if err != nil {
		return Trailer{}, err
	}
	if err := unix.Syncfs(int(target.Dir.Fd())); err != nil {
		return Trailer{}, fmt.Errorf("writing the files to the disk: %w", err)
	}
	return trailer, nil
}

type unpacker struct {
	root   *os.File
	layer  bool
	tar    *tar.Reader
	buffer []byte
	files  int64
	// seeming is what the files seem to hold, and most the bound of it.
	seeming, most int64
	// within are the directories in which the last file was: their times are set once nothing more is made in them.
	within []*tar.Header
	// parent is open, and the directory with parentPath.
	parent     *os.File
	parentPath string
}

func (u *unpacker) all() error {
	for {
		h, err := u.tar.Next()
		if errors.Is(err, io.EOF) {
			return u.leaveFor("")
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if h.Name, err = checkName(h); err != nil {
			return err
		}
		if err := u.one(h); err != nil {
			return wrap(h.Name, err)
		}
		u.files++
		failpoint.Hit("archive.after-file")
	}
}

// checkName returns the path of an entry as it is used here, or refuses it.
func checkName(h *tar.Header) (string, error) {
	name := h.Name
	if h.Typeflag == tar.TypeDir {
		name = strings.TrimSuffix(name, "/")
	}
	if err := checkPath(name); err != nil {
		return "", err
	}
	if h.Uid < 0 || h.Uid > MaxID || h.Gid < 0 || h.Gid > MaxID {
		return "", fmt.Errorf("%w: %q belongs to %d:%d, and the highest ID is %d", ErrRefused, name, h.Uid, h.Gid, MaxID)
	}
	return name, nil
}

func checkPath(name string) error {
	if len(name) > MaxPath {
		return fmt.Errorf("%w: a path has more than %d bytes: %q", ErrRefused, MaxPath, name[:100]+"...")
	}
	if !filepath.IsLocal(name) || path.Clean(name) != name {
		return fmt.Errorf("%w: the path %q may lead out of the volume", ErrRefused, name)
	}
	return nil
}

// one makes what an entry says.
func (u *unpacker) one(h *tar.Header) error {
	if err := u.leaveFor(h.Name); err != nil {
		return err
	}
	if h.Name == "." {
		return u.rootDir(h)
	}
	dir, name, err := u.place(h.Name)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := unix.Mkdirat(dir, name, 0o700); err != nil {
			return err
		}
		u.within = append(u.within, h)
		return nil
	case tar.TypeReg:
		return u.file(dir, name, h)
	case tar.TypeSymlink:
		if err := unix.Symlinkat(h.Linkname, dir, name); err != nil {
			return err
		}
		return u.finishUnopened(dir, name, h)
	case tar.TypeLink:
		return u.hardLink(dir, name, h)
	case tar.TypeFifo:
		if err := unix.Mknodat(dir, name, unix.S_IFIFO|0o600, 0); err != nil {
			return err
		}
		if err := unix.Fchmodat(dir, name, uint32(h.Mode)&0o7777, 0); err != nil {
			return err
		}
		return u.finishUnopened(dir, name, h)
	case tar.TypeChar:
		if !u.layer || h.Devmajor != 0 || h.Devminor != 0 {
			return fmt.Errorf("%w: it is a device", ErrRefused)
		}
		return unix.Mknodat(dir, name, unix.S_IFCHR, 0)
	default:
		return fmt.Errorf("%w: it is neither a file nor a directory nor a link (type %q)", ErrRefused, h.Typeflag)
	}
}

// rootDir takes the properties of the volume's root directory, which is there.
func (u *unpacker) rootDir(h *tar.Header) error {
	if h.Typeflag != tar.TypeDir || u.files > 0 {
		return fmt.Errorf("%w: it is not the first directory", ErrRefused)
	}
	u.within = append(u.within, h)
	return nil
}

// place opens the directory in which a path is. It must be there.
func (u *unpacker) place(at string) (dir int, name string, err error) {
	parent := path.Dir(at)
	if u.parent == nil || u.parentPath != parent {
		u.leave()
		if u.parent, err = openBeneath(u.root, parent, pathOnly); err != nil {
			return 0, "", fmt.Errorf("opening its directory: %w", err)
		}
		u.parentPath = parent
	}
	return int(u.parent.Fd()), path.Base(at), nil
}

// leave closes the directory that is open.
func (u *unpacker) leave() {
	if u.parent != nil {
		_ = u.parent.Close()
		u.parent = nil
	}
}

// leaveFor finishes the directories in which the next path is not.
func (u *unpacker) leaveFor(next string) error {
	for n := len(u.within); n > 0; n = len(u.within) {
		h := u.within[n-1]
		if next != "" && (h.Name == "." || strings.HasPrefix(next, h.Name+"/")) {
			return nil
		}
		u.within = u.within[:n-1]
		dir, err := openBeneath(u.root, h.Name, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return wrap(h.Name, err)
		}
		if err := errors.Join(u.finish(dir, h), dir.Close()); err != nil {
			return wrap(h.Name, err)
		}
	}
	return nil
}

func (u *unpacker) file(dir int, name string, h *tar.Header) error {
	if u.seeming += h.Size; h.Size > u.most || u.seeming > u.most {
		return fmt.Errorf("%w: its files seem to hold more than %d times the size of the volume", ErrRefused, HoleFactor)
	}
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	err = u.fill(f, h.Size)
	if err == nil {
		err = u.finish(f, h)
	}
	return errors.Join(err, f.Close())
}

// fill writes a file's content, with holes where it is zero.
func (u *unpacker) fill(f *os.File, size int64) error {
	for at := int64(0); at < size; {
		n, err := io.ReadFull(u.tar, u.buffer[:min(size-at, copyBytes)])
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if err := writeData(f, u.buffer[:n], at); err != nil {
			return err
		}
		at += int64(n)
	}
	return f.Truncate(size)
}

// writeData writes the runs of blocks that are not zero.
func writeData(f *os.File, data []byte, at int64) error {
	for begin := 0; begin < len(data); {
		end := begin
		for end < len(data) && !zero(data[end:min(end+holeBytes, len(data))]) {
			end = min(end+holeBytes, len(data))
		}
		if end == begin {
			begin = min(begin+holeBytes, len(data))
			continue
		}
		if _, err := f.WriteAt(data[begin:end], at+int64(begin)); err != nil {
			return err
		}
		begin = end
	}
	return nil
}

func zero(data []byte) bool {
	for _, c := range data {
		if c != 0 {
			return false
		}
	}
	return true
}

func (u *unpacker) hardLink(dir int, name string, h *tar.Header) error {
	if err := checkPath(h.Linkname); err != nil {
		return err
	}
	from, err := openBeneath(u.root, path.Dir(h.Linkname), pathOnly)
	if err != nil {
		return fmt.Errorf("it is a link to %q: %w", h.Linkname, err)
	}
	return errors.Join(unix.Linkat(int(from.Fd()), path.Base(h.Linkname), dir, name, 0), from.Close())
}

// finish gives an open file its owner, mode, attributes and time. The owner comes first: a change of it takes bits of the mode away.
func (u *unpacker) finish(f *os.File, h *tar.Header) error {
	fd := int(f.Fd())
	if err := unix.Fchown(fd, h.Uid, h.Gid); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, uint32(h.Mode)&0o7777); err != nil {
		return err
	}
	if err := setAttributes(f, h.PAXRecords, u.layer); err != nil {
		return err
	}
	times := []unix.Timespec{timespec(h.ModTime), timespec(h.ModTime)}
	return unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), times, 0)
}

// finishUnopened gives what can't be opened its owner and time.
func (u *unpacker) finishUnopened(dir int, name string, h *tar.Header) error {
	if err := unix.Fchownat(dir, name, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	times := []unix.Timespec{timespec(h.ModTime), timespec(h.ModTime)}
	return unix.UtimesNanoAt(dir, name, times, unix.AT_SYMLINK_NOFOLLOW)
}

func timespec(t time.Time) unix.Timespec {
	return unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
}
