package transfer

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/adler32"
	"io"
	"os"

	"github.com/nearmetal/nearmetal/api"
)

// verify reads a file and returns an error that wraps ErrChecksum unless size and checksums are those described.
func verify(file *os.File, of api.DatasetFile) error {
	info, err := file.Stat()
	if err != nil {
		return &localError{err}
	}
	if of.SizeBytes > 0 && info.Size() != of.SizeBytes {
		return fmt.Errorf("%w: it has %d bytes instead of %d", ErrChecksum, info.Size(), of.SizeBytes)
	}
	if err = VerifyStream(io.NewSectionReader(file, 0, info.Size()), of); err != nil && !errors.Is(err, ErrChecksum) {
		return &localError{err}
	}
	return err
}

// VerifyStream reads a file to its end and returns an error that wraps ErrChecksum unless size and checksums are those described.
func VerifyStream(from io.Reader, of api.DatasetFile) error {
	var all []io.Writer
	var checks []check
	add := func(name, want string, h hash.Hash) {
		if want != "" {
			all, checks = append(all, h), append(checks, check{name, want, h})
		}
	}
	add("Adler-32", of.Adler32, adler32.New())
	add("SHA-256", of.SHA256, sha256.New())
	if len(checks) == 0 { // else anything would pass
		return fmt.Errorf("%w: it has no checksum to verify", ErrChecksum)
	}
	size, err := io.Copy(io.MultiWriter(all...), from)
	if err != nil {
		return err
	}
	if of.SizeBytes > 0 && size != of.SizeBytes {
		return fmt.Errorf("%w: it has %d bytes instead of %d", ErrChecksum, size, of.SizeBytes)
	}
	for _, c := range checks {
		if got := hex.EncodeToString(c.sum.Sum(nil)); got != c.want {
			return fmt.Errorf("%w: its %s is %s instead of %s", ErrChecksum, c.name, got, c.want)
		}
	}
	return nil
}

// check is one checksum.
type check struct {
	name, want string
	sum        hash.Hash
}
