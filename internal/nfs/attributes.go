package nfs

import (
	"errors"

	"golang.org/x/sys/unix"
)

// types are ftype3 (RFC 1813, section 2.6) by Linux's type of a file.
var types = map[uint16]uint32{
	unix.S_IFREG: 1, unix.S_IFDIR: 2, unix.S_IFBLK: 3, unix.S_IFCHR: 4, unix.S_IFLNK: typeLink, unix.S_IFSOCK: typeSocket, unix.S_IFIFO: typeFIFO,
}

const typeLink, typeSocket, typeFIFO = 5, 6, 7

// attributes writes fattr3.
func (w *writer) attributes(stat *unix.Statx_t) {
	w.u32(types[stat.Mode&unix.S_IFMT])
	w.u32(uint32(stat.Mode & 0o7777))
	w.u32(stat.Nlink)
	w.u32(stat.Uid)
	w.u32(stat.Gid)
	w.u64(stat.Size)
	w.u64(stat.Blocks * 512)
	w.u32(stat.Rdev_major)
	w.u32(stat.Rdev_minor)
	w.u64(w.tree)
	w.u64(stat.Ino)
	w.time(stat.Atime)
	w.time(stat.Mtime)
	w.time(stat.Ctime)
}

func (w *writer) time(t unix.StatxTimestamp) {
	w.u32(uint32(t.Sec))
	w.u32(t.Nsec)
}

// after writes post_op_attr of an open file.
func (w *writer) after(fd int) {
	stat, err := statOf(fd)
	w.boolean(err == nil)
	if err == nil {
		w.attributes(&stat)
	}
}

// change is a file before it is changed.
type change struct {
	fd     int
	before unix.Statx_t
	known  bool
}

func changing(fd int) change {
	stat, err := statOf(fd)
	return change{fd, stat, err == nil}
}

// wcc writes wcc_data. Others change files, too, so that both halves say no more than what they say: a client takes an attribute that it does not
// expect for somebody else's change.
func (w *writer) wcc(c change) {
	w.boolean(c.known)
	if c.known {
		w.u64(c.before.Size)
		w.time(c.before.Mtime)
		w.time(c.before.Ctime)
	}
	w.after(c.fd)
}

// noWCC is wcc_data without any.
func (w *writer) noWCC() {
	w.boolean(false)
	w.boolean(false)
}

// settable is sattr3.
type settable struct {
	mode, uid, gid *uint32
	size           *uint64
	times          [2]unix.Timespec
	anyTime        bool
}

func (r *reader) settable() (s settable) {
	for _, field := range []**uint32{&s.mode, &s.uid, &s.gid} {
		if r.boolean() {
			v := r.u32()
			*field = &v
		}
	}
	if r.boolean() {
		v := r.u64()
		s.size = &v
	}
	for i := range s.times {
		switch r.u32() {
		case 1:
			s.times[i].Nsec, s.anyTime = unix.UTIME_NOW, true
		case 2:
			s.times[i] = unix.Timespec{Sec: int64(r.u32()), Nsec: int64(r.u32())}
			s.anyTime = true
		default:
			s.times[i].Nsec = unix.UTIME_OMIT
		}
	}
	return s
}

// createMode is the mode that a file is made with: others are not let in before all that was asked for is in force.
func (s *settable) createMode(otherwise uint32) uint32 {
	if s.mode != nil {
		return *s.mode & 0o7777
	}
	return otherwise
}

// set brings an open file (O_PATH) to what is asked. The owner first, as that takes set-user-ID bits away.
func (c *call) set(fd int, s *settable) error {
	if s.uid != nil || s.gid != nil {
		uid, gid := -1, -1
		if s.uid != nil {
			uid = int(*s.uid)
		}
		if s.gid != nil {
			gid = int(*s.gid)
		}
		if err := unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	if s.mode != nil {
		stat, err := statOf(fd)
		if err != nil {
			return err
		}
		// A link has no mode of its own, and its path would lead on.
		if stat.Mode&unix.S_IFMT != unix.S_IFLNK {
			if err := unix.Chmod(c.files.path(fd), *s.mode&0o7777); err != nil {
				return err
			}
		}
	}
	if s.size != nil {
		if err := c.truncate(fd, *s.size); err != nil {
			return err
		}
	}
	if s.anyTime {
		return unix.UtimesNanoAt(unix.AT_FDCWD, c.files.path(fd), s.times[:], 0)
	}
	return nil
}

func (c *call) truncate(fd int, size uint64) error {
	file, err := c.openData(fd, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(file) }()
	if int64(size) < 0 {
		return unix.EFBIG
	}
	return unix.Ftruncate(file, int64(size))
}

// openData opens a regular file's content. A client has checked permissions when it opened the file, and what it may do since then lasts: so the owner
// may always, and whoever may execute a file may read it, as its pages have to be read for that.
func (c *call) openData(fd, how int) (int, error) {
	stat, err := statOf(fd)
	if err != nil {
		return 0, err
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return 0, statusIsDirectory
	default:
		return 0, statusInvalid
	}
	open := func() (int, error) {
		return unix.Open(c.files.path(fd), how|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_LARGEFILE, 0)
	}
	file, err := open()
	if !errIsAccess(err) {
		return file, err
	}
	executes := how == unix.O_RDONLY && c.may(fd, unix.X_OK)
	if stat.Uid != c.who.uid && !executes {
		return 0, err
	}
	if err := c.thread.own(); err != nil {
		return 0, err
	}
	file, err = open()
	return file, errors.Join(err, c.thread.become(c.who))
}

// may reports whether the caller may read, write or search: the kernel decides by the thread's file system IDs.
func (c *call) may(fd int, what uint32) bool {
	return unix.Faccessat2(fd, "", what, unix.AT_EACCESS|unix.AT_EMPTY_PATH) == nil
}
