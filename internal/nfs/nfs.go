// Package nfs serves directories over NFS version 3 (RFC 1813): the home of a cluster and its volumes, to the kernel of a virtual machine.
//
// It acts as the user that each call names (AUTH_SYS), by the thread's file system IDs, and the kernel decides what that user may do. So it must
// run where user IDs are the cluster's own (package homeserver), and must never be handed a directory by a path that leads out of it. Everything that
// it is sent is hostile: what it keeps is bounded, and a file is reached only by what the root of its tree leads to. Handles outlive the server; see
// files.go. It knows no connections and no members. Start with New and Serve.
package nfs

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Config is what a Server is made of.
type Config struct {
	// Trees are the directories that are served.
	Trees []Tree
	// Descriptors is a directory in which this process's file descriptors appear by their numbers: /proc/self/fd, or where that is mounted.
	Descriptors string
	// Workers is how many calls of one tree are served at a time; 0: DefaultWorkers, or fewer where there are many trees (MostWorkers).
	Workers int
	// Patience is how long a call waits for a worker of a tree that finishes nothing; 0: DefaultPatience.
	Patience time.Duration
	// MostFiles bounds the files whose places are remembered, and MostOpen those that are kept open besides, of all trees; 0: 100,000 and 4,096.
	MostFiles, MostOpen int
}

// Tree is a directory that is served.
type Tree struct {
	// Export is the path by which a client mounts the tree. Handles name the tree by it, whichever server made them.
	Export string
	// Root is the directory. Its parent must not be reachable by it: an open tree (open_tree(2)), or the root of a mount. Where that is
	// mounted read-only, the kernel refuses what a client writes.
	Root *os.File
}

// DefaultWorkers serve a few processes of a guest at a time, and keep no more than that many calls in memory. MostWorkers are those of all trees: with a
// call and a reply of MaxRecord bytes each they hold 14 MiB. So three trees have eight each, and nine trees have three.
const (
	DefaultWorkers = 8
	MostWorkers    = 27
)

// MaxRecord is the longest call that is accepted and the longest reply, in bytes: MaxIO bytes of a file and what goes with them.
const MaxRecord = MaxIO + 4096

// MaxIO is how much of a file one call reads or writes, in bytes.
const MaxIO = 256 << 10

// Server serves directories. It is safe for concurrent use.
type Server struct {
	cfg     Config
	files   *files
	replies *replies
	// verifier changes with each server, by which clients see that unsynced writes may be lost (RFC 1813, section 3.3.7).
	verifier [8]byte
	// lanes are those of the trees, and none is that of calls which touch no tree.
	lanes map[*tree]*lane
	none  *lane
}

// New makes a server.
func New(cfg Config) (*Server, error) {
	if cfg.Workers == 0 {
		cfg.Workers = max(1, min(DefaultWorkers, MostWorkers/max(1, len(cfg.Trees))))
	}
	if cfg.Patience == 0 {
		cfg.Patience = DefaultPatience
	}
	if cfg.MostFiles == 0 {
		cfg.MostFiles = 100_000
	}
	if cfg.MostOpen == 0 {
		cfg.MostOpen = 4096
	}
	files, err := newFiles(cfg)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, files: files, replies: newReplies(), lanes: map[*tree]*lane{}, none: newLane(cfg.Patience)}
	for _, t := range files.trees {
		s.lanes[t] = newLane(cfg.Patience)
	}
	if _, err := rand.Read(s.verifier[:]); err != nil {
		return nil, err
	}
	return s, nil
}

// Run serves calls until ctx ends.
func (s *Server) Run(ctx context.Context) {
	go s.none.work(ctx)
	for _, l := range s.lanes {
		for range s.cfg.Workers {
			go l.work(ctx)
		}
	}
	<-ctx.Done()
}

// Serve takes one call, without its record mark, and has it served; it waits until a worker of its tree has taken it, but not for a tree that does not
// answer (lane). reply gets the answer; it is nil where the call is no call at all, which is not answered. A call that is sent again while it is under
// way is answered by the latest reply alone.
func (s *Server) Serve(ctx context.Context, data []byte, reply func([]byte)) error {
	c, ok := s.parse(data)
	if !ok {
		reply(nil)
		return nil
	}
	l := s.none
	if t := c.about(); t != nil {
		l = s.lanes[t]
	}
	return l.take(ctx, &job{data: data, call: c, reply: reply})
}

// status is nfsstat3 (RFC 1813, section 2.6).
type status uint32

const (
	statusOK          status = 0
	statusPerm        status = 1
	statusNoEntry     status = 2
	statusIO          status = 5
	statusAccess      status = 13
	statusExists      status = 17
	statusOtherDevice status = 18
	statusNoDirectory status = 20
	statusIsDirectory status = 21
	statusInvalid     status = 22
	statusNameTooLong status = 63
	statusStale       status = 70
	statusBadHandle   status = 10001
	statusNotSync     status = 10002
	statusNotSupp     status = 10004
	statusTooSmall    status = 10005
	statusBadType     status = 10007
	statusLater       status = 10008 // JUKEBOX: the client asks again after a while
)

// statuses are the errors of Linux that have another number in the protocol, or none.
var statuses = map[unix.Errno]status{
	unix.ENAMETOOLONG: statusNameTooLong, unix.ENOTEMPTY: 66, unix.EDQUOT: 69, unix.ESTALE: statusStale, unix.EOPNOTSUPP: statusNotSupp, unix.ELOOP: statusInvalid,
	unix.ETXTBSY: statusAccess, unix.EOVERFLOW: statusInvalid, unix.ENOMEM: statusLater, unix.EMFILE: statusLater, unix.ENFILE: statusLater,
	unix.EAGAIN: statusLater, unix.EINTR: statusLater,
}

// same are the errors that have Linux's number in the protocol.
var same = []unix.Errno{
	unix.EPERM, unix.ENOENT, unix.EIO, unix.ENXIO, unix.EACCES, unix.EEXIST, unix.EXDEV, unix.ENODEV, unix.ENOTDIR, unix.EISDIR, unix.EINVAL,
	unix.EFBIG, unix.ENOSPC, unix.EROFS, unix.EMLINK,
}

// statusOf is what a client is told of an error.
func statusOf(err error) status {
	if err == nil {
		return statusOK
	}
	if s := status(0); errors.As(err, &s) {
		return s
	}
	errno := unix.Errno(0)
	if !errors.As(err, &errno) {
		return statusIO
	}
	if s, ok := statuses[errno]; ok {
		return s
	}
	for _, e := range same {
		if e == errno {
			return status(errno)
		}
	}
	return statusIO
}

func (s status) Error() string { return fmt.Sprintf("NFS status %d", uint32(s)) }

// handle names a file for as long as it exists, whichever server it is shown to: its tree, its inode number there, and when it was made, since numbers
// are given again. born is 0 where the file system does not know.
type handle struct {
	spot
	born uint64
}

// spot is where a file is, by numbers: which in which tree.
type spot struct{ tree, ino uint64 }

// Marks begin handles: those of files in the home, which say no tree, and those of files in other trees.
const (
	homeMark = 0x4e4d6831 // "NMh1"
	treeMark = 0x4e4d6832 // "NMh2"
)

const (
	homeHandleBytes = 4 + 8 + 8
	handleBytes     = 4 + 8 + 8 + 8
	maxHandle       = 64 // the protocol's
)

func (h handle) bytes() []byte {
	b := make([]byte, 0, handleBytes)
	if h.tree == homeTree {
		b = binary.BigEndian.AppendUint32(b, homeMark)
	} else {
		b = binary.BigEndian.AppendUint32(b, treeMark)
		b = binary.BigEndian.AppendUint64(b, h.tree)
	}
	b = binary.BigEndian.AppendUint64(b, h.ino)
	return binary.BigEndian.AppendUint64(b, h.born)
}

// parseHandle reads a handle of any tree. A file has one handle.
func parseHandle(b []byte) (h handle, ok bool) {
	switch {
	case len(b) == homeHandleBytes && binary.BigEndian.Uint32(b) == homeMark:
		h.tree, b = homeTree, b[4:]
	case len(b) == handleBytes && binary.BigEndian.Uint32(b) == treeMark:
		h.tree, b = binary.BigEndian.Uint64(b[4:]), b[12:]
		if h.tree == homeTree {
			return handle{}, false
		}
	default:
		return handle{}, false
	}
	h.ino, h.born = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	return h, true
}

// is reports whether both are of one file.
func (h handle) is(other handle) bool {
	return h.spot == other.spot && (h.born == other.born || h.born == 0 || other.born == 0)
}
