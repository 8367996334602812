package nfs

import (
	"errors"

	"golang.org/x/sys/unix"
)

// setattr sets attributes, if the file is still the one that the caller has seen where it says which that is.
func (c *call) setattr() {
	fd, done, err := c.file()
	asked := c.args.settable()
	guarded := c.args.boolean()
	var seconds, nanoseconds uint32
	if guarded {
		seconds, nanoseconds = c.args.u32(), c.args.u32()
	}
	if err != nil || c.args.short {
		c.status(err)
		c.out.noWCC()
		return
	}
	defer done()
	w := changing(fd)
	if guarded && w.known && (uint32(w.before.Ctime.Sec) != seconds || w.before.Ctime.Nsec != nanoseconds) {
		err = statusNotSync
	} else {
		err = c.set(fd, &asked)
	}
	c.status(err)
	c.out.wcc(w)
}

// How stable a write is (RFC 1813, section 3.3.7).
const (
	unstable, dataSync, fileSync = 0, 1, 2
)

func (c *call) write() {
	fd, done, err := c.file()
	offset, count, stable := c.args.u64(), c.args.u32(), c.args.u32()
	data := c.args.opaque(MaxIO)
	if err != nil || c.args.short {
		c.status(err)
		c.out.noWCC()
		return
	}
	defer done()
	if int(count) < len(data) {
		data = data[:count]
	}
	w := changing(fd)
	n, err := c.writeAt(fd, data, offset, stable)
	c.status(err)
	c.out.wcc(w)
	if err != nil {
		return
	}
	c.out.u32(uint32(n))
	c.out.u32(min(stable, fileSync))
	c.out.data = append(c.out.data, c.verifier[:]...)
}

func (c *call) writeAt(fd int, data []byte, offset uint64, stable uint32) (int, error) {
	file, err := c.openData(fd, unix.O_WRONLY)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(file) }()
	if int64(offset) < 0 || int64(offset)+int64(len(data)) < 0 {
		return 0, unix.EFBIG
	}
	n := 0
	for n < len(data) {
		k, err := unix.Pwrite(file, data[n:], int64(offset)+int64(n))
		if err != nil && n == 0 {
			return 0, err
		}
		if err != nil || k == 0 {
			break // the client sends the rest again, and gets the error then
		}
		n += k
	}
	switch stable {
	case unstable:
		return n, nil
	case dataSync:
		return n, unix.Fdatasync(file)
	}
	return n, unix.Fsync(file)
}

func (c *call) commit() {
	fd, done, err := c.file()
	c.args.u64()
	c.args.u32()
	if err != nil {
		c.status(err)
		c.out.noWCC()
		return
	}
	defer done()
	w := changing(fd)
	err = c.sync(fd)
	c.status(err)
	c.out.wcc(w)
	if err == nil {
		c.out.data = append(c.out.data, c.verifier[:]...)
	}
}

// sync writes a file to its disk. Whoever has written to it may ask for that, so it is opened as the server.
func (c *call) sync(fd int) error {
	stat, err := statOf(fd)
	if err != nil {
		return err
	}
	if kind := stat.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return statusInvalid
	}
	if err := c.thread.own(); err != nil {
		return err
	}
	defer func() { _ = c.thread.become(c.who) }()
	file, err := unix.Open(c.files.path(fd), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(file) }()
	return unix.Fsync(file)
}

// place is a name in an open directory.
type place struct {
	dir  int
	name string
	done func()
}

// place reads where something is to be made or removed. The arguments behind it are read by the caller, whatever err is.
func (c *call) place() (p place, err error) {
	dir, done, err := c.file()
	name, nameErr := c.name()
	if err != nil {
		return p, err
	}
	if nameErr != nil {
		done()
		return p, nameErr
	}
	return place{dir, string(name), done}, nil
}

// made answers a call that makes something: make does so, with its mode, and then it gets its other attributes. The mode is not set twice: what the
// kernel adds to it, as in directories with the set-group-ID bit, stays.
func (c *call) made(p place, asked *settable, make func() error) {
	defer p.done()
	if c.args.short {
		c.refuse(statusInvalid)
		return
	}
	w := changing(p.dir)
	err := make()
	var fd int
	var h handle
	if err == nil {
		var done func()
		if fd, h, done, err = c.find(p.dir, []byte(p.name)); err == nil {
			defer done()
			if asked != nil {
				rest := *asked
				rest.mode = nil
				err = c.set(fd, &rest)
			}
		}
	}
	c.status(err)
	if err == nil {
		c.out.boolean(true)
		c.out.opaque(h.bytes())
		c.out.after(fd)
	}
	c.out.wcc(w)
}

// refuse answers a call that changes a directory and can't.
func (c *call) refuse(err error) {
	c.status(err)
	c.out.noWCC()
}

// How CREATE takes what is there (RFC 1813, section 3.3.8).
const unchecked, guarded, exclusive = 0, 1, 2

func (c *call) create() {
	p, err := c.place()
	how := c.args.u32()
	var asked settable
	var verifier []byte
	if how == exclusive {
		verifier = c.args.fixed(8)
	} else {
		asked = c.args.settable()
	}
	switch {
	case err != nil:
		c.refuse(err)
	case c.args.short || how > exclusive:
		p.done()
		c.refuse(statusInvalid)
	case how == exclusive:
		c.createExclusive(p, verifier)
	default:
		c.createFile(p, how, asked)
	}
}

func (c *call) createFile(p place, how uint32, asked settable) {
	err := makeFile(p, asked.createMode(0o600))
	if how == unchecked && errors.Is(err, unix.EEXIST) {
		// What is there stays as it is, but for its size.
		asked = settable{size: asked.size}
		c.made(p, &asked, func() error { return c.isRegular(p) })
		return
	}
	c.made(p, &asked, func() error { return err })
}

func (c *call) isRegular(p place) error {
	var stat unix.Statx_t
	if err := unix.Statx(p.dir, p.name, unix.AT_SYMLINK_NOFOLLOW, statMask, &stat); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return statusExists
	}
	return nil
}

// createExclusive makes a file that the same call makes once, however often it comes: what marks it is kept in its times (RFC 1813, section 3.3.8), and
// so another server knows it, too.
func (c *call) createExclusive(p place, verifier []byte) {
	times := times32(verifier)
	err := makeFile(p, 0o600)
	switch {
	case errors.Is(err, unix.EEXIST):
		c.made(p, nil, func() error {
			var stat unix.Statx_t
			if err := unix.Statx(p.dir, p.name, unix.AT_SYMLINK_NOFOLLOW, statMask, &stat); err != nil {
				return err
			}
			if stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Atime.Sec != times[0].Sec || stat.Mtime.Sec != times[1].Sec {
				return statusExists
			}
			return nil
		})
	default:
		c.made(p, &settable{times: times, anyTime: true}, func() error { return err })
	}
}

func makeFile(p place, mode uint32) error {
	fd, err := unix.Openat(p.dir, p.name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func (c *call) mkdir() {
	p, err := c.place()
	asked := c.args.settable()
	if err != nil {
		c.refuse(err)
		return
	}
	c.made(p, &asked, func() error { return unix.Mkdirat(p.dir, p.name, asked.createMode(0o700)) })
}

func (c *call) symlink() {
	p, err := c.place()
	asked := c.args.settable()
	target := c.args.opaque(maxPath)
	if err != nil {
		c.refuse(err)
		return
	}
	c.made(p, &asked, func() error { return unix.Symlinkat(string(target), p.dir, p.name) })
}

// mknod makes FIFOs and sockets. Devices are nobody's to make in a cluster.
func (c *call) mknod() {
	p, err := c.place()
	kind := c.args.u32()
	var asked settable
	if kind == typeSocket || kind == typeFIFO {
		asked = c.args.settable()
	}
	if err != nil {
		c.refuse(err)
		return
	}
	mode := map[uint32]uint32{typeSocket: unix.S_IFSOCK, typeFIFO: unix.S_IFIFO}[kind]
	if mode == 0 {
		p.done()
		c.refuse(statusBadType)
		return
	}
	c.made(p, &asked, func() error { return unix.Mknodat(p.dir, p.name, mode|asked.createMode(0o600), 0) })
}

func (c *call) remove() { c.unlink(0) }
func (c *call) rmdir()  { c.unlink(unix.AT_REMOVEDIR) }

func (c *call) unlink(flags int) {
	p, err := c.place()
	if err != nil {
		c.refuse(err)
		return
	}
	defer p.done()
	w := changing(p.dir)
	c.status(unix.Unlinkat(p.dir, p.name, flags))
	c.out.wcc(w)
}

func (c *call) rename() {
	from, fromErr := c.place()
	to, toErr := c.place()
	if fromErr == nil {
		defer from.done()
	}
	if toErr == nil {
		defer to.done()
	}
	if err := errors.Join(fromErr, toErr); err != nil {
		c.status(err)
		c.out.noWCC()
		c.out.noWCC()
		return
	}
	source, target := changing(from.dir), changing(to.dir)
	err := unix.Renameat(from.dir, from.name, to.dir, to.name)
	if err == nil { // its new place is noted
		if _, _, done, err := c.find(to.dir, []byte(to.name)); err == nil {
			done()
		}
	}
	c.status(err)
	c.out.wcc(source)
	c.out.wcc(target)
}

func (c *call) link() {
	fd, done, err := c.file()
	p, placeErr := c.place()
	if placeErr == nil {
		defer p.done()
	}
	if err == nil {
		defer done()
		err = placeErr
	}
	if err != nil {
		c.status(err)
		c.out.boolean(false)
		c.out.noWCC()
		return
	}
	w := changing(p.dir)
	err = unix.Linkat(unix.AT_FDCWD, c.files.path(fd), p.dir, p.name, unix.AT_SYMLINK_FOLLOW)
	c.status(err)
	c.out.after(fd)
	c.out.wcc(w)
}
