package nfs

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// file opens the file that the next argument is the handle of. All files of a call are of one tree.
func (c *call) file() (fd int, done func(), err error) {
	h, ok := parseHandle(c.args.opaque(maxHandle))
	switch {
	case c.refused != nil:
		return 0, nil, c.refused
	case !ok:
		return 0, nil, statusBadHandle
	case c.tree == nil:
		c.tree, c.out.tree = c.files.trees[h.tree], h.tree
	case c.tree.number != h.tree:
		return 0, nil, statusOtherDevice
	}
	return c.files.get(c.thread, h)
}

func (c *call) status(err error) { c.out.u32(uint32(statusOf(err))) }

func (c *call) getattr() {
	fd, done, err := c.file()
	if err != nil {
		c.status(err)
		return
	}
	defer done()
	stat, err := statOf(fd)
	c.status(err)
	if err == nil {
		c.out.attributes(&stat)
	}
}

// name reads a name in a directory.
func (c *call) name() ([]byte, error) {
	name := c.args.opaque(maxPath)
	return name, checkName(name)
}

func (c *call) lookup() {
	dir, done, err := c.file()
	name := c.args.opaque(maxPath)
	if err != nil {
		c.status(err)
		c.out.boolean(false)
		return
	}
	defer done()
	fd, h, found, err := c.find(dir, name)
	c.status(err)
	if err == nil {
		defer found()
		c.out.opaque(h.bytes())
		c.out.after(fd)
	}
	c.out.after(dir)
}

// find opens what has a name in an open directory.
func (c *call) find(dir int, name []byte) (fd int, h handle, done func(), err error) {
	at, err := statOf(dir)
	if err != nil {
		return 0, h, nil, err
	}
	above := c.tree.handleOf(&at)
	if dots := string(name); dots == "." || dots == ".." && above.is(c.tree.root) {
		fd, done, err := c.files.get(c.thread, above)
		return fd, above, done, err
	} else if dots != ".." {
		if err := checkName(name); err != nil {
			return 0, h, nil, err
		}
	}
	fd, stat, err := c.tree.openAt(dir, string(name))
	if err != nil {
		return 0, h, nil, err
	}
	h = c.tree.handleOf(&stat)
	if string(name) == ".." { // its own place is known, or will be looked for
		return fd, h, func() { _ = unix.Close(fd) }, nil
	}
	o := c.files.keep(h, above.ino, string(name), fd)
	return o.fd, h, func() { c.files.unpin(o) }, nil
}

// Bits of ACCESS (RFC 1813, section 3.3.4).
const (
	accessRead, accessLookup, accessModify, accessExtend, accessDelete, accessExecute = 1, 2, 4, 8, 16, 32
)

func (c *call) access() {
	fd, done, err := c.file()
	asked := c.args.u32()
	if err != nil {
		c.status(err)
		c.out.boolean(false)
		return
	}
	defer done()
	stat, err := statOf(fd)
	c.status(err)
	if err != nil {
		c.out.boolean(false)
		return
	}
	c.out.boolean(true)
	c.out.attributes(&stat)
	granted := uint32(0)
	isDir := stat.Mode&unix.S_IFMT == unix.S_IFDIR
	if asked&accessRead != 0 && c.may(fd, unix.R_OK) {
		granted |= accessRead
	}
	if asked&(accessModify|accessExtend|accessDelete) != 0 && c.may(fd, unix.W_OK) {
		granted |= accessModify | accessExtend
		if isDir {
			granted |= accessDelete
		}
	}
	if asked&(accessLookup|accessExecute) != 0 && c.may(fd, unix.X_OK) {
		if isDir {
			granted |= accessLookup
		} else {
			granted |= accessExecute
		}
	}
	c.out.u32(granted & asked)
}

func (c *call) readlink() {
	fd, done, err := c.file()
	if err != nil {
		c.status(err)
		c.out.boolean(false)
		return
	}
	defer done()
	target := make([]byte, maxPath)
	n, err := unix.Readlinkat(fd, "", target)
	if err == unix.ENOENT { // Linux's answer for what is no link
		err = unix.EINVAL
	}
	c.status(err)
	c.out.after(fd)
	if err == nil {
		c.out.opaque(target[:n])
	}
}

func (c *call) read() {
	fd, done, err := c.file()
	offset, count := c.args.u64(), c.args.u32()
	if err != nil {
		c.status(err)
		c.out.boolean(false)
		return
	}
	defer done()
	// The content is read to where it belongs in the reply.
	at := len(c.out.data) + 4 + 4 + 84 + 4 + 4 + 4
	buffer := make([]byte, at+int(min(count, MaxIO))+4)
	n, err := c.readAt(fd, buffer[at:len(buffer)-4], offset)
	if err != nil {
		c.status(err)
		c.out.after(fd)
		return
	}
	stat, err := statOf(fd)
	if err != nil {
		c.status(err)
		c.out.boolean(false)
		return
	}
	w := writer{data: append(buffer[:0], c.out.data...), tree: c.out.tree}
	w.u32(uint32(statusOK))
	w.boolean(true)
	w.attributes(&stat)
	w.u32(uint32(n))
	w.boolean(offset+uint64(n) >= stat.Size)
	w.u32(uint32(n))
	w.data = w.data[:at+n]
	w.pad()
	c.out = w
}

func (c *call) readAt(fd int, buffer []byte, offset uint64) (int, error) {
	file, err := c.openData(fd, unix.O_RDONLY)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(file) }()
	if int64(offset) < 0 {
		return 0, unix.EINVAL
	}
	read := 0
	for read < len(buffer) {
		n, err := unix.Pread(file, buffer[read:], int64(offset)+int64(read))
		if err != nil || n == 0 {
			return read, err
		}
		read += n
	}
	return read, nil
}

func (c *call) readdir()     { c.entries(false) }
func (c *call) readdirplus() { c.entries(true) }

// Sizes of what is in a reply beside names, in bytes: see RFC 1813, sections 3.3.16 and 3.3.17.
const (
	listBytes  = 4 + 4 + 84 + 8 + 4 + 4
	entryBytes = 4 + 8 + 4 + 8
	plusBytes  = 4 + 84 + 4 + 4 + handleBytes
)

// entries answers READDIR and READDIRPLUS. A position is the file system's own, so that any server goes on where another stopped.
func (c *call) entries(plus bool) {
	dir, done, err := c.file()
	from := c.args.u64()
	c.args.fixed(8) // a verifier, which positions do not need
	if plus {
		c.args.u32() // the most bytes of names
	}
	most := int(min(c.args.u32(), MaxIO))
	if err != nil {
		c.status(err)
		c.out.boolean(false)
		return
	}
	defer done()
	at, err := statOf(dir)
	if err != nil {
		c.status(err)
		c.out.boolean(false)
		return
	}
	list, left, some := writer{tree: c.out.tree}, most-listBytes, false
	full := false
	err = c.files.eachEntry(dir, from, func(e entry) bool {
		size := entryBytes + (len(e.name)+3)&^3
		if plus {
			size += plusBytes
		}
		if full = size > left; full {
			return false
		}
		left, some = left-size, true
		list.boolean(true)
		list.u64(e.ino)
		list.opaque([]byte(e.name))
		list.u64(e.next)
		if plus {
			c.describe(&list, dir, at.Ino, e.name)
		}
		return true
	})
	if err == nil && full && !some {
		err = statusTooSmall
	}
	c.status(err)
	c.out.after(dir)
	if err != nil {
		return
	}
	c.out.data = append(c.out.data, make([]byte, 8)...)
	c.out.data = append(c.out.data, list.data...)
	c.out.boolean(false)
	c.out.boolean(!full)
}

// describe writes the attributes and the handle of an entry, where the caller may see them.
func (c *call) describe(list *writer, dir int, parent uint64, name string) {
	var stat unix.Statx_t
	err := unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW, statMask, &stat)
	if err != nil || deviceOf(&stat) != c.tree.device || name == ".." {
		list.boolean(false)
		list.boolean(false)
		return
	}
	h := c.tree.handleOf(&stat)
	if name != "." {
		c.files.remember(h, parent, name)
	}
	list.boolean(true)
	list.attributes(&stat)
	list.boolean(true)
	list.opaque(h.bytes())
}

func (c *call) fsstat() {
	fd, done, err := c.file()
	var fs unix.Statfs_t
	if err == nil {
		defer done()
		err = unix.Fstatfs(c.tree.fd, &fs)
	}
	c.status(err)
	if err != nil {
		c.out.boolean(false)
		return
	}
	c.out.after(fd)
	size := uint64(fs.Frsize)
	for _, v := range []uint64{fs.Blocks * size, fs.Bfree * size, fs.Bavail * size, fs.Files, fs.Ffree, fs.Ffree} {
		c.out.u64(v)
	}
	c.out.u32(0) // it changes at any time
}

// Properties in FSINFO: hard links, symbolic links, PATHCONF is the same everywhere, times can be set.
const properties = 0x1b

func (c *call) fsinfo() {
	fd, done, err := c.file()
	c.status(err)
	if err != nil {
		c.out.boolean(false)
		return
	}
	defer done()
	c.out.after(fd)
	for _, v := range []uint32{MaxIO, MaxIO, 4096, MaxIO, MaxIO, 4096, 64 << 10} {
		c.out.u32(v)
	}
	c.out.u64(1<<63 - 1)
	c.out.u32(0) // times have
	c.out.u32(1) // nanoseconds
	c.out.u32(properties)
}

func (c *call) pathconf() {
	fd, done, err := c.file()
	c.status(err)
	if err != nil {
		c.out.boolean(false)
		return
	}
	defer done()
	c.out.after(fd)
	c.out.u32(32000) // links
	c.out.u32(maxName)
	for _, v := range []bool{true, true, false, true} { // no truncation of names, chown is restricted, case matters and is kept
		c.out.boolean(v)
	}
}

// times32 are the two halves of a verifier as times, in seconds.
func times32(verifier []byte) [2]unix.Timespec {
	return [2]unix.Timespec{{Sec: int64(binary.BigEndian.Uint32(verifier))}, {Sec: int64(binary.BigEndian.Uint32(verifier[4:]))}}
}
