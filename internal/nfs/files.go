package nfs

import (
	"container/list"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// A handle holds an inode number, and Linux opens no file by that without a privilege over all of the host. So a server remembers where it has seen
// each file: in which directory, by which name. It keeps the most recently used ones open (O_PATH), which follow renames by anybody. A server that
// was just started remembers nothing. It looks through the tree once for what it is asked, see search.go.

// files are those that this server has seen, in all trees. It is safe for concurrent use.
type files struct {
	cfg   Config
	trees map[uint64]*tree

	// mu is never held while the kernel is asked about a file, which may wait for one tree.
	mu   sync.Mutex
	seen map[spot]*file
	// byUse are those without a descriptor, of all trees, the latest first.
	byUse *list.List
}

// file is one that was seen.
type file struct {
	handle
	parent uint64 // in the same tree
	name   string
	opened *opened // nil: not open
	// place is its element of byUse, or of its tree's open. The root of a tree has none.
	place *list.Element
}

// opened is a descriptor (O_PATH) that is closed once nobody uses it.
type opened struct {
	tree  *tree
	fd    int
	users int
}

func newFiles(cfg Config) (*files, error) {
	f := &files{cfg: cfg, trees: map[uint64]*tree{}, seen: map[spot]*file{}, byUse: list.New()}
	for _, served := range cfg.Trees {
		t, err := newTree(served)
		if err == nil && f.trees[t.number] != nil {
			err = errors.New("it is served already, or has the number of another one")
		}
		if err != nil {
			return nil, fmt.Errorf("serving %s as %s: %w", served.Root.Name(), served.Export, err)
		}
		t.mostOpen = max(1, cfg.MostOpen/len(cfg.Trees))
		f.trees[t.number] = t
		f.seen[t.root.spot] = &file{handle: t.root, opened: &opened{tree: t, fd: t.fd, users: 1}}
	}
	return f, nil
}

// statMask is what is asked of files.
const statMask = unix.STATX_BASIC_STATS | unix.STATX_BTIME

func statOf(fd int) (stat unix.Statx_t, err error) {
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, statMask, &stat)
	return stat, err
}

// handleOf returns the handle of a file of the tree.
func (t *tree) handleOf(stat *unix.Statx_t) handle {
	h := handle{spot: spot{t.number, stat.Ino}}
	if stat.Mask&unix.STATX_BTIME != 0 {
		h.born = uint64(stat.Btime.Sec)*1e9 + uint64(stat.Btime.Nsec)
	}
	return h
}

func deviceOf(stat *unix.Statx_t) uint64 { return unix.Mkdev(stat.Dev_major, stat.Dev_minor) }

// path is a path to what a descriptor has open, whatever that is called and wherever it is.
func (f *files) path(fd int) string { return filepath.Join(f.cfg.Descriptors, strconv.Itoa(fd)) }

// get opens the file of a handle; the caller calls done. A file that is gone is statusStale, and so is one of a tree that is not served. t is the thread, which may have to be the server's own for
// a moment: a client keeps handles of files that its users could not find by name any more.
func (f *files) get(t *thread, h handle) (fd int, done func(), err error) {
	if f.trees[h.tree] == nil {
		return 0, nil, statusStale
	}
	if o := f.pin(h); o != nil {
		return f.alive(h, o)
	}
	caller := t.now
	if err := t.own(); err != nil {
		return 0, nil, err
	}
	o, err := f.find(h)
	if err := t.become(caller); err != nil {
		return 0, nil, err
	}
	if err != nil {
		return 0, nil, err
	}
	return f.alive(h, o)
}

// alive makes sure that an open file still has a name; it lets go of one that has none.
func (f *files) alive(h handle, o *opened) (int, func(), error) {
	stat, err := statOf(o.fd)
	switch {
	case err != nil:
		f.unpin(o)
		return 0, nil, err
	case stat.Nlink == 0:
		f.unpin(o)
		f.forget(h.spot)
		return 0, nil, statusStale
	case !f.trees[h.tree].handleOf(&stat).is(h):
		f.unpin(o)
		return 0, nil, statusStale
	}
	return o.fd, func() { f.unpin(o) }, nil
}

// pin returns the open file of a handle, nil where it is not open.
func (f *files) pin(h handle) *opened {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.seen[h.spot]
	if n == nil || n.opened == nil {
		return nil
	}
	f.used(n)
	n.opened.users++
	return n.opened
}

func (f *files) unpin(o *opened) {
	f.mu.Lock()
	f.release(o)
	f.mu.Unlock()
	f.tidy(o.tree)
}

// release lets go of a descriptor. Whoever calls it calls tidy once mu is free.
func (f *files) release(o *opened) {
	if o.users--; o.users == 0 {
		o.tree.closing = append(o.tree.closing, o.fd)
	}
}

// tidy closes what nobody uses of a tree. It may wait for the tree, as the kernel may give the last use of a file back to the tree's node.
func (f *files) tidy(t *tree) {
	f.mu.Lock()
	closing := t.closing
	t.closing = nil
	f.mu.Unlock()
	for _, fd := range closing {
		_ = unix.Close(fd)
	}
}

// used moves a file to the front.
func (f *files) used(n *file) {
	switch {
	case n.place == nil:
	case n.opened != nil:
		n.opened.tree.open.MoveToFront(n.place)
	default:
		f.byUse.MoveToFront(n.place)
	}
}

// deepest bounds how many directories lead to a file: what is remembered of renamed ones could lead in a circle.
const deepest = 1024

// find opens a file where it was seen last, or looks for it.
func (f *files) find(h handle) (*opened, error) {
	if o, err := f.openSeen(h, deepest); err == nil {
		return o, nil
	}
	if err := f.look(h); err != nil {
		return nil, err
	}
	return f.openSeen(h, deepest)
}

// openSeen opens a file by the directory that it was seen in, which is opened in the same way.
func (f *files) openSeen(h handle, depth int) (*opened, error) {
	if o := f.pin(h); o != nil {
		return o, nil
	}
	f.mu.Lock()
	n := f.seen[h.spot]
	if n == nil || depth == 0 || !n.is(h) {
		f.mu.Unlock()
		return nil, statusStale
	}
	parent, name := n.parent, n.name
	above := f.seen[spot{h.tree, parent}]
	f.mu.Unlock()
	if above == nil {
		return nil, statusStale
	}
	dir, err := f.openSeen(above.handle, depth-1)
	if err != nil {
		return nil, err
	}
	defer f.unpin(dir)
	t := f.trees[h.tree]
	fd, stat, err := t.openAt(dir.fd, name)
	if err != nil {
		return nil, err
	}
	if !t.handleOf(&stat).is(h) {
		_ = unix.Close(fd)
		return nil, statusStale
	}
	return f.keep(t.handleOf(&stat), parent, name, fd), nil
}

// openAt opens a name in a directory of the tree, whatever it is, and never what a link leads to.
func (t *tree) openAt(dir int, name string) (fd int, stat unix.Statx_t, err error) {
	fd, err = unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, stat, err
	}
	if stat, err = statOf(fd); err == nil && deviceOf(&stat) != t.device {
		err = fmt.Errorf("%w: another file system", statusAccess)
	}
	if err != nil {
		_ = unix.Close(fd)
		return 0, stat, err
	}
	return fd, stat, nil
}

// keep remembers a file with its descriptor, which it takes, and returns it for use. Of two descriptors of one file the first stays.
func (f *files) keep(h handle, parent uint64, name string, fd int) *opened {
	t := f.trees[h.tree]
	defer f.tidy(t)
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.note(h, parent, name)
	if n.opened != nil {
		t.closing = append(t.closing, fd)
		n.opened.users++
		return n.opened
	}
	f.byUse.Remove(n.place)
	n.opened = &opened{tree: t, fd: fd, users: 2} // the list's and the caller's
	n.place = t.open.PushFront(n)
	for t.open.Len() > t.mostOpen {
		f.letGo(t.open.Back().Value.(*file))
	}
	return n.opened
}

// remember notes where a file is.
func (f *files) remember(h handle, parent uint64, name string) {
	defer f.tidy(f.trees[h.tree])
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note(h, parent, name)
}

func (f *files) note(h handle, parent uint64, name string) *file {
	t := f.trees[h.tree]
	t.search.found(h)
	root := h.spot == t.root.spot
	n := f.seen[h.spot]
	if n != nil && n.handle != h && !root { // the number was given again
		f.drop(n)
		n = nil
	}
	if n == nil {
		n = &file{handle: h}
		f.seen[h.spot] = n
		f.know(n)
	}
	if !root {
		n.parent, n.name = parent, name
	}
	f.used(n)
	return n
}

// know has a file among those without a descriptor. Those used least are forgotten, of whichever tree.
func (f *files) know(n *file) {
	n.place = f.byUse.PushFront(n)
	for f.byUse.Len() > f.cfg.MostFiles {
		f.drop(f.byUse.Back().Value.(*file))
	}
}

// forget drops what is known of a file.
func (f *files) forget(at spot) {
	defer f.tidy(f.trees[at.tree])
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.seen[at]; n != nil && n.place != nil {
		f.drop(n)
	}
}

func (f *files) drop(n *file) {
	if n.opened != nil {
		n.opened.tree.open.Remove(n.place)
		f.release(n.opened)
	} else {
		f.byUse.Remove(n.place)
	}
	n.opened, n.place = nil, nil
	delete(f.seen, n.spot)
}

// letGo lets go of a file's descriptor. Where it is stays known.
func (f *files) letGo(n *file) {
	n.opened.tree.open.Remove(n.place)
	f.release(n.opened)
	n.opened = nil
	f.know(n)
}

// maxName and maxPath are Linux's (limits.h).
const (
	maxName = 255
	maxPath = 4096
)

// checkName refuses what is no name of something in a directory.
func checkName(name []byte) error {
	switch {
	case len(name) == 0 || string(name) == "." || string(name) == "..":
		return statusInvalid
	case len(name) > maxName:
		return statusNameTooLong
	}
	for _, b := range name {
		if b == '/' || b == 0 {
			return statusInvalid
		}
	}
	return nil
}

// errIsAccess reports an error for lack of a permission.
func errIsAccess(err error) bool { return errors.Is(err, unix.EACCES) }
