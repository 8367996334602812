package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

const (
	// namesAtOnce bounds how many names of a directory are in memory, maxExtents how many parts with data a file has in the archive.
	namesAtOnce = 256
	maxExtents  = 8192
	// packThreads bounds the processors that compression takes from members.
	packThreads = 2
)

// Source says what is packed.
type Source struct {
	// Dir is the directory, on which nothing writes meanwhile. VolumeBytes is the size of its volume, and VolumeFiles the bound of its files.
	Dir                      *os.File
	VolumeBytes, VolumeFiles int64
	// Scratch is a directory for files without a name, at most a few hundred MiB.
	Scratch string
	// Layer: the directory is the upper one of an overlay (overlayfs). It may have whiteouts, opaque directories and files with capabilities.
	Layer bool
	// Omit returns whether a path, relative to the directory, is not packed, with all that is in it; nil: everything is packed.
	Omit func(path string, dir bool) bool
}

// Pack writes everything that is in a directory. What it wrote before it returned an error has no trailer.
func Pack(ctx context.Context, s Source, out io.Writer) (Trailer, error) {
	noted, err := openLinks(s.Scratch)
	if err != nil {
		return Trailer{}, err
	}
	defer func() { _ = noted.close() }()
	compressed, err := zstd.NewWriter(out, zstd.WithEncoderConcurrency(packThreads), zstd.WithWindowSize(windowBytes))
	if err != nil {
		return Trailer{}, err
	}
	p := &packer{ctx: ctx, out: &counted{out: compressed, hash: sha256.New()}, links: noted, buffer: make([]byte, copyBytes), layer: s.Layer, omit: s.Omit}
	p.most = HoleFactor * s.VolumeBytes
	if err := p.all(s.Dir); err != nil {
		_ = compressed.Flush() // nothing is written after the return, and the frame stays open
		return Trailer{}, err
	}
	if err := compressed.Close(); err != nil {
		return Trailer{}, err
	}
	p.trailer.VolumeBytes, p.trailer.VolumeFiles = s.VolumeBytes, s.VolumeFiles
	p.trailer.Bytes, p.trailer.SHA256 = p.out.bytes, hex.EncodeToString(p.out.hash.Sum(nil))
	return p.trailer, p.trailer.Write(out)
}

// counted is what passes to a writer.
type counted struct {
	out   io.Writer
	hash  hash.Hash
	bytes int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.out.Write(p)
	c.hash.Write(p[:n])
	c.bytes += int64(n)
	return n, err
}

type packer struct {
	ctx     context.Context
	out     *counted
	links   *links
	buffer  []byte
	layer   bool
	omit    func(path string, dir bool) bool
	trailer Trailer
	// seeming is what the files seem to hold, and most the bound of it.
	seeming, most int64
}

// all packs the root directory and what is in it, and ends the tar file.
func (p *packer) all(root *os.File) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &stat); err != nil {
		return err
	}
	if err := p.dir(root, &stat, "."); err != nil {
		return err
	}
	_, err := p.out.Write(make([]byte, 2*blockBytes))
	return err
}

func (p *packer) dir(dir *os.File, stat *unix.Stat_t, at string) error {
	e := newEntry(kindDir, at+"/", stat)
	var err error
	if e.attributes, err = attributes(dir, p.layer); err != nil {
		return wrap(at, err)
	}
	if err := p.put(e); err != nil {
		return err
	}
	for {
		names, err := dir.Readdirnames(namesAtOnce)
		for _, name := range names {
			if err := p.one(dir, name, path.Join(at, name)); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return wrap(at, err)
		}
	}
}

// one packs what a directory has under a name.
func (p *packer) one(dir *os.File, name, at string) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	if len(at) > MaxPath {
		return fmt.Errorf("%w: a path has more than %d bytes: %q", ErrRefused, MaxPath, at[:100]+"...")
	}
	var stat unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return wrap(at, err)
	}
	kind := stat.Mode & unix.S_IFMT
	if p.omit != nil && p.omit(at, kind == unix.S_IFDIR) {
		return nil
	}
	if p.layer && kind == unix.S_IFCHR && stat.Rdev == 0 {
		return p.put(newEntry(kindChar, at, &stat)) // a whiteout: the file of this name in a layer below is gone
	}
	if kind != unix.S_IFDIR && stat.Nlink > 1 && kind != unix.S_IFSOCK {
		first, err := p.links.first(stat.Ino, at)
		if err != nil {
			return wrap(at, err)
		}
		if first != "" {
			e := newEntry(kindHard, at, &stat)
			e.target = first
			return p.put(e)
		}
	}
	switch kind {
	case unix.S_IFDIR:
		return p.opened(dir, name, at, unix.O_DIRECTORY, func(f *os.File) error { return p.dir(f, &stat, at) })
	case unix.S_IFREG:
		return p.opened(dir, name, at, unix.O_NONBLOCK, func(f *os.File) error { return p.file(f, &stat, at) })
	case unix.S_IFLNK:
		return p.symlink(dir, name, &stat, at)
	case unix.S_IFIFO:
		return p.put(newEntry(kindFIFO, at, &stat))
	default:
		p.trailer.Skipped++
		return nil
	}
}

// opened opens a file of a directory, which must be no link and nothing that is mounted there.
func (p *packer) opened(dir *os.File, name, at string, flags uint64, do func(*os.File) error) error {
	f, err := openBeneath(dir, name, unix.O_RDONLY|flags)
	if err != nil {
		return wrap(at, err)
	}
	defer f.Close()
	return do(f)
}

// openBeneath opens a path of which no part is a link, and that does not leave its directory or its file system.
func openBeneath(dir *os.File, name string, flags uint64) (*os.File, error) {
	fd, err := unix.Openat2(int(dir.Fd()), name, &unix.OpenHow{
		Flags: flags | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (p *packer) symlink(dir *os.File, name string, stat *unix.Stat_t, at string) error {
	target := make([]byte, MaxPath+1)
	n, err := unix.Readlinkat(int(dir.Fd()), name, target)
	if err != nil {
		return wrap(at, err)
	}
	e := newEntry(kindSymlink, at, stat)
	e.target = string(target[:n])
	return p.put(e)
}

func (p *packer) file(f *os.File, stat *unix.Stat_t, at string) error {
	if p.seeming += stat.Size; p.seeming > p.most {
		return fmt.Errorf("%w: files with holes seem to hold more than %d times the size of their volume, up to %q", ErrRefused, HoleFactor, at)
	}
	e := newEntry(kindFile, at, stat)
	var err error
	if e.attributes, err = attributes(f, p.layer); err != nil {
		return wrap(at, err)
	}
	parts, err := extents(f, stat)
	if err != nil {
		return wrap(at, err)
	}
	e.size = stat.Size
	var table []byte
	if len(parts) != 1 || parts[0].length != stat.Size {
		e.sparse, e.realSize = true, stat.Size
		table = sparseTable(parts)
		e.size = int64(len(table))
		for _, part := range parts {
			e.size += part.length
		}
	}
	if err := p.put(e); err != nil {
		return err
	}
	if _, err := p.out.Write(table); err != nil {
		return err
	}
	for _, part := range parts {
		if err := p.data(io.NewSectionReader(f, part.at, part.length), part.length); err != nil {
			return wrap(at, err)
		}
	}
	_, err = p.out.Write(make([]byte, padding(e.size)))
	return err
}

// data packs exactly so many bytes.
func (p *packer) data(from io.Reader, length int64) error {
	for length > 0 {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(from, p.buffer[:min(length, copyBytes)])
		if err != nil {
			return err
		}
		if _, err := p.out.Write(p.buffer[:n]); err != nil {
			return err
		}
		length -= int64(n)
	}
	return nil
}

func (p *packer) put(e *entry) error {
	p.trailer.Files++
	return e.write(p.out)
}

func newEntry(kind byte, at string, stat *unix.Stat_t) *entry {
	known := func(id uint32) uint32 {
		if id > MaxID {
			return unknownID
		}
		return id
	}
	return &entry{
		kind: kind, path: at, mode: stat.Mode & 0o7777, uid: known(stat.Uid), gid: known(stat.Gid), modified: time.Unix(stat.Mtim.Unix()),
	}
}

// extent is a part of a file that has data.
type extent struct{ at, length int64 }

// extents returns the parts of a file that have data. Behind the last that is looked for, all is taken for data.
func extents(f *os.File, stat *unix.Stat_t) ([]extent, error) {
	if stat.Blocks*blockBytes >= stat.Size {
		return []extent{{0, stat.Size}}, nil
	}
	var all []extent
	for at := int64(0); at < stat.Size; {
		begin, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // there is only a hole
		}
		if err != nil {
			return nil, err
		}
		end, err := unix.Seek(int(f.Fd()), begin, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		if len(all) == maxExtents-1 {
			end = stat.Size
		}
		all = append(all, extent{begin, end - begin})
		at = end
	}
	if n := len(all); n == 0 || all[n-1].at+all[n-1].length < stat.Size {
		all = append(all, extent{stat.Size, 0}) // so says that the file ends with a hole
	}
	return all, nil
}

// sparseTable lists the parts that follow, as GNU tar does (format 1.0).
func sparseTable(parts []extent) []byte {
	var text bytes.Buffer
	text.WriteString(strconv.Itoa(len(parts)) + "\n")
	for _, part := range parts {
		fmt.Fprintf(&text, "%d\n%d\n", part.at, part.length)
	}
	text.Write(make([]byte, padding(int64(text.Len()))))
	return text.Bytes()
}

// wrap says which file an error is about.
func wrap(at string, err error) error { return fmt.Errorf("%s: %w", strings.ToValidUTF8(at, "?"), err) }
