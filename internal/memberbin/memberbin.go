// Package memberbin carries what members run of Nearmetal inside the main binary, and writes it to where members mount it from: the
// member agent's binary, and a library for the ranks of Open MPI (ucx/ucx.c).
//
// Both are built before (make member), since a member runs another program than its node: small, static, quick to start.
// The package must never build or fetch anything: what is embedded is what members run.
package memberbin

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Name is the file name of the member agent's binary, rankLibrary that of the library.
const (
	Name        = "nearmetal-member"
	rankLibrary = "nearmetal-ucx.so"
)

// ErrMissing: this build embeds no member agent, or not all of it.
var ErrMissing = errors.New("this build of nearmetal embeds no member agent; build it with `make build`, which builds " +
	"the member agent first")

//go:embed embedded
var embedded embed.FS

// Files are the paths of what Install has written.
type Files struct{ Binary, RankLibrary string }

// Binary returns the member agent's binary, or ErrMissing.
func Binary() ([]byte, error) { return file(embedded, Name) }

func file(files fs.FS, name string) ([]byte, error) {
	data, err := fs.ReadFile(files, "embedded/"+name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrMissing
	}
	return data, err
}

// Install writes what members run to dir, mode 0755. A file that is already the same is left alone; another one is replaced by renaming, so
// members that run the former one keep it.
func Install(dir string) (Files, error) {
	var paths [2]string
	for i, name := range []string{Name, rankLibrary} {
		data, err := file(embedded, name)
		if err != nil {
			return Files{}, err
		}
		if paths[i], err = install(dir, name, data); err != nil {
			return Files{}, err
		}
	}
	return Files{Binary: paths[0], RankLibrary: paths[1]}, nil
}

func install(dir, name string, data []byte) (string, error) {
	path := filepath.Join(dir, name)
	if same(path, data) {
		return path, nil
	}
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("%s can't be installed in %s: %w", name, dir, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fail(err)
	}
	temporary, err := os.CreateTemp(dir, "."+name+"-")
	if err != nil {
		return fail(err)
	}
	_, err = temporary.Write(data)
	err = errors.Join(err, temporary.Chmod(0o755), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return fail(errors.Join(err, os.Remove(temporary.Name())))
	}
	return path, nil
}

func same(path string, data []byte) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != 0o755 || info.Size() != int64(len(data)) {
		return false
	}
	present, err := os.ReadFile(path)
	return err == nil && bytes.Equal(present, data)
}
