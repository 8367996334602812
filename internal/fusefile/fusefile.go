// Package fusefile shows one read-only file whose content a program makes as it is read, such as the image of a file system that is far away.
//
// The kernel asks for the content by FUSE (linux/fuse.h, protocol 7.31), and keeps what it got in its page cache until the file is unmounted. The package
// must never write, and knows nothing of what it shows. Start with Mount.
package fusefile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// name is what the file is called.
const name = "content"

// File is a file that is shown below a directory of its own.
type File struct {
	dir    string
	device int
	// stop is an eventfd that ends serving.
	stop   int
	size   uint64
	source io.ReaderAt
	served sync.WaitGroup
}

// askers is how many wait for the kernel's questions. Each question is answered beside the others, since its answer may take a while.
const askers = 2

// Mount shows size bytes of a source as a file below dir, which it makes. Reads that fail are errors of the file (EIO). Only root may mount.
func Mount(dir string, source io.ReaderAt, size int64) (*File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("the kernel has no FUSE: /dev/fuse: %w", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read=%d", device, maxRead)
	if err := unix.Mount("nearmetal", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_RDONLY, options); err != nil {
		return nil, errors.Join(fmt.Errorf("mounting FUSE at %s: %w", dir, err), unix.Close(device))
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH), unix.Close(device))
	}
	f := &File{dir: dir, device: device, stop: stop, size: uint64(size), source: source}
	for range askers {
		f.served.Go(f.serve)
	}
	return f, nil
}

// Path is where the file is.
func (f *File) Path() string { return filepath.Join(f.dir, name) }

// Close unmounts the file, and forgets what the kernel kept of it. Nobody may have it open.
func (f *File) Close() error {
	if err := unix.Unmount(f.dir, 0); err != nil {
		return fmt.Errorf("unmounting %s: %w", f.dir, err)
	}
	// A copy of the mount in another namespace would go on asking. Who asks when the device is closed gets an error.
	_, err := unix.Write(f.stop, binary.NativeEndian.AppendUint64(nil, 1))
	if err != nil {
		return err
	}
	f.served.Wait()
	return errors.Join(unix.Close(f.device), unix.Close(f.stop), os.Remove(f.dir))
}

// Requests and what they are answered (linux/fuse.h).
const (
	opLookup, opForget, opGetattr, opOpen, opRead, opStatfs = 1, 2, 3, 14, 15, 17
	opRelease, opFlush, opInit, opOpendir, opReaddir        = 18, 25, 26, 27, 28
	opReleasedir, opInterrupt, opBatchForget                = 29, 36, 42

	asyncRead, maxPagesFlag = 1 << 0, 1 << 22
	keepCache               = 1 << 1

	headBytes = 40
	maxRead   = 1 << 20
	pageBytes = 4096
	// forever is how many seconds the kernel may believe what it was told of the files.
	forever = 1 << 30
)

// The two inodes.
const rootNode, fileNode = 1, 2

type request struct {
	opcode       uint32
	unique, node uint64
	body         []byte
}

// serve answers the kernel until the file is unmounted, or Close ends it. It waits by poll(2) on a thread of its own: this process may open the file, which
// asks the device while the runtime's epoll is held.
func (f *File) serve() {
	buffer := make([]byte, 64<<10)
	var answering sync.WaitGroup
	defer answering.Wait()
	for {
		ready := []unix.PollFd{{Fd: int32(f.device), Events: unix.POLLIN}, {Fd: int32(f.stop), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil && !errors.Is(err, unix.EINTR) || ready[1].Revents != 0 {
			return
		}
		n, err := unix.Read(f.device, buffer)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOENT): // ENOENT: who asked has gone
			continue
		case err != nil || n < headBytes:
			return // ENODEV: it was unmounted
		}
		b := buffer[:n]
		r := request{
			opcode: binary.NativeEndian.Uint32(b[4:]), unique: binary.NativeEndian.Uint64(b[8:]), node: binary.NativeEndian.Uint64(b[16:]), body: slices.Clone(b[headBytes:]),
		}
		switch r.opcode {
		case opForget, opBatchForget, opInterrupt: // which have no answer
		case opRead:
			answering.Go(func() { f.answer(r) })
		default:
			f.answer(r)
		}
	}
}

// words are fields of 32 and 64 bits.
type words []byte

func (w words) u32(all ...uint32) words {
	for _, v := range all {
		w = binary.NativeEndian.AppendUint32(w, v)
	}
	return w
}

func (w words) u64(all ...uint64) words {
	for _, v := range all {
		w = binary.NativeEndian.AppendUint64(w, v)
	}
	return w
}

// attributes are struct fuse_attr.
func (f *File) attributes(node uint64) words {
	mode, size := uint32(unix.S_IFDIR|0o555), uint64(0)
	if node == fileNode {
		mode, size = unix.S_IFREG|0o444, f.size
	}
	return words{}.u64(node, size, (size+511)/512, 0, 0, 0).u32(0, 0, 0, mode, 1, 0, 0, 0, pageBytes, 0)
}

func (f *File) answer(r request) {
	failed, out := unix.Errno(0), words{}
	switch r.opcode {
	case opInit:
		// Version, what is read ahead at most, flags, requests at once, bytes written at once, granularity of times, pages of a read.
		out = out.u32(7, 31, maxRead, asyncRead|maxPagesFlag, 64<<16|64, pageBytes, 1, maxRead/pageBytes).u32(make([]uint32, 8)...)
	case opLookup:
		if string(r.body) != name+"\x00" {
			failed = unix.ENOENT
			break
		}
		out = append(out.u64(fileNode, 1, forever, forever).u32(0, 0), f.attributes(fileNode)...)
	case opGetattr:
		out = append(out.u64(forever).u32(0, 0), f.attributes(r.node)...)
	case opOpen, opOpendir:
		out = out.u64(0).u32(keepCache, 0)
	case opRead:
		out, failed = f.read(r)
	case opReaddir:
		if len(r.body) >= 16 && binary.NativeEndian.Uint64(r.body[8:]) == 0 {
			entry := append(words{}.u64(fileNode, 1).u32(uint32(len(name)), unix.DT_REG), name...)
			out = append(entry, make([]byte, -len(entry)&7)...)
		}
	case opStatfs:
		out = out.u64(make([]uint64, 10)...)
	case opRelease, opReleasedir, opFlush:
	default:
		failed = unix.ENOSYS
	}
	if failed != 0 {
		out = nil
	}
	_, _ = unix.Write(f.device, append(words{}.u32(uint32(16+len(out)), uint32(-int32(failed))).u64(r.unique), out...)) // who asked may be gone
}

// read reads a part of the content.
func (f *File) read(r request) (words, unix.Errno) {
	if r.node != fileNode || len(r.body) < 20 {
		return nil, unix.EINVAL
	}
	offset, size := binary.NativeEndian.Uint64(r.body[8:]), uint64(binary.NativeEndian.Uint32(r.body[16:]))
	if offset >= f.size || size > maxRead {
		return nil, 0
	}
	data := make([]byte, min(size, f.size-offset))
	if _, err := f.source.ReadAt(data, int64(offset)); err != nil && !errors.Is(err, io.EOF) {
		return nil, unix.EIO
	}
	return data, 0
}
