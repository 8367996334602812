package bootagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/bootagent/blockdev"
	"github.com/nearmetal/nearmetal/internal/machine/bootagent/bootctl"
	"github.com/nearmetal/nearmetal/internal/machine/bootagent/lazyroot"
)

// imageDir holds the image: the node agent serves it to others from here once it is whole.
const imageDir = "/run/nearmetal/image"

// maxChunkList bounds a chunk list: that of a root of 512 GiB.
const maxChunkList = 64 << 20

// volume is one root or layer: an image that comes in behind a block device.
type volume struct {
	root   image.Root
	chunks *image.Chunks
	server *rootServer
	linear *blockdev.Linear
	nbd    *blockdev.NBD
	// backing holds it: a file in RAM, or the disk from offset on.
	backing *os.File
	offset  int64
}

// root is all volumes of an image.
type root struct {
	volumes []*volume
	onDisk  bool
	log     *slog.Logger
	mu      sync.Mutex
	local   bool
}

// rootConfig is what a root is made from.
type rootConfig struct {
	manifest *image.Manifest
	server   string
	peers    []string
	rate     int64
	disk     string
	client   *http.Client
	init     *supervisor
}

// attachRoot makes the volumes of an image and mounts each; it returns where, the lowest first.
func attachRoot(ctx context.Context, c rootConfig, log *slog.Logger) (*root, []string, error) {
	roots := c.manifest.Roots()
	backings, offsets, err := backing(roots, c.disk)
	if err != nil {
		return nil, nil, err
	}
	r := &root{log: log, onDisk: c.disk != ""}
	var dirs []string
	for i, layer := range roots {
		v := &volume{root: layer, backing: backings[i], offset: offsets[i]}
		dir := filepath.Join(layersDir, strconv.Itoa(i))
		if err := v.attach(ctx, c, i, dir, log); err != nil {
			return nil, nil, fmt.Errorf("the root: %w", err)
		}
		r.volumes = append(r.volumes, v)
		dirs = append(dirs, dir)
	}
	return r, dirs, nil
}

func (v *volume) attach(ctx context.Context, c rootConfig, number int, dir string, log *slog.Logger) error {
	list, err := lazyroot.FetchBlob(ctx, c.client, append(c.peers, c.server), v.root.Chunks, maxChunkList)
	if err != nil {
		return fmt.Errorf("its chunk list: %w", err)
	}
	if err := os.WriteFile(blobPath(number, "chunks"), list, 0o644); err != nil {
		return err
	}
	if v.chunks, err = image.ParseChunks(list, v.root); err != nil {
		return err
	}
	kernel, theirs, err := socketPair()
	if err != nil {
		return err
	}
	defer kernel.Close()
	defer theirs.Close()
	v.server, err = startRootServer(c.init, serveConfig{
		Root: v.root, List: list, Offset: v.offset, Server: c.server, Peers: c.peers, Rate: c.rate,
	}, theirs, v.backing)
	if err != nil {
		return err
	}
	size := wholeBlocks(v.root.SizeBytes)
	device := fmt.Sprintf("/dev/nbd%d", number)
	if v.nbd, err = blockdev.AttachNBD(device, kernel, size); err != nil {
		return err
	}
	if v.linear, err = blockdev.NewLinear(fmt.Sprintf("nearmetal-root-%d", number), device, size); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(v.linear.Path(), dir, string(v.root.Format), unix.MS_RDONLY, ""); err != nil {
		// Why a read failed is told a moment after it did.
		select {
		case <-v.server.failed:
			err = v.server.err
		case <-time.After(time.Second):
		}
		return fmt.Errorf("mount its %s: %w", v.root.Format, err)
	}
	return nil
}

// fill fetches all that is missing; when it returns nil, the root is wholly on this machine and nothing is read over the network any more.
func (r *root) fill(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, len(r.volumes))
	for i, v := range r.volumes {
		wg.Go(func() {
			if errs[i] = v.server.fill(ctx); errs[i] == nil {
				errs[i] = v.becomeLocal(r.onDisk)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	r.mu.Lock()
	r.local = true
	r.mu.Unlock()
	return os.WriteFile(filepath.Join(imageDir, "whole"), nil, 0o644)
}

// becomeLocal puts the volume over its local copy and lets go of the network.
func (v *volume) becomeLocal(onDisk bool) error {
	device := v.backing.Name()
	if onDisk {
		// A disk may not have kept what it was given: read it back.
		if err := v.verifyDisk(); err != nil {
			return err
		}
	} else {
		var err error
		if device, err = blockdev.AttachLoop(v.backing); err != nil {
			return err
		}
	}
	if err := v.linear.Swap(device, v.offset); err != nil {
		return err
	}
	err := v.nbd.Detach()
	// With its device its work is over, and its memory free.
	<-v.server.ended
	return err
}

// verifyDisk reads the whole copy from the disk itself and compares it with the chunk list.
func (v *volume) verifyDisk() error {
	if err := v.backing.Sync(); err != nil {
		return fmt.Errorf("write the root to %s: %w", v.backing.Name(), err)
	}
	if err := unix.IoctlSetInt(int(v.backing.Fd()), unix.BLKFLSBUF, 0); err != nil {
		return fmt.Errorf("drop the cache of %s: %w", v.backing.Name(), err)
	}
	buffer := make([]byte, image.ChunkBytes)
	for i := range v.chunks.Len() {
		offset, length := v.chunks.Span(i)
		if _, err := v.backing.ReadAt(buffer[:length], v.offset+offset); err != nil {
			return fmt.Errorf("read back the root from %s: %w", v.backing.Name(), err)
		}
		if err := v.chunks.Verify(i, buffer[:length]); err != nil {
			return fmt.Errorf("the disk %s returned other data than the root written to it: %w", v.backing.Name(), err)
		}
	}
	return nil
}

// failed is closed when a volume can't be had any more.
func (r *root) failed() <-chan error {
	failed := make(chan error, len(r.volumes))
	for _, v := range r.volumes {
		go func() {
			<-v.server.failed
			failed <- v.server.err
		}()
	}
	return failed
}

// status is how far the root is; the zero Status without a root.
func (r *root) status(ctx context.Context) bootctl.Status {
	var s bootctl.Status
	if r == nil {
		return s
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for i, v := range r.volumes {
		p := v.server.ask(ctx, "progress")
		s.ReadBytes, s.HeldBytes, s.RootBytes = s.ReadBytes+p.ReadBytes, s.HeldBytes+p.HeldBytes, s.RootBytes+p.RootBytes
		s.PeerBytes += p.PeerBytes
		if i == 0 {
			s.Touched = p.Touched
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Local = r.local
	return s
}

// shifted is a part of a disk or file.
type shifted struct {
	file   *os.File
	offset int64
}

func (s *shifted) ReadAt(p []byte, off int64) (int, error) { return s.file.ReadAt(p, s.offset+off) }

func (s *shifted) WriteAt(p []byte, off int64) (int, error) { return s.file.WriteAt(p, s.offset+off) }

func wholeBlocks(size int64) int64 {
	return (size + blockdev.BlockBytes - 1) / blockdev.BlockBytes * blockdev.BlockBytes
}

// blobPath is where a volume's file lies in imageDir: root and chunks for the root, those of layers numbered.
func blobPath(number int, name string) string {
	if number > 0 {
		name += "." + strconv.Itoa(number)
	}
	return filepath.Join(imageDir, name)
}

// backing makes room for the volumes: in RAM, or on a disk, where they lie one behind the other.
func backing(roots []image.Root, disk string) (files []*os.File, offsets []int64, err error) {
	var total int64
	for _, r := range roots {
		offsets = append(offsets, total)
		total += wholeBlocks(r.SizeBytes)
	}
	inRAM := total
	if disk != "" {
		inRAM = 0
	}
	if err := makeImageDir(inRAM, roots); err != nil {
		return nil, nil, err
	}
	if disk == "" {
		for i, r := range roots {
			file, err := os.OpenFile(blobPath(i, "root"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
			if err == nil {
				err = file.Truncate(wholeBlocks(r.SizeBytes))
			}
			if err != nil {
				return nil, nil, fmt.Errorf("make room for the root: %w", err)
			}
			files = append(files, file)
		}
		return files, make([]int64, len(roots)), nil
	}
	file, err := openDisk(disk, total)
	for range roots {
		files = append(files, file)
	}
	return files, offsets, err
}

// makeImageDir mounts imageDir in RAM with room for the root's bytes there and the chunk lists.
func makeImageDir(bytes int64, roots []image.Root) error {
	for _, r := range roots {
		bytes += r.Chunks.SizeBytes
	}
	available, err := memory("MemAvailable")
	if err != nil {
		return err
	}
	// An eighth stays for the kernel and the node agent at the very least.
	if bytes > available-available/8 {
		return fmt.Errorf("the root takes %d MiB of memory, but this machine has %d MiB free: choose a smaller environment, or give the root a disk",
			bytes>>20, available>>20)
	}
	if err := os.MkdirAll(imageDir, 0o755); err != nil {
		return err
	}
	return unix.Mount("tmpfs", imageDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, fmt.Sprintf("mode=755,size=%d", bytes+bytes/64+4<<20))
}

// memory is a figure of /proc/meminfo (proc(5)), in bytes.
func memory(name string) (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == name+":" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/meminfo lacks " + name)
}

// diskDeadline is how long a disk may take to appear.
const diskDeadline = 30 * time.Second

// openDisk opens a disk for writing that has room.
func openDisk(path string, bytes int64) (*os.File, error) {
	var file *os.File
	var err error
	for deadline := time.Now().Add(diskDeadline); ; time.Sleep(100 * time.Millisecond) {
		// Exclusive: a disk that something has mounted is refused. Not for long, because the kernel wants it to itself for the root.
		if file, err = os.OpenFile(path, os.O_RDWR|unix.O_EXCL, 0); err == nil {
			_ = file.Close()
			file, err = os.OpenFile(path, os.O_RDWR, 0)
		}
		if err == nil || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the disk for the root: %w", err)
	}
	size, err := file.Seek(0, 2)
	if err == nil && size < bytes {
		err = fmt.Errorf("the disk has %d MiB, but the root needs %d MiB", size>>20, bytes>>20)
	}
	if err != nil {
		return nil, fmt.Errorf("the disk %s for the root: %w", path, err)
	}
	return file, nil
}

// socketPair is a connection's two ends.
func socketPair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	// Replies are as long as reads: a larger buffer means fewer wake-ups.
	for _, fd := range fds {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20)
	}
	return os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket"), nil
}
