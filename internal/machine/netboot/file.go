package netboot

import (
	"cmp"
	"os"
)

// File is a blob that is a file. The kernel can send it without a copy of its own.
type File struct {
	*os.File
	size int64
}

// OpenFile opens a file as a blob; its size is what it has now. Errors are those of os.Open.
func OpenFile(path string) (File, error) {
	f, err := os.Open(path)
	if err != nil {
		return File{}, err
	}
	info, err := f.Stat()
	if err != nil {
		return File{}, cmp.Or(f.Close(), err)
	}
	return File{f, info.Size()}, nil
}

// Size in bytes.
func (f File) Size() int64 { return f.size }
