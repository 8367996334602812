package bootagent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/loadercache"
)

func TestLibrariesOfTheHostAreFoundBeforeThoseOfTheImage(t *testing.T) {
	ours := map[string]string{"libcuda.so.1": "/run/nearmetal-gpu/lib/libcuda.so.1"}
	of := func(libraries map[string]string) []byte { return loadercache.With(nil, libraries) }
	for name, c := range map[string]struct {
		image     []byte
		libraries map[string]string
		want      string
	}{
		"an image with one of that name": {of(map[string]string{"libc.so.6": "/lib/libc.so.6", "libcuda.so.1": "/usr/lib/libcuda.so.1"}), ours, "/run/nearmetal-gpu/lib/libcuda.so.1 /usr/lib/libcuda.so.1 /lib/libc.so.6"},
		"an image without a cache":       {nil, ours, "/run/nearmetal-gpu/lib/libcuda.so.1"},
		"an image with other bytes":      {[]byte("#!/bin/sh"), ours, "/run/nearmetal-gpu/lib/libcuda.so.1"},
		"no libraries of the host":       {of(map[string]string{"libc.so.6": "/lib/libc.so.6"}), nil, "/lib/libc.so.6"},
		"neither":                        {nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			path := filepath.Join(root, loadercache.Path)
			if c.image != nil {
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, c.image, 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			if err := placeLibraries(root, c.libraries); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(path)
			if c.want == "" {
				if !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("it made a cache: %v", err)
				}
				return
			}
			cache, parseErr := loadercache.Parse(text)
			if err := errors.Join(err, parseErr); err != nil {
				t.Fatal(err)
			}
			var paths []string
			for _, e := range cache.Entries {
				paths = append(paths, e.Path)
			}
			if got := strings.Join(paths, " "); got != c.want {
				t.Errorf("the loader finds %q, want %q", got, c.want)
			}
		})
	}
}
