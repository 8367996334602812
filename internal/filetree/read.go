package filetree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Root is a directory that is read as the root of a file system of its own, such as the mount of an image: a link in it, absolute or
// with "..", leads to what it means there and never to a file of this machine (openat2(2), RESOLVE_IN_ROOT).
type Root struct {
	path string
	dir  *os.File
}

// OpenRoot opens a directory as a root.
func OpenRoot(path string) (*Root, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &Root{path: path, dir: dir}, nil
}

// Close closes the root.
func (r *Root) Close() error { return r.dir.Close() }

// ReadFile reads a regular file of at most so many bytes. Links are followed within the root.
func (r *Root) ReadFile(name string, most int64) ([]byte, error) {
	f, err := r.open(name, unix.O_RDONLY|unix.O_NONBLOCK, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		return nil, fmt.Errorf("%s has more than %d bytes", name, most)
	}
	return data, err
}

// ReadDir lists a directory of at most so many entries, by name. No part of its path may be a link: a caller that goes on to name the
// directory's entries by their paths would name something else.
func (r *Root) ReadDir(name string, most int) ([]fs.DirEntry, error) {
	f, err := r.open(name, unix.O_RDONLY|unix.O_DIRECTORY, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_SYMLINKS)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("%s is a link, or no directory; it must be a directory", name)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(most + 1)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err == nil && len(entries) > most {
		return nil, fmt.Errorf("%s has more than %d entries", name, most)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

func (r *Root) open(name string, flags, resolve uint64) (*os.File, error) {
	fd, err := unix.Openat2(int(r.dir.Fd()), name, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: resolve})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), filepath.Join(r.path, name)), nil
}
