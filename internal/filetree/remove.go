// Package filetree removes and reads directory trees whose content a tenant chose.
//
// Such a tree may be of any depth and width, may hold links to anywhere, and may change while it is worked on. So no path of more
// than one name is ever followed into it: everything is done relative to an open directory. The package must never leave the
// tree by a link, a mount or "..", and what it holds open or in memory must not grow with the tree.
// Start with Remove; read.go is for the trees of images.
package filetree

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// mostHeld is how many directories are held open at once. A directory deeper than that is moved up before it is emptied.
	mostHeld = 16
	// namesPerRead is how many names of a directory are in memory at once, for each directory that is held.
	namesPerRead = 256
)

// Remove removes a path and everything below it; a path that does not exist is no error. It follows no link and enters no mount
// below the path. The directory that the path is in must be trusted, everything below may change meanwhile.
//
// When ctx ends, Remove returns its cause. What was removed until then stays removed, and the next call goes on from there.
func Remove(ctx context.Context, path string) error {
	path = filepath.Clean(path)
	name := filepath.Base(path)
	if name == "/" || name == "." || name == ".." {
		return fmt.Errorf("remove %s: it names no entry of a directory", path)
	}
	parent, err := os.Open(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	defer parent.Close()
	r := remover{ctx: ctx}
	err = r.remove(parent, name)
	switch {
	case ctx.Err() != nil && err != nil:
		return fmt.Errorf("remove %s: %w after %d entries; the next attempt continues from there", path, context.Cause(ctx), r.steps)
	case err != nil:
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// remover is one removal under way.
type remover struct {
	ctx context.Context
	// held are the directories on the way to the one that is being emptied, the tree's top first.
	held []*os.File
	// steps counts entries that are gone from where they were: a look at a directory that changes nothing ends its removal.
	steps int
}

// remove removes an entry of a directory, which is emptied before if need be.
func (r *remover) remove(dir *os.File, name string) error {
	for {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		before := r.steps
		err := unlink(dir, name)
		if err == nil || errors.Is(err, unix.ENOENT) {
			r.steps++ // also one that somebody else removed
			return nil
		}
		if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%q: %w", name, err)
		}
		if len(r.held) == mostHeld {
			return r.raise(dir, name)
		}
		if inner := r.enter(dir, name); inner != nil {
			return inner
		}
		if r.steps == before {
			return fmt.Errorf("%q: %w", name, err) // it shows nothing, and holds something all the same
		}
	}
}

// enter empties a directory.
func (r *remover) enter(dir *os.File, name string) error {
	// No mount: not even of the same file system, which comparing devices would not show (openat2(2)).
	fd, err := unix.Openat2(int(dir.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EAGAIN):
		r.steps++ // it was exchanged meanwhile
		return nil
	case errors.Is(err, unix.EXDEV):
		return fmt.Errorf("%q: another file system is mounted there", name)
	case err != nil:
		return fmt.Errorf("%q: %w", name, err)
	}
	child := os.NewFile(uintptr(fd), name)
	r.held = append(r.held, child)
	err = r.empty(child)
	r.held = r.held[:len(r.held)-1]
	return errors.Join(err, child.Close())
}

// empty removes the entries of a directory. An entry that can't be removed keeps no other one from being removed.
func (r *remover) empty(dir *os.File) error {
	for {
		before := r.steps
		failed, err := r.pass(dir)
		if err != nil {
			return err
		}
		// Entries may have been passed over, as names went away and came while they were listed (readdir(3)).
		if r.steps == before {
			return failed
		}
	}
}

// pass goes once through the entries of a directory. It returns what kept the first of those that stay, and why it ended early.
func (r *remover) pass(dir *os.File) (failed, err error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	for {
		names, err := dir.Readdirnames(namesPerRead)
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) { // ENOENT: the directory itself was removed meanwhile
			return failed, nil
		}
		if err != nil {
			return failed, err
		}
		for _, name := range names {
			err := r.remove(dir, name)
			if r.ctx.Err() != nil {
				return failed, r.ctx.Err()
			}
			if failed == nil {
				failed = err
			}
		}
	}
}

// raise moves a directory that lies too deep up to the top of the tree, where a later pass finds it. It is moved less far where the
// kernel refuses that: a tenant may make subvolumes of some file systems, which nothing can be moved out of.
func (r *remover) raise(dir *os.File, name string) (err error) {
	for _, above := range r.held[:mostHeld-1] {
		err = unix.Renameat(int(dir.Fd()), name, int(above.Fd()), ".removing-"+rand.Text())
		if !errors.Is(err, unix.EXDEV) {
			break
		}
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%q: moving it up, as it lies too deep: %w", name, err)
	}
	r.steps++
	return nil
}

// unlink removes a file, a link or an empty directory.
func unlink(dir *os.File, name string) error {
	err := unix.Unlinkat(int(dir.Fd()), name, 0)
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) { // POSIX has EPERM for directories
		return err
	}
	if dirErr := unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR); !errors.Is(dirErr, unix.ENOTDIR) {
		return dirErr
	}
	return err
}
