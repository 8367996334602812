package nodeimages

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/image"
)

// partial is a root that some chunks are held of. Which ones is known by verifying what the file holds: nothing else survives a crash as
// truth.
type partial struct {
	root   image.Root
	chunks *image.Chunks
	path   string

	mu   sync.Mutex
	file *os.File
	// held and asked are by chunk; asked ones are on their way from somewhere.
	held, asked []bool
	heldBytes   int64
	missing     int
}

// openPartial opens the file of a root, making it if need be, and verifies what it holds.
func (s *Store) openPartial(root image.Root, chunks *image.Chunks) (*partial, error) {
	path := filepath.Join(s.cfg.Dir, dirPartial, root.Digest.Hex())
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	p := &partial{root: root, chunks: chunks, path: path, file: f, held: make([]bool, chunks.Len()), asked: make([]bool, chunks.Len()), missing: chunks.Len()}
	err = f.Truncate(root.SizeBytes)
	if err == nil {
		err = p.verify()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return p, nil
}

// verify finds the chunks that are there. Holes are none: a chunk of zeros is fetched once more.
func (p *partial) verify() error {
	buffer := make([]byte, image.ChunkBytes)
	for offset := int64(0); offset < p.root.SizeBytes; {
		data, err := unix.Seek(int(p.file.Fd()), offset, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole follows
		}
		if err != nil {
			return err
		}
		i := int(data / image.ChunkBytes)
		part := buffer[:p.size(i)]
		if _, err := p.file.ReadAt(part, int64(i)*image.ChunkBytes); err != nil {
			return err
		}
		if p.chunks.Verify(i, part) == nil {
			p.take(i)
		}
		offset = int64(i+1) * image.ChunkBytes
	}
	return nil
}

// size is the length of a chunk.
func (p *partial) size(i int) int64 {
	return min(image.ChunkBytes, p.root.SizeBytes-int64(i)*image.ChunkBytes)
}

// take notes that a chunk is held; the lock is held or nobody else knows of p.
func (p *partial) take(i int) {
	if !p.held[i] {
		p.held[i] = true
		p.heldBytes += p.size(i)
		p.missing--
	}
}

// put verifies a chunk and writes it. An error that wraps image.ErrDigest blames who sent it.
func (p *partial) put(i int, data []byte) error {
	if err := p.chunks.Verify(i, data); err != nil {
		return err
	}
	if _, err := p.file.WriteAt(data, int64(i)*image.ChunkBytes); err != nil {
		return &localError{err}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.take(i)
	return nil
}

// localError is a failure of this node: no source can help.
type localError struct{ err error }

func (e *localError) Error() string { return "the image can't be written: " + e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

// claim picks up to most chunks in a row that are missing, not on their way, and pass the test, beginning to look at start; n is 0 for none.
func (p *partial) claim(start, most int, test func(i int) bool) (first, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fits := func(i int) bool { return !p.held[i] && !p.asked[i] && test(i) }
	for k := range p.held {
		i := (start + k) % len(p.held)
		if !fits(i) {
			continue
		}
		for n = 0; n < most && i+n < len(p.held) && fits(i+n); n++ {
			p.asked[i+n] = true
		}
		return i, n
	}
	return 0, 0
}

// release gives back what was claimed and has not come.
func (p *partial) release(first, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := first; i < first+n; i++ {
		p.asked[i] = false
	}
}

// state is how many chunks are missing, and how many bytes are held.
func (p *partial) state() (missing int, heldBytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.missing, p.heldBytes
}

// bitmap is which chunks are held: bit i%8 of byte i/8.
func (p *partial) bitmap() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	bits := make([]byte, (len(p.held)+7)/8)
	for i, held := range p.held {
		if held {
			bits[i/8] |= 1 << (i % 8)
		}
	}
	return bits
}

// holds tells whether a range of bytes is held.
func (p *partial) holds(offset, length int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if offset < 0 || length <= 0 || offset+length > p.root.SizeBytes {
		return false
	}
	for i := offset / image.ChunkBytes; i <= (offset+length-1)/image.ChunkBytes; i++ {
		if !p.held[i] {
			return false
		}
	}
	return true
}

// finish makes a whole file durable, verifies it as one, and moves it to its place.
func (p *partial) finish(to string) error {
	if err := p.file.Sync(); err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	h := newHash()
	if _, err := io.Copy(h, io.NewSectionReader(p.file, 0, p.root.SizeBytes)); err != nil {
		return fmt.Errorf("read the image again: %w", err)
	}
	if got := digestOf(h); got != p.root.Digest {
		return errors.Join(fmt.Errorf("the root is %s, though all its chunks match the list: %w", short(got), image.ErrDigest), os.Remove(p.path))
	}
	return durablefile.Rename(p.path, to)
}

func (p *partial) close() { _ = p.file.Close() }
