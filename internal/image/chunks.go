package image

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
)

// Chunks is the chunk list of a root: the SHA-256 of each piece of ChunkBytes, in their order.
type Chunks struct {
	root Root
	list []byte
}

// MakeChunks reads a root's image to its end and returns its blob, and its chunk list as stored.
func MakeChunks(r io.Reader) (Blob, []byte, error) {
	whole, chunk := sha256.New(), make([]byte, ChunkBytes)
	var list []byte
	var size int64
	for {
		n, err := io.ReadFull(r, chunk)
		if n > 0 {
			whole.Write(chunk[:n])
			sum := sha256.Sum256(chunk[:n])
			list, size = append(list, sum[:]...), size+int64(n)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return Blob{Digest: digestOfSum(whole.Sum(nil)), SizeBytes: size}, list, nil
		}
		if err != nil {
			return Blob{}, nil, fmt.Errorf("read the root's image: %w", err)
		}
	}
}

// ParseChunks verifies that list is the root's chunk list. A list of another length, even with the right digest, is refused: the manifest
// contradicts itself.
func ParseChunks(list []byte, root Root) (*Chunks, error) {
	if root.ChunkBytes != ChunkBytes {
		return nil, fmt.Errorf("the root's chunks have %d bytes; only chunks of %d are supported", root.ChunkBytes, ChunkBytes)
	}
	if got := DigestOf(list); got != root.Chunks.Digest {
		return nil, fmt.Errorf("chunk list %s: %w: it is %s", root.Chunks.Digest, ErrDigest, got)
	}
	c := &Chunks{root: root, list: list}
	if want := (root.SizeBytes + ChunkBytes - 1) / ChunkBytes; root.SizeBytes <= 0 || int64(len(list)) != want*sha256.Size {
		return nil, fmt.Errorf("chunk list %s has %d bytes; a root of %d bytes needs %d", root.Chunks.Digest, len(list), root.SizeBytes, want*sha256.Size)
	}
	return c, nil
}

// Len is the number of chunks.
func (c *Chunks) Len() int { return len(c.list) / sha256.Size }

// Span is where chunk i lies in the root's image: its offset and length in bytes.
func (c *Chunks) Span(i int) (offset int64, length int) {
	offset = int64(i) * ChunkBytes
	return offset, int(min(ChunkBytes, c.root.SizeBytes-offset))
}

// Verify returns an error that wraps ErrDigest unless data is chunk i.
func (c *Chunks) Verify(i int, data []byte) error {
	if i < 0 || i >= c.Len() {
		return fmt.Errorf("chunk %d of %s does not exist: it has %d chunks", i, c.root.Digest, c.Len())
	}
	sum := sha256.Sum256(data)
	if _, length := c.Span(i); len(data) != length || !bytes.Equal(sum[:], c.list[i*sha256.Size:(i+1)*sha256.Size]) {
		return fmt.Errorf("chunk %d of %s: %w", i, c.root.Digest, ErrDigest)
	}
	return nil
}
