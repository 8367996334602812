package nfs

import (
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
	t := &tree{number: treeNumber(served.Export), fd: int(served.Root.Fd())}
	stat, err := statOf(t.fd)
	if err != nil {
		return nil, err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, unix.ENOTDIR
	}
	t.root, t.device = t.handleOf(&stat), deviceOf(&stat)
	return t, nil
}
