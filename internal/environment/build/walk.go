package build

import (
	"io/fs"
	"path/filepath"
)

// walkAll calls do with the path of everything in a tree, the tree itself first; links are not followed.
func walkAll(dir string, do func(name string) error) error {
	return filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return do(name)
	})
}
