// Package patiencetest has a file system that stops answering whenever a test wants it to, and answers again. Who asks it meanwhile waits in the kernel,
// and can't even be killed: so a mount of NFS behaves for who writes, at worst. It must never be part of a product. Start with Mount.
package patiencetest

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/needs"
)

// Content is what the file "file" holds, the only one.
const Content = "content"

// Disk is a mounted file system, served by this process over FUSE (linux/fuse.h).
type Disk struct {
	Dir    string
	device int

	mu     sync.Mutex
	silent bool
	denies bool
	held   []request
	more   *sync.Cond // held has got longer
}

type request struct {
	opcode       uint32
	unique, node uint64
	body         []byte
}

// Mount mounts one until the test ends.
func Mount(t testing.TB) *Disk {
	t.Helper()
	needs.Root(t, "mounts a file system")
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		needs.Hardware(t, fmt.Sprintf("the kernel has no FUSE: %v", err))
	}
	d := &Disk{Dir: filepath.Join(t.TempDir(), "silent"), device: device}
	d.more = sync.NewCond(&d.mu)
	if err := os.Mkdir(d.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions", device)
	if err := unix.Mount("silent", d.Dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		t.Fatal(err)
	}
	go d.serve()
	stop := endWithTest(t, d.Dir)
	t.Cleanup(func() {
		d.Speak()
		_ = unix.Unmount(d.Dir, unix.MNT_DETACH)
		stop()
		_ = unix.Close(device)
		if err := os.Remove(d.Dir); err != nil {
			t.Error(err)
		}
	})
	// The kernel asks once whether there is a time of birth, and knows both files from here on.
	var stat unix.Statx_t
	for _, path := range []string{d.Dir, filepath.Join(d.Dir, "file")} {
		if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &stat); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// endWithTest makes sure that a test which is killed does not wait for itself forever: a process of its own then has all questions fail.
func endWithTest(t testing.TB, dir string) (stop func()) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", `trap 'umount -i -c -f -l "$0"; exit' TERM; while :; do sleep 3600 & wait; done`, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
	failed, end := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // whose end is what counts as the parent's
		failed <- cmd.Start()
		<-end
		runtime.UnlockOSThread()
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	return func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		_ = cmd.Wait()
		close(end)
	}
}

// Silence has it answer nothing from now on.
func (d *Disk) Silence() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.silent = true
}

// Deny has it answer all that it is asked from now on by EIO: a test sees that it was asked, and goes on. Who waits already waits on.
func (d *Disk) Deny() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.denies = true
}

// Speak has it answer what it was asked meanwhile, and all else.
func (d *Disk) Speak() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.silent, d.denies = false, false
	for _, r := range d.held {
		d.answer(r)
	}
	d.held = nil
}

// Await returns once so many threads wait for an answer.
func (d *Disk) Await(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.held) < n {
		d.more.Wait()
	}
}

// Numbers of requests.
const (
	lookup, forget, getattr, open, read, statfs, release, initialize, openDir, readDir, releaseDir, interrupt, batchForget = 1, 2, 3, 14, 15, 17, 18, 26, 27, 28, 29, 36, 42
)

func (d *Disk) serve() {
	buffer := make([]byte, 1<<20)
	for {
		n, err := unix.Read(d.device, buffer)
		if err == unix.EINTR || err == unix.ENOENT {
			continue
		}
		if err != nil || n < 40 {
			return // it was unmounted
		}
		b := buffer[:n]
		r := request{opcode: binary.NativeEndian.Uint32(b[4:]), unique: binary.NativeEndian.Uint64(b[8:]), node: binary.NativeEndian.Uint64(b[16:]), body: slices.Clone(b[40:])}
		d.mu.Lock()
		switch {
		case slices.Contains([]uint32{forget, batchForget, interrupt}, r.opcode): // which have no answer
		case d.denies:
			d.reply(r, unix.EIO, nil)
		case d.silent:
			d.held = append(d.held, r)
			d.more.Broadcast()
		default:
			d.answer(r)
		}
		d.mu.Unlock()
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

// The two files.
const rootNode, fileNode = 1, 2

// attributes are struct fuse_attr.
func attributes(node uint64) words {
	mode, size := uint32(unix.S_IFDIR|0o777), uint64(0)
	if node == fileNode {
		mode, size = unix.S_IFREG|0o666, uint64(len(Content))
	}
	return words{}.u64(node, size, 1, 0, 0, 0).u32(0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
}

// answer answers a request. Nothing is kept by the kernel, so that it asks each time.
func (d *Disk) answer(r request) {
	failed, out := unix.Errno(0), words{}
	switch r.opcode {
	case initialize:
		out = out.u32(7, 31, 0, 0, 0, 1<<16, 1).u32(make([]uint32, 9)...)
	case lookup:
		if string(r.body) != "file\x00" {
			failed = unix.ENOENT
			break
		}
		out = append(out.u64(fileNode, 1, 0, 0).u32(0, 0), attributes(fileNode)...)
	case getattr:
		out = append(out.u64(0).u32(0, 0), attributes(r.node)...)
	case open, openDir:
		out = out.u64(0).u32(1, 0) // past the page cache
	case read:
		offset, size := binary.NativeEndian.Uint64(r.body[8:]), binary.NativeEndian.Uint32(r.body[16:])
		rest := Content[min(offset, uint64(len(Content))):]
		out = words(rest[:min(int(size), len(rest))])
	case readDir:
		if binary.NativeEndian.Uint64(r.body[8:]) == 0 {
			out = append(out.u64(fileNode, 1).u32(4, unix.DT_REG), "file\x00\x00\x00\x00"...)
		}
	case statfs:
		out = out.u64(make([]uint64, 10)...)
	case release, releaseDir:
	default:
		failed = unix.ENOSYS
	}
	if failed != 0 {
		out = nil
	}
	d.reply(r, failed, out)
}

func (d *Disk) reply(r request, failed unix.Errno, out words) {
	_, _ = unix.Write(d.device, append(words{}.u32(uint32(16+len(out)), uint32(-int32(failed))).u64(r.unique), out...)) // who asked may be gone
}
