// Package durablefile replaces files so that a crash or a power cut leaves the old content or the new one, and never a part.
//
// It must never report success before the disk has the content and the name. Start with Write.
package durablefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces a file, and returns when that outlasts a power cut. The folder must exist. After an error, the file is as it was, or has the new
// content that a power cut may undo.
func Write(path string, data []byte, mode fs.FileMode) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Chmod(mode), file.Sync(), file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return SyncDir(filepath.Dir(path))
}

// Rename moves a file whose content is on the disk already, and returns when that outlasts a power cut.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	if filepath.Dir(from) == filepath.Dir(to) {
		return SyncDir(filepath.Dir(to))
	}
	return errors.Join(SyncDir(filepath.Dir(from)), SyncDir(filepath.Dir(to)))
}

// SyncDir returns when the names in a folder would survive a power cut.
func SyncDir(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}
