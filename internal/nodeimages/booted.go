package nodeimages

import (
	"os"
	"path/filepath"

	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/image"
)

// A machine that was booted from an image has it in memory, once: its members stand on the same file. The boot agent verified it before it
// said that it is whole. It has no layers then; a boot with layers is fetched like any other image.
const (
	bootedManifest = "manifest.json"
	bootedRoot     = "root"
	bootedChunks   = "chunks"
	bootedWhole    = "whole"
)

type digested struct {
	*image.Manifest
	digest image.Digest
}

// bootedManifest is that of the image this machine was booted from, when that is wholly here.
func (s *Store) bootedManifest() (digested, error) {
	if s.cfg.Booted == "" {
		return digested{}, os.ErrNotExist
	}
	if _, err := os.Stat(filepath.Join(s.cfg.Booted, bootedWhole)); err != nil {
		return digested{}, err
	}
	data, err := os.ReadFile(filepath.Join(s.cfg.Booted, bootedManifest))
	if err != nil {
		return digested{}, err
	}
	digest := image.DigestOf(data)
	m, err := image.Decode(data, digest)
	if err == nil && len(m.Layers) > 0 {
		err = os.ErrNotExist
	}
	return digested{m, digest}, err
}

func (s *Store) booted(d image.Digest) (environment.Image, bool) {
	m, err := s.bootedManifest()
	if err != nil || m.digest != d {
		return environment.Image{}, false
	}
	layer := environment.Layer{Path: filepath.Join(s.cfg.Booted, bootedRoot), Format: m.Root.Format}
	return environment.Image{Digest: string(d), Layers: []environment.Layer{layer}}, true
}

// openBooted opens a blob of that image.
func (s *Store) openBooted(m digested, d image.Digest) (*os.File, error) {
	for name, digest := range map[string]image.Digest{bootedManifest: m.digest, bootedRoot: m.Root.Digest, bootedChunks: m.Root.Chunks.Digest} {
		if digest == d {
			return os.Open(filepath.Join(s.cfg.Booted, name))
		}
	}
	return nil, os.ErrNotExist
}
