package bootagent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nearmetal/nearmetal/internal/loadercache"
)

// placeLibraries has the loader of programs find libraries, by name, before those of the image. An image without a cache, or with one of a format that is
// not known, gets one of these libraries alone.
func placeLibraries(root string, libraries map[string]string) error {
	if len(libraries) == 0 {
		return nil
	}
	path := filepath.Join(root, loadercache.Path)
	known, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the loader's cache: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	// Renamed: programs of the image may have it mapped.
	return errors.Join(os.WriteFile(path+".new", loadercache.With(known, libraries), 0o644), os.Rename(path+".new", path))
}
