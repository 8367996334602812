package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/image"
)

// volumeID is the UUID of every root's file system: theirs are told apart by digest.
const volumeID = "6e656172-6d65-8461-8c00-000000000001"

// pack makes the root's image and its chunk list.
func (w *worker) pack(ctx context.Context) error {
	if w.Recipe.Root.Format == "none" {
		return nil
	}
	if w.Recipe.Base.Environment != "" && empty(w.root) {
		return nil // a recipe that only puts layers together adds none
	}
	size, err := unpackedBytes(w.root)
	if err != nil {
		return err
	}
	file := filepath.Join(w.tmp, "root.image")
	cmd := packer(ctx, w.Recipe.Root.Format, w.Recipe.Root.Compression, file, w.root)
	last := &lastLines{log: w.log}
	cmd.Stdout, cmd.Stderr = last, last
	if err := w.watched(cmd, size); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(cmd.Path), last.explain(err))
	}
	w.say("digest", packed)
	return w.keepRoot(file, image.RootFormat(w.Recipe.Root.Format), size)
}

// keepRoot makes a file the root, and its chunk list.
func (w *worker) keepRoot(file string, format image.RootFormat, unpacked int64) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	blob, list, err := image.MakeChunks(f)
	if err != nil {
		return err
	}
	chunks := image.Blob{Digest: image.DigestOf(list), SizeBytes: int64(len(list))}
	w.manifest.Root = image.Root{
		Blob: blob, Format: format, UnpackedBytes: unpacked, Chunks: chunks, ChunkBytes: image.ChunkBytes,
	}
	return errors.Join(os.WriteFile(filepath.Join(w.out, chunks.Digest.Hex()), list, 0o644), os.Rename(file, filepath.Join(w.out, blob.Digest.Hex())))
}

// packing and packed are how far a build is before and after its root is packed, in percent.
const packing, packed = 78, 96

// packTick is how often it is told how far packing is.
const packTick = 2 * time.Second

// watched runs a program that reads all files of the root once, and tells how much of them it has read.
func (w *worker) watched(cmd *exec.Cmd, size int64) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	over := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		ticker := time.NewTicker(packTick)
		defer ticker.Stop()
		for {
			select {
			case <-over:
				return
			case <-ticker.C:
			}
			if read := min(readBytes(cmd.Process.Pid), size); read > 0 {
				w.say(fmt.Sprintf("pack: %d of %d MiB", read>>20, size>>20), packing+int(read*(packed-packing)/size))
			}
		}
	})
	err := cmd.Wait()
	close(over)
	telling.Wait()
	return err
}

// readBytes is how much a process has read so far (proc_pid_io(5), rchar), 0 where the kernel does not count that.
func readBytes(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0
	}
	var n int64
	if _, err := fmt.Sscanf(string(text), "rchar: %d", &n); err != nil {
		return 0
	}
	return n
}

// packer is the command that makes a root's image, the same bytes from the same tree.
func packer(ctx context.Context, format, compression, file, root string) *exec.Cmd {
	if image.RootFormat(format) == image.SquashFS {
		args := []string{
			root, file, "-noappend", "-quiet", "-no-progress", "-reproducible", "-mkfs-time", fmt.Sprint(epoch), "-all-time", fmt.Sprint(epoch),
			"-b", fmt.Sprint(squashBlockBytes), "-processors", "2",
		}
		if compression == "none" {
			args = append(args, "-noI", "-noD", "-noF", "-noX")
		} else {
			args = append(args, "-comp", compression)
		}
		cmd := exec.CommandContext(ctx, "mksquashfs", args...)
		// It refuses options for what the variable says too, and the variable alone leaves older times as they are.
		cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "SOURCE_DATE_EPOCH=") })
		return cmd
	}
	args := []string{"--quiet", "-T", fmt.Sprint(epoch), "-U", volumeID}
	switch compression {
	case "lz4hc":
		args = append(args, "-zlz4hc,9", fmt.Sprintf("-C%d", erofsClusterBytes))
	case "lz4":
		args = append(args, "-zlz4", fmt.Sprintf("-C%d", erofsClusterBytes))
	}
	return exec.CommandContext(ctx, "mkfs.erofs", append(args, file, root)...)
}

const (
	// erofsClusterBytes is how much of a file is compressed together at most: larger is smaller on disk, but more to read for one page.
	erofsClusterBytes = 65536
	squashBlockBytes  = 131072
)

func empty(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) == 0
}

// unpackedBytes is the sum of the sizes of a tree's files, each counted once.
func unpackedBytes(dir string) (int64, error) {
	var sum int64
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 {
			if seen[st.Ino] {
				return nil
			}
			seen[st.Ino] = true
		}
		sum += info.Size()
		return nil
	})
	return sum, err
}

// keep stores what write writes as a blob.
func (w *worker) keep(write func(io.Writer) error) (image.Blob, error) {
	f, err := os.CreateTemp(w.tmp, "blob-")
	if err != nil {
		return image.Blob{}, err
	}
	defer f.Close()
	hash := sha256.New()
	if err := write(io.MultiWriter(f, hash)); err != nil {
		return image.Blob{}, err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return image.Blob{}, err
	}
	digest := image.Digest("sha256:" + hex.EncodeToString(hash.Sum(nil)))
	if err := errors.Join(f.Chmod(0o644), os.Rename(f.Name(), filepath.Join(w.out, digest.Hex()))); err != nil {
		return image.Blob{}, err
	}
	return image.Blob{Digest: digest, SizeBytes: size}, nil
}

// chmod sets the mode bits that os.FileMode has in other places, set-user-ID and so on.
func chmod(f *os.File, mode uint32) error {
	return unix.Fchmod(int(f.Fd()), mode)
}
