package nodeimages

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/image"
)

// A machine that was booted from an image has it in memory, once: its members stand on the same files. The boot agent verified them before it
// said that they are whole. Of a machine that keeps its root on a disk, there are no files, and the image is fetched like any other.
const (
	bootedManifest = "manifest.json"
	bootedRoot     = "root"   // that of layer N is root.N, and so on
	bootedChunks   = "chunks" // the chunk list
	bootedWhole    = "whole"
)

type digested struct {
	*image.Manifest
	digest image.Digest
}

// bootedManifest is that of the image this machine was booted from, when that is wholly here.
func (s *Store) bootedManifest() (digested, error) {
	m, whole, err := s.bootedFrom()
	if err == nil && !whole {
		err = os.ErrNotExist
	}
	return m, err
}

// bootedFrom is that of the image this machine was booted from, whose files are in memory, and whether all of their content is there. Until then the boot
// agent fetches it.
func (s *Store) bootedFrom() (m digested, whole bool, err error) {
	if s.cfg.Booted == "" {
		return digested{}, false, os.ErrNotExist
	}
	data, err := os.ReadFile(filepath.Join(s.cfg.Booted, bootedManifest))
	if err != nil {
		return digested{}, false, err
	}
	digest := image.DigestOf(data)
	manifest, err := image.Decode(data, digest)
	if err != nil {
		return digested{}, false, err
	}
	for i, r := range manifest.Roots() {
		info, err := os.Stat(s.bootedPath(bootedRoot, i))
		if err != nil {
			return digested{}, false, err
		}
		if info.Size() < r.SizeBytes {
			return digested{}, false, os.ErrNotExist
		}
	}
	_, err = os.Stat(filepath.Join(s.cfg.Booted, bootedWhole))
	return digested{manifest, digest}, err == nil, nil
}

func (s *Store) bootedPath(name string, layer int) string {
	if layer > 0 {
		name += fmt.Sprintf(".%d", layer)
	}
	return filepath.Join(s.cfg.Booted, name)
}

func (s *Store) booted(d image.Digest) (environment.Image, bool) {
	m, err := s.bootedManifest()
	if err != nil || m.digest != d {
		return environment.Image{}, false
	}
	found := environment.Image{Digest: string(d)}
	for i, r := range m.Roots() {
		found.Layers = append(found.Layers, environment.Layer{Path: s.bootedPath(bootedRoot, i), Format: r.Format})
	}
	return found, true
}

// openBooted opens a blob of that image; a file may be longer than the blob in it.
func (s *Store) openBooted(d image.Digest) (*os.File, io.ReadSeeker, error) {
	m, err := s.bootedManifest()
	if err != nil {
		return nil, nil, os.ErrNotExist
	}
	path, size := "", int64(0)
	for i, r := range m.Roots() {
		switch d {
		case r.Digest:
			path, size = s.bootedPath(bootedRoot, i), r.SizeBytes
		case r.Chunks.Digest:
			path, size = s.bootedPath(bootedChunks, i), r.Chunks.SizeBytes
		}
	}
	if d == m.digest {
		data, _, err := m.Encode()
		if err != nil {
			return nil, nil, err
		}
		path, size = s.bootedPath(bootedManifest, 0), int64(len(data))
	}
	if path == "" {
		return nil, nil, os.ErrNotExist
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	return f, io.NewSectionReader(f, 0, size), nil
}
