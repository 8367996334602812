package archive

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// memoryBytes bounds what decompression takes at once.
const memoryBytes = 64 << 20

// Walk calls each for every file of an archive, with its content, and makes nothing. Names are checked as Unpack does. What each was called with counts only
// once Walk has returned nil: that an archive is whole is known at its end. The error is that of each, ErrDamaged or ErrRefused.
func Walk(ctx context.Context, in io.Reader, each func(h *tar.Header, content io.Reader) error) (Trailer, error) {
	return read(ctx, in, func(from *tar.Reader) (files int64, err error) {
		for {
			h, err := from.Next()
			if errors.Is(err, io.EOF) {
				return files, nil
			}
			if err != nil {
				return files, fmt.Errorf("%w: %w", ErrDamaged, err)
			}
			if h.Name, err = checkName(h); err != nil {
				return files, err
			}
			if err := each(h, from); err != nil {
				return files, wrap(h.Name, err)
			}
			files++
		}
	})
}

// read has all files of an archive read, and returns its trailer once that agrees with what was read.
func read(ctx context.Context, in io.Reader, all func(from *tar.Reader) (files int64, err error)) (Trailer, error) {
	var tail Tail
	plain, err := zstd.NewReader(io.TeeReader(in, &tail), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(windowBytes), zstd.WithDecoderMaxMemory(memoryBytes))
	if err != nil {
		return Trailer{}, err
	}
	defer plain.Close()
	passed := &counted{out: io.Discard, hash: sha256.New()}
	content := &untilCanceled{ctx: ctx, in: io.TeeReader(plain, passed)}
	files, err := all(tar.NewReader(content))
	if err != nil {
		return Trailer{}, content.reason(err)
	}
	if n, err := content.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		return Trailer{}, content.reason(fmt.Errorf("%w: there is something behind its last file (%w)", ErrDamaged, errors.Join(err, io.ErrNoProgress)))
	}
	trailer, err := tail.Trailer()
	if err != nil {
		return Trailer{}, err
	}
	if got := hex.EncodeToString(passed.hash.Sum(nil)); trailer.Bytes != passed.bytes || trailer.SHA256 != got || trailer.Files != files {
		return Trailer{}, fmt.Errorf("%w: it has %d files in %d bytes with the hash %s, and its end says %d, %d and %s",
			ErrDamaged, files, passed.bytes, got, trailer.Files, trailer.Bytes, trailer.SHA256)
	}
	return trailer, nil
}

// untilCanceled reads until a context ends, and keeps the error with which reading ended.
type untilCanceled struct {
	ctx context.Context
	in  io.Reader
	err error
}

func (r *untilCanceled) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.in.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// reason tells what has kept an archive from being unpacked: its end rather than what followed from that.
func (r *untilCanceled) reason(err error) error {
	if ended := r.ctx.Err(); ended != nil {
		return ended
	}
	if r.err != nil && !errors.Is(err, ErrRefused) {
		return fmt.Errorf("%w: %w", ErrDamaged, r.err)
	}
	return err
}
