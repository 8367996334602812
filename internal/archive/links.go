package archive

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// maxLinkBytes bounds the paths of files with several names.
const maxLinkBytes = 256 << 20

// links remembers under which path each file with several names is in the archive. A volume may have millions of them, so that they are in two
// files without a name: one has the place of a path for each inode, at the inode's number, and the other has the paths.
type links struct {
	index, paths *os.File
	end          int64
}

// openLinks makes both files on the file system of a directory.
func openLinks(dir string) (*links, error) {
	l := &links{end: 1} // 0: none
	for _, file := range []**os.File{&l.index, &l.paths} {
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, errors.Join(&os.PathError{Op: "making a file without a name", Path: dir, Err: err}, l.close())
		}
		*file = os.NewFile(uintptr(fd), "links")
	}
	return l, nil
}

func (l *links) close() error {
	var err error
	for _, file := range []*os.File{l.index, l.paths} {
		if file != nil {
			err = errors.Join(err, file.Close())
		}
	}
	return err
}

// first returns the path under which a file is in the archive already. If it is not, it is noted under this one, and first returns "".
func (l *links) first(inode uint64, path string) (string, error) {
	var at [8]byte
	if n, err := l.index.ReadAt(at[:], int64(inode)*8); n == len(at) {
		if place := int64(binary.BigEndian.Uint64(at[:])); place != 0 {
			return l.read(place)
		}
	} else if n > 0 {
		return "", err
	}
	if l.end+int64(len(path)) > maxLinkBytes {
		return "", fmt.Errorf("%w: the paths of files with several names have more than %d MiB", ErrRefused, maxLinkBytes>>20)
	}
	text := binary.BigEndian.AppendUint16(nil, uint16(len(path)))
	text = append(text, path...)
	if _, err := l.paths.WriteAt(text, l.end); err != nil {
		return "", err
	}
	binary.BigEndian.PutUint64(at[:], uint64(l.end))
	l.end += int64(len(text))
	_, err := l.index.WriteAt(at[:], int64(inode)*8)
	return "", err
}

func (l *links) read(place int64) (string, error) {
	var length [2]byte
	if _, err := l.paths.ReadAt(length[:], place); err != nil {
		return "", err
	}
	text := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := l.paths.ReadAt(text, place+2)
	return string(text), err
}
