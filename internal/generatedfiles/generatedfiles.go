// Package generatedfiles writes the generated files of a member or machine below its root, where an image has files of its own.
//
// Each file is replaced at once. Accounts are merged with those that are there, which the root of a machine may have added, and with those of the image, so
// that its services keep theirs. The package must never follow a link that it replaces. Start with Place.
package generatedfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/nearmetal/nearmetal/internal/accounts"
)

// File is a generated file.
type File struct {
	// Path is absolute below the root, and clean.
	Path     string
	Content  []byte
	Mode     uint32
	UID, GID uint32
}

// accountFiles are merged with those that are there and with those of the image.
var accountFiles = []string{"/etc/passwd", "/etc/group"}

// Place writes files below root, and removes those at the paths of before that are not among them. The layers of the image are the directories 0, 1 and so
// on in layers, the lowest first.
func Place(root, layers string, before []string, files []File) error {
	for _, f := range files {
		if path.Clean(f.Path) != f.Path || !path.IsAbs(f.Path) {
			return fmt.Errorf("file %q: the path must be absolute and clean", f.Path)
		}
		if slices.Contains(accountFiles, f.Path) {
			there, err := currentFile(filepath.Join(root, f.Path))
			if err != nil {
				return fmt.Errorf("file %s: %w", f.Path, err)
			}
			f.Content = []byte(accounts.Merge(accounts.Merge(string(f.Content), there), imageFile(layers, f.Path)))
		}
		if err := place(filepath.Join(root, f.Path), f); err != nil {
			return fmt.Errorf("file %s: %w", f.Path, err)
		}
	}
	for _, old := range before {
		if slices.ContainsFunc(files, func(f File) bool { return f.Path == old }) {
			continue
		}
		if err := os.Remove(filepath.Join(root, old)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func place(at string, f File) error {
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	temporary := at + ".nearmetal-new"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(f.Content)
	err = errors.Join(err, file.Chown(int(f.UID), int(f.GID)), file.Chmod(fs.FileMode(f.Mode)&fs.ModePerm), file.Close())
	if err == nil {
		err = os.Rename(temporary, at)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return nil
}

// mostAccountBytes bounds a file of accounts: what is longer is none.
const mostAccountBytes = 1 << 20

// currentFile is the content of a file of accounts, "" if there is none.
func currentFile(at string) (string, error) {
	info, err := os.Lstat(at)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (!info.Mode().IsRegular() || info.Size() > mostAccountBytes) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(at)
	return string(text), err
}

// imageFile is the content of a file of the image: of its topmost layer that has it, "" where none does.
func imageFile(layers, name string) string {
	dirs, _ := filepath.Glob(filepath.Join(layers, "[0-9]*"))
	for n := len(dirs) - 1; n >= 0; n-- {
		if text, err := os.ReadFile(filepath.Join(layers, strconv.Itoa(n), name)); err == nil {
			return string(text)
		}
	}
	return ""
}
