// Package initrd makes the initial RAM disks that a machine boots with: one of an image, with the kernel modules that find the network and the
// root, and one of the server, with the boot agent as their only program. The kernel unpacks both into one, so that an image stays the same
// when the program does not.
//
// It reads a tree with lib/modules/VERSION and writes a compressed newc archive that depends on nothing else: the same tree gives the same
// bytes. It must never run a program or choose what a machine boots. Start with Build.
package initrd

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cavaliergopher/cpio"
	"github.com/klauspost/compress/zstd"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/kernelmodule"
)

// Config is what an initrd is made of.
type Config struct {
	// Root is a tree with lib/modules/KernelVersion, its indexes written (depmod).
	Root string
	// KernelVersion may be empty when the tree has one kernel only.
	KernelVersion string
	// Init is the boot agent's binary, where both are to be one; empty: it comes apart (Agent).
	Init []byte
	// Small leaves out what only inspection looks at: for an image whose root has the other drivers.
	Small bool
	// Extra are names of modules besides those every machine is given.
	Extra []string
}

// Result tells what was made.
type Result struct {
	KernelVersion string
	// Modules are the names of the modules inside, sorted.
	Modules []string
	// SizeBytes is of the compressed archive, UnpackedBytes of what is in it.
	SizeBytes, UnpackedBytes int64
	Digest                   image.Digest
}

// KernelVersion returns the version of the only kernel whose modules the tree has.
func KernelVersion(root string) (string, error) {
	entries, err := os.ReadDir(filepath.Join(root, "lib/modules"))
	if err != nil {
		return "", fmt.Errorf("no kernel for metal: %w; add a kernel to the recipe", err)
	}
	var versions []string
	for _, e := range entries {
		if e.IsDir() {
			versions = append(versions, e.Name())
		}
	}
	switch len(versions) {
	case 0:
		return "", fmt.Errorf("no kernel for metal: %s is empty; add a kernel to the recipe", filepath.Join(root, "lib/modules"))
	case 1:
		return versions[0], nil
	}
	return "", fmt.Errorf("%s has modules of several kernels (%s); name one of them", root, strings.Join(versions, ", "))
}

// Build writes the initrd to w.
func Build(ctx context.Context, w io.Writer, c Config) (Result, error) {
	version := c.KernelVersion
	if version == "" {
		var err error
		if version, err = KernelVersion(c.Root); err != nil {
			return Result{}, err
		}
	}
	dir := filepath.Join(c.Root, "lib/modules", version)
	index, err := kernelmodule.ReadIndex(dir)
	if err != nil {
		return Result{}, fmt.Errorf("the modules of kernel %s: %w", version, err)
	}
	names, err := choose(index, c.Small, c.Extra)
	if err != nil {
		return Result{}, fmt.Errorf("kernel %s: %w", version, err)
	}
	result, err := compressed(w, func(to io.Writer) error { return writeArchive(ctx, to, dir, version, index, names, c.Init) })
	if err != nil {
		return Result{}, fmt.Errorf("write the initrd for kernel %s: %w", version, err)
	}
	result.KernelVersion, result.Modules = version, names
	return result, nil
}

// Agent writes the initrd that holds the boot agent, and nothing else.
func Agent(w io.Writer, init []byte) (Result, error) {
	result, err := compressed(w, func(to io.Writer) error {
		a := &archive{w: cpio.NewWriter(to), folders: map[string]bool{}}
		a.program(init)
		if a.err != nil {
			return a.err
		}
		return a.w.Close()
	})
	if err != nil {
		return Result{}, fmt.Errorf("write the boot agent's initrd: %w", err)
	}
	return result, nil
}

// Guest writes the initrd that holds the boot agent and the program that the agent starts in a virtual machine, at a path. It is not
// compressed: it is read from the host's memory, and costs no processor time on either side.
func Guest(w io.Writer, init []byte, at string, program []byte) error {
	a := &archive{w: cpio.NewWriter(w), folders: map[string]bool{}}
	a.program(init)
	a.file(at, 0o755, program)
	if a.err == nil {
		a.err = a.w.Close()
	}
	if a.err != nil {
		return fmt.Errorf("write the initrd of guests: %w", a.err)
	}
	return nil
}

// compressed writes an archive by zstd, and tells its sizes and digest.
func compressed(w io.Writer, write func(io.Writer) error) (Result, error) {
	// Two writers below each other: what is hashed and counted is what is written.
	hash, size := sha256.New(), &counter{}
	compressor, err := zstd.NewWriter(io.MultiWriter(w, hash, size),
		// One thread: else where blocks end depends on time. 8 MiB is the window every reader must bear (RFC 8878, section 3.1.1.1.2).
		zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(8<<20))
	if err != nil {
		return Result{}, err
	}
	unpacked := &counter{}
	if err := write(io.MultiWriter(compressor, unpacked)); err != nil {
		return Result{}, err
	}
	if err := compressor.Close(); err != nil {
		return Result{}, err
	}
	return Result{
		SizeBytes: size.bytes, UnpackedBytes: unpacked.bytes, Digest: image.Digest("sha256:" + hex.EncodeToString(hash.Sum(nil))),
	}, nil
}

// writeArchive writes folders, the agent, the modules in order of their paths, and the indexes with what concerns them.
func writeArchive(ctx context.Context, w io.Writer, dir, version string, index *kernelmodule.Index, names []string, init []byte) error {
	a := &archive{w: cpio.NewWriter(w), folders: map[string]bool{}}
	for _, folder := range []string{"dev", "proc", "sys", "run", "root", "etc", "tmp"} {
		a.folder(folder)
	}
	if len(init) > 0 {
		a.program(init)
	}
	base := path.Join("lib/modules", version)
	chosen := index.Subset(names)
	a.file(path.Join(base, "modules.dep"), 0o644, chosen.Dependencies())
	a.file(path.Join(base, "modules.alias"), 0o644, chosen.Aliases())
	a.file(path.Join(base, "modules.softdep"), 0o644, chosen.SoftDependencies())
	files := chosen.Files()
	slices.SortFunc(files, func(x, y string) int {
		// Alike drivers side by side compress better: by folder, then by name.
		return cmp.Or(strings.Compare(path.Dir(x), path.Dir(y)), strings.Compare(x, y))
	})
	for _, name := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		a.file(path.Join(base, name), 0o644, data)
	}
	if a.err != nil {
		return a.err
	}
	return a.w.Close()
}

// archive writes a newc archive (Linux, Documentation/driver-api/early-userspace/buffer-format.rst) without times, owners or device numbers.
type archive struct {
	w       *cpio.Writer
	folders map[string]bool
	inode   int64
	err     error
}

func (a *archive) add(name string, mode cpio.FileMode, data []byte, links int) {
	if a.err != nil {
		return
	}
	a.inode++
	header := &cpio.Header{Name: name, Mode: mode, Size: int64(len(data)), Inode: a.inode, Links: links}
	if a.err = a.w.WriteHeader(header); a.err == nil {
		_, a.err = io.Copy(a.w, bytes.NewReader(data))
	}
}

// program adds the boot agent. The kernel asks /sbin/modprobe for what it lacks (crypto, file systems); the agent answers to that name too.
func (a *archive) program(init []byte) {
	a.file("init", 0o755, init)
	a.link("sbin/modprobe", "../init")
}

func (a *archive) folder(name string) {
	if name == "." || a.folders[name] {
		return
	}
	a.folder(path.Dir(name))
	a.folders[name] = true
	a.add(name, cpio.TypeDir|0o755, nil, 2)
}

func (a *archive) file(name string, mode cpio.FileMode, data []byte) {
	a.folder(path.Dir(name))
	a.add(name, cpio.TypeReg|mode, data, 1)
}

func (a *archive) link(name, target string) {
	a.folder(path.Dir(name))
	if a.err != nil {
		return
	}
	a.inode++
	if a.err = a.w.WriteHeader(&cpio.Header{Name: name, Linkname: target, Mode: cpio.TypeSymlink | 0o777, Size: int64(len(target)), Inode: a.inode, Links: 1}); a.err == nil {
		_, a.err = io.WriteString(a.w, target)
	}
}

// counter counts what is written.
type counter struct{ bytes int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.bytes += int64(len(p))
	return len(p), nil
}
