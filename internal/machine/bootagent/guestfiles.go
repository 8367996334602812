package bootagent

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
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

// accountFiles are merged with those of the image.
var accountFiles = []string{"/etc/passwd", "/etc/group"}

// placeFiles writes the files of a setup below root, and removes those of the one before that are not among them. Each is replaced at once.
func placeFiles(root string, before, files []guestlink.File) error {
	for _, f := range files {
		if path.Clean(f.Path) != f.Path || !path.IsAbs(f.Path) {
			return fmt.Errorf("file %q: the path must be absolute and clean", f.Path)
		}
		if slices.Contains(accountFiles, f.Path) {
			f.Content = []byte(accounts.Merge(string(f.Content), imageFile(layersDir, f.Path)))
		}
		if err := placeFile(filepath.Join(root, f.Path), f); err != nil {
			return fmt.Errorf("file %s: %w", f.Path, err)
		}
	}
	for _, f := range before {
		if slices.ContainsFunc(files, func(g guestlink.File) bool { return g.Path == f.Path }) {
			continue
		}
		if err := os.Remove(filepath.Join(root, f.Path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func placeFile(at string, f guestlink.File) error {
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

// imageFile is the content of a file of the image: of its topmost layer that has it, "" where none does.
func imageFile(layers, name string) string {
	for n := guestlink.MaxRoots - 1; n >= 0; n-- {
		if text, err := os.ReadFile(filepath.Join(layers, strconv.Itoa(n), name)); err == nil {
			return string(text)
		}
	}
	return ""
}

// allFormats reports whether each root of a guest has a file system that this agent mounts.
func allFormats(formats []image.RootFormat) bool {
	return len(formats) > 0 && len(formats) <= guestlink.MaxRoots &&
		!slices.ContainsFunc(formats, func(f image.RootFormat) bool { return f != image.EROFS && f != image.SquashFS })
}
