package imagestore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/image"
)

// Collect removes the blobs that no manifest in use names, and returns them. Blobs put within the grace time stay: what is stored first, blob by
// blob, is named only afterwards. When a manifest in use can't be read, nothing is removed: nobody knows what it names.
func (s *Store) Collect(inUse []image.Digest, grace time.Duration) ([]image.Blob, error) {
	named, err := s.named(inUse)
	if err != nil {
		return nil, fmt.Errorf("collect unused images: %w", err)
	}
	return s.collect(named, grace)
}

// CollectContent is Collect for a store whose content is no images: it removes what is not in use itself.
func (s *Store) CollectContent(inUse []image.Digest, grace time.Duration) ([]image.Blob, error) {
	named := map[image.Digest]bool{}
	for _, digest := range inUse {
		named[digest] = true
	}
	return s.collect(named, grace)
}

func (s *Store) collect(named map[image.Digest]bool, grace time.Duration) ([]image.Blob, error) {
	blobs, err := s.List()
	if err != nil {
		return nil, err
	}
	var freed []image.Blob
	before := s.now().Add(-grace)
	for _, b := range blobs {
		if named[b.Digest] {
			continue
		}
		removed, err := s.removeOlder(s.path(b.Digest), before)
		if err != nil {
			return freed, fmt.Errorf("collect unused images: %w", err)
		}
		if removed {
			freed = append(freed, b)
		}
	}
	return freed, s.collectIncoming(before)
}

// named are the manifests with all that they name.
func (s *Store) named(manifests []image.Digest) (map[image.Digest]bool, error) {
	named := map[image.Digest]bool{}
	for _, digest := range manifests {
		m, err := s.Manifest(digest)
		if err != nil {
			return nil, err
		}
		named[digest] = true
		for _, b := range m.Blobs() {
			named[b.Digest] = true
		}
	}
	return named, nil
}

// removeOlder removes a file last touched before a time.
func (s *Store) removeOlder(path string, before time.Time) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || info.ModTime().After(before) {
		return false, err
	}
	return true, os.Remove(path)
}

// collectIncoming removes what uploads left that ended without a word.
func (s *Store) collectIncoming(before time.Time) error {
	entries, err := os.ReadDir(s.incoming)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, err := s.removeOlder(filepath.Join(s.incoming, e.Name()), before); err != nil {
			return err
		}
	}
	return nil
}

// Remove removes one blob; the error wraps ErrInUse when one of the manifests in use names it, and fs.ErrNotExist when it is not there.
func (s *Store) Remove(digest image.Digest, inUse []image.Digest) error {
	if err := digest.Check(); err != nil {
		return err
	}
	for _, user := range inUse {
		named, err := s.named([]image.Digest{user})
		if err != nil {
			return fmt.Errorf("remove blob %s: %w", digest, err)
		}
		if named[digest] {
			return fmt.Errorf("remove blob %s: %w by image %s", digest, ErrInUse, user)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.Remove(s.path(digest)); err != nil {
		return fmt.Errorf("remove blob %s: %w", digest, err)
	}
	return durablefile.SyncDir(s.dir)
}
