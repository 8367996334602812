// Package memberbin carries the member agent's binary inside the main binary and writes it to where members mount it from.
//
// The binary is built before (make member), since a member runs another program than its node: small, static, quick to start.
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

// Name is the file name of the member agent's binary.
const Name = "nearmetal-member"

// ErrMissing: this build embeds no member agent.
var ErrMissing = errors.New("this build of nearmetal embeds no member agent; build it with `make build`, which builds " +
	"the member agent first")

//go:embed embedded
var embedded embed.FS

// Binary returns the member agent's binary, or ErrMissing.
func Binary() ([]byte, error) { return binary(embedded) }

func binary(files fs.FS) ([]byte, error) {
	data, err := fs.ReadFile(files, "embedded/"+Name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrMissing
	}
	return data, err
}

// Install writes the binary to dir/nearmetal-member, mode 0755, and returns its path. A file that is already the same is left
// alone; another one is replaced by renaming, so members that run the former one keep it.
func Install(dir string) (string, error) {
	data, err := Binary()
	if err != nil {
		return "", err
	}
	return install(dir, data)
}

func install(dir string, data []byte) (string, error) {
	path := filepath.Join(dir, Name)
	if same(path, data) {
		return path, nil
	}
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("the member agent can't be installed in %s: %w", dir, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fail(err)
	}
	temporary, err := os.CreateTemp(dir, "."+Name+"-")
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
