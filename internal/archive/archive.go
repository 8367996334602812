// Package archive writes all files of a directory as one stream, and makes them again from it.
//
// The stream is a tar file (POSIX pax) compressed with zstd, so that other programs can read it. Behind it is a trailer, in a frame that zstd skips:
// it tells what the archive has, and its hash proves that nothing is missing. Both directions are safe with content that somebody else chose: they
// never follow a link, never leave the directory, and need the same memory for a million files as for one. Start with Pack and Unpack.
package archive

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

const (
	// MaxPath is the longest path of a file in an archive, in bytes. The kernel takes no longer one in a call.
	MaxPath = 4095
	// MaxID is the highest user and group ID in an archive: members have no other. unknownID is what members see in place of others.
	MaxID     = 65535
	unknownID = 65534
	// HoleFactor bounds what files seem to hold, those with holes included: so many times the size of their volume.
	HoleFactor = 64
	// windowBytes bounds the memory that a reader needs for what was read.
	windowBytes = 4 << 20
	copyBytes   = 128 << 10
)

// The errors of archives.
var (
	// ErrDamaged reports an archive that is not as it was written: cut off, changed, or none at all.
	ErrDamaged = errors.New("the archive is damaged or incomplete")
	// ErrRefused reports an archive with something that no volume may get, or a volume with something that no archive can hold.
	ErrRefused = errors.New("the archive is refused")
)

// The trailer is a frame of zstd that is skipped (RFC 8878, section 3.1.2): a number, a size, and the trailer as JSON, filled up with spaces.
const (
	// TrailerBytes is the size of the trailer.
	TrailerBytes  = 1024
	trailerNumber = 0x184D2A5B
	trailerHead   = 8
	// failureBytes bounds what a trailer tells of a failure.
	failureBytes = 400
	version      = 1
)

// Trailer is the end of an archive.
type Trailer struct {
	Version int `json:"nearmetal_volume_archive"`
	// Files is the number of files, directories and links in it. Skipped is that of those which are not: sockets and devices.
	Files   int64 `json:"files"`
	Skipped int64 `json:"skipped"`
	// Bytes is the size of the tar file before its compression, SHA256 its hash in hexadecimal digits.
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	// VolumeBytes and VolumeFiles are the bounds of the volume that was written; 0: an older program wrote it.
	VolumeBytes int64 `json:"volume_bytes,omitempty"`
	VolumeFiles int64 `json:"volume_files,omitempty"`
	// Failure is why the archive is not whole; empty for one that is.
	Failure string `json:"failure,omitempty"`
}

// Write writes the trailer, behind everything else.
func (t Trailer) Write(out io.Writer) error {
	t.Version = version
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	if len(text) > TrailerBytes-trailerHead {
		return fmt.Errorf("a trailer of %d bytes", len(text))
	}
	frame := bytes.Repeat([]byte{' '}, TrailerBytes)
	binary.LittleEndian.PutUint32(frame, trailerNumber)
	binary.LittleEndian.PutUint32(frame[4:], TrailerBytes-trailerHead)
	copy(frame[trailerHead:], text)
	_, err = out.Write(frame)
	return err
}

// WriteFailure ends an archive that can't be completed, so that its reader learns why.
func WriteFailure(out io.Writer, why error) error {
	text := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, why.Error())
	return Trailer{Failure: text[:min(len(text), failureBytes)]}.Write(out)
}

// Tail takes an archive as it passes by, and keeps its trailer. The zero value is ready.
type Tail struct{ kept []byte }

// Write implements io.Writer. It never fails.
func (t *Tail) Write(p []byte) (int, error) {
	n := len(p)
	if len(p) > TrailerBytes {
		p = p[len(p)-TrailerBytes:]
	}
	if more := len(t.kept) + len(p) - TrailerBytes; more > 0 {
		t.kept = append(t.kept[:0], t.kept[more:]...)
	}
	t.kept = append(t.kept, p...)
	return n, nil
}

// Trailer returns the trailer of the archive that has passed by. It is an ErrDamaged if there is none, and the failure if it tells of one.
func (t *Tail) Trailer() (Trailer, error) {
	var trailer Trailer
	if len(t.kept) < TrailerBytes || binary.LittleEndian.Uint32(t.kept) != trailerNumber ||
		binary.LittleEndian.Uint32(t.kept[4:]) != TrailerBytes-trailerHead || json.Unmarshal(t.kept[trailerHead:], &trailer) != nil {
		return Trailer{}, fmt.Errorf("%w: its end is missing", ErrDamaged)
	}
	switch {
	case trailer.Failure != "":
		return Trailer{}, errors.New(trailer.Failure)
	case trailer.Version != version:
		return Trailer{}, fmt.Errorf("%w: it is of version %d, and this program reads version %d", ErrRefused, trailer.Version, version)
	}
	return trailer, nil
}
