package nfs

import (
	"container/list"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"path"

	"golang.org/x/sys/unix"
)

// Home is the export of a cluster's home.
const Home = "/"

// homeTree is the number of the tree that is exported as Home.
const homeTree = 1

// tree is one that is served.
type tree struct {
	// number is the same on every node, so that a client that was moved sees the same file systems. It is also the number of the file system in
	// attributes: a client takes two trees with one number for one.
	number uint64
	root   handle
	// device is the file system's: there is one, as numbers of files mean nothing in another.
	device uint64
	fd     int
	search search

	// What follows is guarded by files.mu.

	// open are the files of the tree that have a descriptor, the latest first, and mostOpen how many may have one.
	open     *list.List
	mostOpen int
	// closing are descriptors that nobody uses. Only the tree's own threads close them (files.tidy): that may wait for the tree.
	closing []int
}

// treeNumber is what an export is called in handles.
func treeNumber(export string) uint64 {
	if export == Home {
		return homeTree
	}
	sum := sha256.Sum256([]byte(export))
	return binary.BigEndian.Uint64(sum[:])
}

func newTree(served Tree) (*tree, error) {
	if !path.IsAbs(served.Export) || path.Clean(served.Export) != served.Export {
		return nil, errors.New("an export is a clean absolute path")
	}
	t := &tree{number: treeNumber(served.Export), fd: int(served.Root.Fd()), open: list.New()}
	t.search.init()
	// Of what the kernel remembers: the tree may be one that does not answer, and what is asked of it never changes.
	var stat unix.Statx_t
	if err := unix.Statx(t.fd, "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC, statMask, &stat); err != nil {
		return nil, err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, unix.ENOTDIR
	}
	t.root, t.device = t.handleOf(&stat), deviceOf(&stat)
	return t, nil
}
